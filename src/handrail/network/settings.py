"""What a caller says of the network of its commands: off, open, or ``Managed``.  Pure.

Workspaces, agents and the command line take these; `Managed.config` is what executors enforce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from handrail.errors import UsageError
from handrail.name_hints import NamesChecked

if TYPE_CHECKING:
    from handrail.network.config import ManagedNetwork

OFF, OPEN = "off", "open"
#: Why a command with a managed network is refused where there is none.
NOT_CARRIED = (
    "this executor carries no managed network, so nothing was run; use network='off', or a handrail"
    " server with bubblewrap (`handrail doctor` there says what is missing)"
)
REPORT, END = "report", "end"


@dataclass(frozen=True, slots=True)
class Managed(NamesChecked):
    """A network of hosts: what is listed is reached, refused or asked about, and nothing else is.

    ``allow``, ``deny`` and ``ask`` are patterns: ``example.org``, ``*.example.org`` (names below
    it), ``**.example.org`` (both), ``example.org:443`` (that port alone), ``*`` (all public hosts),
    addresses.  A deny counts before an ask, and that before an allow.  ``unlisted`` hosts are asked
    about if there is an approver, and refused otherwise; ``deny`` refuses them unasked.
    ``presets`` are lists of hosts by name, such as ``pypi`` (docs/network.md).

    ``mode="limited"`` allows GET, HEAD and OPTIONS of plain HTTP alone.  ``addresses`` are networks
    (``10.1.0.0/16``) that are reached although they are not public (``allow``), or never
    (``deny``).  ``reasons`` are sentences by pattern, told in place of the standard ones.
    ``allow_local_binding``: listed hosts may be loopback or private addresses of the machine.
    ``allow_upstream_proxy``: connections go through the proxy of the machine's own environment.
    ``enable_socks5``: SOCKS beside HTTP.  ``on_network_denial="end"`` ends a command at its first
    refusal, with its output kept; otherwise it goes on, and the result lists the hosts.
    ``rules`` are rules files and directories of them, whose ``network_rule`` statements count;
    ``rules_file``, one more of them, is where «always» and «never» are written.

    Raises UsageError for what cannot be used.
    """

    allow: Iterable[str] = ()
    deny: Iterable[str] = ()
    ask: Iterable[str] = ()
    unlisted: Literal["ask", "deny"] = "ask"
    presets: Iterable[str] = ()
    mode: Literal["full", "limited"] = "full"
    addresses: Mapping[str, str] = field(default_factory=dict, hash=False)
    reasons: Mapping[str, str] = field(default_factory=dict, hash=False)
    allow_local_binding: bool = False
    allow_upstream_proxy: bool = False
    enable_socks5: bool = True
    on_network_denial: Literal["report", "end"] = "report"
    rules: Iterable[str] = ()
    rules_file: str | None = None

    def __post_init__(self) -> None:
        for name in ("allow", "deny", "ask", "presets", "rules"):
            object.__setattr__(self, name, _words(name, getattr(self, name)))
        if self.on_network_denial not in (REPORT, END):
            raise UsageError(
                f"on_network_denial is 'report' or 'end', not {self.on_network_denial!r}"
            )
        self.config()

    def config(self) -> ManagedNetwork:
        """The configuration that decides about connections; raises UsageError."""
        from handrail.network.config import ConfigError, from_profile
        from handrail.network.presets import UnknownPreset, patterns_of

        try:
            preset = [pattern for name in self.presets for pattern in patterns_of(name)]
            return from_profile(
                {
                    "domains": {
                        **dict.fromkeys([*preset, *self.allow], "allow"),
                        **dict.fromkeys(self.ask, "ask"),
                        **dict.fromkeys(self.deny, "deny"),
                    },
                    "unlisted": self.unlisted,
                    "mode": self.mode,
                    "addresses": self.addresses,
                    "reasons": self.reasons,
                    "allow_local_binding": self.allow_local_binding,
                    "allow_upstream_proxy": self.allow_upstream_proxy,
                    "enable_socks5": self.enable_socks5,
                }
            )
        except (ConfigError, UnknownPreset) as error:
            raise UsageError(f"the managed network cannot be used: {error}") from None

    def to_json(self) -> dict[str, object]:
        """The settings as JSON; `from_json` reads it."""
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name in self.__slots__
            for value in (getattr(self, name),)
        }


def from_json(values: Mapping[str, object]) -> Managed:
    """Settings out of `Managed.to_json`; raises UsageError and TypeError."""
    return Managed(**values)  # type: ignore[arg-type]  # checked when it is made


#: The network of commands, as a caller says it.
Network: TypeAlias = "Literal['off', 'open'] | Managed"


def checked(network: object) -> Network:
    """The network that was meant; raises UsageError for what is none."""
    if isinstance(network, Managed) or network in (OFF, OPEN):
        return network  # type: ignore[return-value]  # compared above
    raise UsageError(f"the network is 'off', 'open' or Managed(...), not {network!r}")


def _words(name: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"{name} of a managed network is a list, such as [{given!r}]")
    words = tuple(given)
    if not all(isinstance(word, str) for word in words):
        raise UsageError(f"{name} of a managed network holds text, not {words!r}")
    return words
