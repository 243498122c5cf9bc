"""A fleet on a Ray cluster: the driver's side.

A driver talks to the registrar by Ray calls: a long poll for news of the members, quotas, and
templates.  Whether a node is lost is decided by the registrar (``actors.py``).  Awaited calls are
never cancelled, for that kills the thread of a Ray Client.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from handrail.errors import UsageError
from handrail.executor.client.dial import Dialer
from handrail.fleet.dialing import SignedDialer
from handrail.fleet.engine import Member
from handrail.fleet.errors import FleetError, FleetUnknown, QuotaExceeded, TemplateError
from handrail.fleet.hosts_engine import via_url
from handrail.fleet.settings import Amounts, FleetSettings, LineSettings
from handrail.fleet.shares import tokens
from handrail.protocol import path_uri

try:
    import ray
except ImportError as error:
    raise UsageError(
        "a fleet on Ray needs the package ray; install handrail with the extra ray"
        " (pip install 'handrail[ray]'), or give a list of hosts"
    ) from error

from handrail.fleet import actor_names, actors

if TYPE_CHECKING:
    import ssl as ssl_module

    from handrail.fleet.node import Node
    from handrail.fleet.templates import Archive

log = logging.getLogger(__name__)

#: An archive travels in pieces of this size.
_PIECE = 64 * 1024 * 1024
_POLL_SECONDS = 10.0
_CALL_SECONDS = 60.0
_DOWN_SECONDS = 90.0
_TOKEN_SECONDS = 3600.0
_RETRY_SECONDS = 0.3
#: How long a cluster may take to accept a connection.
_REACH_SECONDS = 10.0

#: Drivers of this process that use the connection to Ray that one of them has made.
_users = 0
_made = False
_connecting = threading.Lock()


def _connect(where: str) -> None:
    """Connect this process to the cluster, unless it is; blocking.  Raises FleetError."""
    global _users, _made
    with _connecting:
        if ray.is_initialized():
            _check_cluster(where)
        else:
            address = where if where.startswith("ray://") else where.removeprefix("ray:")
            _check_reach(where)
            try:
                ray.init(
                    address=address or "auto",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    namespace="handrail",
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise FleetError(f"no Ray cluster at {where}: {error}") from None
            _made = True
        _users += 1


def _check_reach(where: str) -> None:
    """Raise FleetError when nothing accepts connections there: Ray would try for minutes."""
    host, _, port = where.removeprefix("ray:").removeprefix("//").rpartition(":")
    if not port.isdigit():
        return  # auto, or what Ray refuses itself
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise FleetError(f"no Ray cluster at {where}: {error}") from None


def _check_cluster(where: str) -> None:
    """Raise UsageError when this program is connected to another cluster."""
    address = where.removeprefix("ray:")
    if address in ("", "auto") or where.startswith("ray://"):
        return
    here = ray.get_runtime_context().gcs_address
    if here != address and _endpoints(here).isdisjoint(_endpoints(address)):
        raise UsageError(
            f"this program is connected to the Ray cluster at {here}, and a program has one at a"
            f" time; use where='ray:{here}', or ray.shutdown() before"
        )


def _endpoints(address: str) -> set[tuple[str, str]]:
    """The addresses that HOST:PORT stands for; Ray calls its head by one, users by its name."""
    host, _, port = address.rpartition(":")
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return {(host, port)}
    if any(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found):
        found.add(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    return {(one, port) for one in found}


def _disconnect() -> None:
    global _users, _made
    with _connecting:
        _users -= 1
        if _users == 0 and _made:
            _made = False
            ray.shutdown()


class RayEngine:
    """The machines of a Ray cluster."""

    silence_is_loss = False
    fixed = False

    def __init__(
        self,
        where: str,
        settings: FleetSettings,
        lines: LineSettings,
        *,
        attach: bool,
    ) -> None:
        if settings.shares is not None and not attach and settings.share_cpus is None:
            raise UsageError("shares as a number needs share={'cpus': ..., 'memory': ...}")
        self.name = settings.name
        self.quotas = settings.quotas
        self._where = where
        self._settings = settings
        self._lines = lines
        self._attach = attach
        self._tenant = lines.tenant
        self._driver = token_hex(8)
        self._secret = ""
        self._registrar_: Any = None
        self._changed: Callable[[list[Member]], None] = lambda _: None
        self._known: dict[str, Member] = {}
        self._epoch, self._step = "", -1
        self._first: asyncio.Future[None] | None = None
        self._closed = False
        self.stopping = False
        self._contexts: dict[str, ssl_module.SSLContext] = {}
        self._used: dict[str, dict[str, float]] = {}
        self._granted: dict[str, dict[str, float]] = {}
        self._granting = asyncio.Lock()
        self._demanded = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connected = False

    # --- life ------------------------------------------------------------------------------------

    async def open(self, changed: Callable[[list[Member]], None]) -> None:
        """Join the fleet, or start it; raises FleetUnknown and FleetError."""
        self._changed = changed
        await asyncio.to_thread(_connect, self._where)
        self._connected = True
        loop = asyncio.get_running_loop()
        self._first = loop.create_future()
        self._registrar_ = await asyncio.to_thread(self._find)
        self._settings, self._secret = await self._ask("configuration")
        self.quotas = self._settings.quotas
        self._poll()
        async with asyncio.timeout(_CALL_SECONDS):
            await self._first

    def _find(self) -> Any:
        place = actor_names.namespace(self.name)
        if self._attach:
            try:
                return ray.get_actor(actor_names.REGISTRAR, namespace=place)
            except ValueError:
                raise FleetUnknown(
                    f"no fleet {self.name} at {self._where}; start one with Fleet(name=...) or"
                    " `handrail fleet up`"
                ) from None
        return (
            ray.remote(actors.Registrar)
            .options(
                name=actor_names.REGISTRAR,
                namespace=place,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=-1,
                max_concurrency=1000,
                num_cpus=0,
            )
            .remote(self._settings, tokens.new_secret())
        )

    async def _ask(self, method: str, *given: Any, seconds: float = _CALL_SECONDS) -> Any:
        """Call the registrar, which may be restarting; raises FleetError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            try:
                return await _answer(getattr(self._registrar_, method).remote(*given), seconds)
            except ray.exceptions.ActorDiedError:
                raise FleetUnknown(f"the fleet {self.name} has ended") from None
            except (ray.exceptions.RayError, TimeoutError) as error:
                unavailable = isinstance(error, ray.exceptions.ActorUnavailableError)
                if not unavailable or loop.time() > deadline:
                    raise FleetError(
                        f"the registrar of the fleet {self.name} does not answer: {error!r}"
                    ) from None
            await asyncio.sleep(_RETRY_SECONDS)

    async def close(self, *, ends: bool) -> None:
        """Leave the fleet; ``ends``: end it."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        try:
            if self._registrar_ is not None:
                if ends:
                    await self._end()
                else:
                    with contextlib.suppress(FleetError):
                        await self._ask("leave", self._driver, seconds=5.0)
        finally:
            if self._connected:
                self._connected = False
                await asyncio.to_thread(_disconnect)

    async def down(self) -> None:
        """End the fleet."""
        await self._end()

    async def _end(self) -> None:
        registrar, self._registrar_ = self._registrar_, None
        if registrar is None:
            return
        try:
            await _answer(registrar.down.remote(), _DOWN_SECONDS)
        except ray.exceptions.ActorDiedError:
            return
        except (ray.exceptions.RayError, TimeoutError) as error:
            log.warning("the fleet %s did not end in order: %s", self.name, error)
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            await asyncio.to_thread(ray.kill, registrar, no_restart=True)

    # --- members ---------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Ask for news once; the answer asks again."""
        registrar = self._registrar_
        if self._closed or registrar is None:
            return
        loop = asyncio.get_running_loop()
        try:
            ref = registrar.changes.remote(self._driver, self._epoch, self._step, _POLL_SECONDS)
        except ray.exceptions.RayError as error:
            log.info("the registrar of %s cannot be asked: %s", self.name, error)
            loop.call_later(_RETRY_SECONDS, self._poll)
            return

        def answered(future: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before
                loop.call_soon_threadsafe(self._polled, future)

        ref.future().add_done_callback(answered)

    def _polled(self, future: Any) -> None:
        if self._closed:
            return
        error = future.exception()
        if error is not None:
            if isinstance(error, ray.exceptions.ActorDiedError):
                self._all_gone()
                return
            log.info("the registrar of %s does not answer: %s", self.name, error)
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._poll)
            return
        epoch, self._step, whole, found, state = future.result()
        self._epoch = epoch
        members = [Member(**told) for told in found]
        if whole:
            told = {member.id for member in members}
            members += [
                Member(id=one.id, state="lost", url=one.url, error="the fleet has it no more")
                for one in self._known.values()
                if one.id not in told and one.state != "lost"
            ]
        self._known.update((member.id, member) for member in members)
        self.stopping = state == "stopping"
        self._changed(members)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        self._poll()  # also then: the answer after the last one is the registrar's end

    def _all_gone(self) -> None:
        """The registrar was ended, and the fleet with it."""
        self.stopping = True
        gone = "the fleet has ended"
        if self._first is not None and not self._first.done():
            self._first.set_exception(FleetUnknown(f"{self.name}: {gone}"))
        self._changed(
            [
                Member(id=one.id, state="gone", url=one.url, labels=one.labels, error=gone)
                for one in self._known.values()
                if one.state not in ("lost", "failed")
            ]
        )

    def dialer(self, member: Member, *, control: bool) -> Dialer:
        context = None
        if member.certificate:
            context = self._contexts.get(member.certificate)
            if context is None:
                from handrail.transport.tls import pinned_context

                context = self._contexts[member.certificate] = pinned_context(member.certificate)
        key = tokens.share_key(self._secret, member.id)
        return SignedDialer(
            via_url(self._lines.via, member.url),
            lambda: tokens.sign(key, member.id, "" if control else self._tenant, _TOKEN_SECONDS),
            context,
        )

    def token(self, node: str, ttl: float) -> str | None:
        """A token that this driver signs."""
        return tokens.sign(tokens.share_key(self._secret, node), node, self._tenant, ttl)

    def _supervisor(self, node: str) -> Any:
        place = actor_names.namespace(self.name)
        return ray.get_actor(actor_names.supervisor_name(node), namespace=place)

    async def logs(self, node: str, lines: int) -> str:
        member = self._known.get(node)
        if member is not None and member.state in ("pending", "lost", "gone"):
            raise FleetError(f"node {node} tells no logs: it is {member.state}")
        try:
            return str(await _answer(self._supervisor(node).logs.remote(lines)))
        except (ValueError, ray.exceptions.RayError, TimeoutError) as error:
            raise FleetError(f"node {node} tells no logs: {error!r}") from None

    async def metrics(self, node: Node) -> str:
        from handrail.fleet.metrics import fetch

        member = node.member
        url = via_url(self._lines.via, member.url)
        context = self._contexts.get(member.certificate)
        key = tokens.share_key(self._secret, node.id)
        token = tokens.sign(key, node.id, "", 60.0)
        return await asyncio.to_thread(fetch, url, token, context)

    # --- templates -----------------------------------------------------------------------------

    async def offer(self, archive: Archive) -> None:
        """Hand the archive to the registrar, unless it has it."""
        if archive.descriptor is None or await self._ask("has_template", archive.digest):
            return
        count = max(1, -(-archive.size // _PIECE))
        for number in range(count):
            data = await asyncio.to_thread(archive.read, _PIECE, number * _PIECE)
            await self._ask("add_piece", archive.digest, number, count, data)

    async def known_template(self, digest: str) -> bool:
        return bool(await self._ask("has_template", digest))

    async def deliver(self, node: Node, archive: Archive) -> str:
        """Have the supervisor of a node fetch the archive from the object store."""
        try:
            supervisor = await asyncio.to_thread(self._supervisor, node.id)
            path = await _answer(supervisor.fetch.remote(archive.digest), 600.0)
            if path is None and archive.descriptor is not None:
                await self.offer(archive)
                path = await _answer(supervisor.fetch.remote(archive.digest), 600.0)
        except (ValueError, ray.exceptions.RayError) as error:
            raise node.unreachable(f"its supervisor fetches no template: {error}") from None
        if path is None:
            raise TemplateError(
                f"template {archive.digest} is not on node {node.id}, and the fleet does not have"
                " it; give the directory",
                "missing",
            )
        return path_uri.to_uri(str(path).encode())

    async def discard(self, node: Node, uri: str) -> None:
        path = path_uri.to_path(uri).decode()
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            self._supervisor(node.id).discard.remote(path)

    # --- quotas, growth ------------------------------------------------------------------------

    async def reserve(self, tenant: str, amounts: Amounts, *, exact: bool) -> None:
        """Count one more; the registrar is asked when what it has granted is used up."""
        if tenant not in self.quotas:
            return
        async with self._granting:
            used = self._used.setdefault(tenant, _counts(Amounts(0, 0, 0)))
            wanted = {what: used[what] + more for what, more in _counts(amounts).items()}
            granted = self._granted.get(tenant)
            if granted is None or any(wanted[what] > granted[what] + 1e-9 for what in wanted):
                granted, refused = await self._ask(
                    "grant", self._driver, self._lines.owner, tenant, wanted, exact
                )
                if refused is not None:
                    raise QuotaExceeded(tenant, *refused)
                self._granted[tenant] = granted
            self._used[tenant] = wanted

    def take(self, tenant: str, amounts: Amounts) -> None:
        if tenant in self.quotas:
            used = self._used.setdefault(tenant, _counts(Amounts(0, 0, 0)))
            for what, more in _counts(amounts).items():
                used[what] += more

    def give_back(self, tenant: str, amounts: Amounts) -> None:
        if tenant not in self.quotas or tenant not in self._used:
            return
        used = self._used[tenant]
        for what, less in _counts(amounts).items():
            used[what] = max(0.0, used[what] - less)
        if not self._closed:
            self._spawn(self._return(tenant))

    async def _return(self, tenant: str) -> None:
        """Give back what was granted and is not used: others may wait for it."""
        async with self._granting:
            used, granted = self._used[tenant], self._granted.get(tenant)
            if granted is None or self._registrar_ is None or used == granted:
                return
            with contextlib.suppress(FleetError):
                granted, _ = await self._ask(
                    "grant", self._driver, self._lines.owner, tenant, dict(used), False
                )
                if granted is not None:
                    self._granted[tenant] = granted

    def demand(self, amounts: Amounts) -> None:
        """Ask for another share, at most once a second."""
        now = asyncio.get_running_loop().time()
        if self._settings.shares is None or now - self._demanded < 1.0 or self._closed:
            return
        self._demanded = now
        self._spawn(self._tell_demand(amounts))

    async def _tell_demand(self, amounts: Amounts) -> None:
        with contextlib.suppress(FleetError):
            await self._ask("demand", amounts.cpu_millis, amounts.memory_bytes)

    def may_grow(self, amounts: Amounts) -> bool:
        """Whether a share that is still to come can hold this."""
        return self._settings.shares is not None and not self.too_small(amounts)

    def too_small(self, amounts: Amounts) -> str:
        settings = self._settings
        memory = settings.share_memory
        if memory is None and settings.shares is not None:
            memory = 0  # one that Ray places has what was named
        pairs = (
            ("cpus", amounts.cpu_millis, settings.share_cpus),
            ("memory", amounts.memory_bytes, memory),
        )
        return ",".join(what for what, asked, has in pairs if has is not None and asked > has)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _counts(amounts: Amounts) -> dict[str, float]:
    return {
        "workspaces": float(amounts.workspaces),
        "cpus": amounts.cpu_millis / 1000,
        "memory": float(amounts.memory_bytes),
    }


async def _answer(ref: Any, seconds: float = _CALL_SECONDS) -> Any:
    """The result of a call; raises TimeoutError.  A cancellation leaves the call alone."""
    answer = asyncio.wrap_future(ref.future())
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # if it is left
    async with asyncio.timeout(seconds):
        return await asyncio.shield(answer)
