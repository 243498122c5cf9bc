"""What a fleet needs of the engine that knows its machines: Ray, or a list of hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from handrail.fleet.reports import NodeState
from handrail.fleet.settings import Amounts

if TYPE_CHECKING:
    from handrail.executor.client.dial import Dialer
    from handrail.fleet.node import Node
    from handrail.fleet.templates import Archive


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node as its engine knows it; ``state`` is ready as soon as it can be dialed."""

    id: str
    state: NodeState
    url: str = ""
    engine_id: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    version: str = ""
    #: The certificate of its server, as PEM text; "": no TLS, or one that authorities vouch for.
    certificate: str = ""
    supervisor_pid: int | None = None
    #: What its server has to give, as far as the engine knows before that answers.
    cpu_millis: int = 0
    memory_bytes: int = 0
    error: str = ""


class Engine(Protocol):
    """The machines of a fleet."""

    #: The fleet's name.
    name: str
    #: Whether silence alone says that a node is lost, for nothing else would tell.
    silence_is_loss: bool
    #: Whether the nodes are these for ever: none joins later, and a lost one does not come back.
    fixed: bool
    #: Whether the fleet is being ended.
    stopping: bool
    #: Limits by tenant.
    quotas: dict[str, dict[str, float]]

    async def open(self, changed: Callable[[list[Member]], None]) -> None:
        """Begin; ``changed`` gets all members, now and whenever one changes."""

    def dialer(self, member: Member, *, control: bool) -> Dialer:
        """A dialer to a node's server; ``control``: for what is of all tenants."""

    def token(self, node: str, ttl: float) -> str | None:
        """A token for a node's server; None: it needs none."""

    async def deliver(self, node: Node, archive: Archive) -> str:
        """Bring a template's archive to a node; returns its path there, as a URI."""

    async def discard(self, node: Node, uri: str) -> None:
        """Remove an archive that was delivered; raises nothing."""

    async def offer(self, archive: Archive) -> None:
        """Keep an archive for the other drivers, and for nodes that join later."""

    async def known_template(self, digest: str) -> bool:
        """Whether an archive with this digest was offered."""

    async def reserve(self, tenant: str, amounts: Amounts, *, exact: bool) -> None:
        """Count a workspace of a tenant; raises QuotaExceeded.

        ``exact``: a refusal is of what the nodes hold now, not of what they last told.
        """

    def take(self, tenant: str, amounts: Amounts) -> None:
        """Count a workspace that was adopted; it is there, so nothing is refused."""

    def give_back(self, tenant: str, amounts: Amounts) -> None:
        """Count one less."""

    def demand(self, amounts: Amounts) -> None:
        """Workspaces of this size wait: ask for another share, if there may be more."""

    def may_grow(self, amounts: Amounts) -> bool:
        """Whether a share that is not there yet could hold this."""

    def too_small(self, amounts: Amounts) -> str:
        """Which of these no share of the fleet has, whenever it comes; "": one may have all."""

    async def logs(self, node: str, lines: int) -> str:
        """The last lines of a node's server."""

    async def down(self) -> None:
        """End the fleet, with everything in it."""

    async def close(self, *, ends: bool) -> None:
        """Let go; ``ends``: a fleet without a name ends now."""

    async def metrics(self, node: Node) -> str:
        """The metrics of a node's server as text; raises HandrailError or OSError."""
