"""The ``networkProxy`` of a request: checked, and as the network of the process it starts.

Imported when the first request asks for one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec.json import decode, encode

from handrail.errors import RpcError
from handrail.network.config import ConfigError, ManagedNetwork, from_wire
from handrail.network.hosts import canonical, checked_port
from handrail.network.managed import proxied_spec
from handrail.network.managed.start import ManagedStart
from handrail.network.saved_rules import SavedRule, saved_rule
from handrail.process.spec import ProcessSpec
from handrail.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS
from handrail.protocol.environment import Nothing
from handrail.protocol.network import NetworkProxyParams, UpdateParams
from handrail.protocol.process import StartParams
from handrail.server.methods import process_lookup

if TYPE_CHECKING:
    from handrail.network.managed.process import ManagedProcess
    from handrail.server.connection import Connection

Targets = tuple[tuple[str, int], ...]

#: Members of ``networkProxy.handrail`` that are no configuration.
_MEMORY = frozenset(("rules", "approved", "denied"))
#: Bytes of the id of a process whose hosts are asked about.
_LONGEST_ID = 256


def managed_start(conn: Connection, params: StartParams) -> ManagedStart | None:
    """Read the network that a request asks for; None: it asks for none.  Raises RpcError -32602."""
    given = params.network_proxy
    start = None
    if given is not None:
        session = conn.session
        assert session is not None  # noqa: S101 (checked with the handshake)
        enforced, plain = params.enforce_managed_network, not conn.notifier.extended
        start = _start(encode(given), session.id, enforced, plain)
        _check_id(params.process_id, start)
    if params.enforce_managed_network and params.sandbox is None:
        raise RpcError(
            INVALID_PARAMS,
            "a managed network needs a `sandbox`, without which nothing is enforced; give one, or"
            " leave `enforceManagedNetwork` out",
        )
    if start is None:
        raise RpcError(
            INVALID_PARAMS,
            "`enforceManagedNetwork` needs a managed network proxy; give `networkProxy` as well,"
            " or leave it out",
        )
    return start


@lru_cache(32)  # most starts of a client have the same
def _start(encoded: bytes, session: str, enforced: bool, plain: bool) -> ManagedStart:
    """The network that ``networkProxy`` asks for; raises RpcError."""
    given = decode(encoded, type=NetworkProxyParams)
    return ManagedStart(
        _config(given),
        _decision_ms(given),
        *_memory(given.handrail or {}),
        session=session,
        execution_id=given.execution_id,
        environment_id=given.environment_id,
        enforced=enforced,
        plain=plain,
    )


def _config(given: NetworkProxyParams) -> ManagedNetwork:
    """The configuration of the peer's members and of our additions; raises RpcError."""
    added = given.handrail
    try:
        config = from_wire(given.proxy)
        if added is None:
            return config
        ours = {name: value for name, value in added.items() if name not in _MEMORY}
        return from_wire({**given.proxy, **ours}, ours=True)
    except ConfigError as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None


def _memory(ours: dict[str, Any]) -> tuple[tuple[SavedRule, ...], Targets, Targets]:
    """Rules and earlier decisions that a client of ours sends along; raises RpcError."""
    try:
        rules = tuple(saved_rule(host, port, said) for host, port, said in ours.get("rules", ()))
        approved, denied = (
            tuple((canonical(host).text, checked_port(port)) for host, port in ours.get(name, ()))
            for name in ("approved", "denied")
        )
    except (TypeError, ValueError) as error:
        raise RpcError(
            INVALID_PARAMS, f"invalid rules or targets in `networkProxy.handrail`: {error}"
        ) from None
    return rules, approved, denied


def _decision_ms(given: NetworkProxyParams) -> int | None:
    timeout = given.policy_decision_timeout_ms
    if timeout == 0:
        raise RpcError(INVALID_PARAMS, "network policy decision callback timeout must be nonzero")
    return timeout


def _check_id(process_id: str, start: ManagedStart) -> None:
    if start.asks and not 1 <= len(process_id.encode()) <= _LONGEST_ID:
        raise RpcError(
            INVALID_PARAMS,
            f"network policy decision callback needs a `processId` of 1 to {_LONGEST_ID} bytes",
        )


def with_variables(
    conn: Connection, start: ManagedStart, spec: ProcessSpec
) -> tuple[ProcessSpec, ManagedProcess]:
    """The spec with the variables that lead to its proxy, and its network; raises RpcError."""
    try:
        return proxied_spec.begin(conn.server.network, start, spec)
    except OSError as error:
        raise RpcError(
            INTERNAL_ERROR, f"the network proxy cannot listen: {error.strerror}"
        ) from None


def network_update(conn: Connection, params: UpdateParams) -> Nothing:
    """Have a process judged by other rules and answers from now on; raises RpcError -32602."""
    child = process_lookup.child(conn, params.process_id)
    given = {name: getattr(params, name) for name in _MEMORY}
    lists = _memory(given)
    if child.spec.network is not None and child.running:
        child.spec.network.update(*lists)
    return Nothing()


NETWORK_HANDLERS: dict[str, Callable[[Connection, Any], Any]] = {"network/update": network_update}
