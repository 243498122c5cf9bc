"""A fleet on a list of hosts: servers that were started by other means, reached by their URLs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from handrail.errors import HandrailError, UsageError
from handrail.executor.client.dial import Dialer, dialer_for
from handrail.fleet.data_line import DataLine, FleetExecutor
from handrail.fleet.dialing import SignedDialer
from handrail.fleet.engine import Member
from handrail.fleet.errors import FleetError, QuotaExceeded, TemplateError
from handrail.fleet.settings import Amounts, Via
from handrail.protocol import path_uri

if TYPE_CHECKING:
    from handrail.executor.base import Files
    from handrail.fleet.node import Node
    from handrail.fleet.templates import Archive

#: How old the count of a tenant's workspaces may be, far from its quota.
_COUNT_SECONDS = 0.5
#: A quota below this is always counted anew.
_FEW = 64


def via_url(via: Via | None, url: str) -> str:
    """The URL to dial for a node's."""
    if via is None:
        return url
    found = via(url) if callable(via) else via.get(url, url)
    if not isinstance(found, str):
        raise UsageError(f"via gives a URL, not {found!r}")
    return found


class HostsEngine:
    """Hosts by ``ws://``, ``wss://`` and ``ssh://``."""

    silence_is_loss = True
    fixed = True
    stopping = False

    def __init__(
        self,
        urls: list[str],
        *,
        name: str,
        owner: str,
        token: str | Mapping[str, str] | None,
        via: Via | None,
        quotas: dict[str, dict[str, float]],
    ) -> None:
        self.name = name
        self.quotas = quotas
        self._token = token
        self._via = via
        self._urls: dict[str, str] = {}
        for url in urls:
            self._urls[_host_id(url, self._urls)] = url
        if not self._urls:
            raise UsageError("a fleet needs at least one host; give their URLs")
        self._sending: dict[str, DataLine] = {}
        #: Set by the fleet: the nodes, to count what tenants have.
        self.nodes: Mapping[str, Node] = {}
        self._owner = owner
        #: By tenant: what this driver has, and what was last seen of others and of itself.
        self._own: dict[str, dict[str, float]] = {}
        self._seen: dict[str, dict[str, float]] = {}
        self._seen_own: dict[str, dict[str, float]] = {}
        self._counted = 0.0
        self._counting = asyncio.Lock()

    async def open(self, changed: Callable[[list[Member]], None]) -> None:
        """All hosts are there at once; whether they answer, their lines find out."""
        changed([Member(id=name, state="ready", url=url) for name, url in self._urls.items()])

    def dialer(self, member: Member, *, control: bool) -> Dialer:
        url = via_url(self._via, member.url)
        if url.startswith(("ws://", "wss://")):
            return SignedDialer(url, lambda: self._token_of(member.url))
        return dialer_for(url)

    def _token_of(self, url: str) -> str | None:
        if self._token is None or isinstance(self._token, str):
            return self._token
        return self._token.get(url)

    def token(self, node: str, ttl: float) -> str | None:
        """The token that was given for the host."""
        if node not in self._urls:
            raise UsageError(f"the fleet has no node {node!r}; see Fleet.status")
        return self._token_of(self._urls[node])

    # --- templates ------------------------------------------------------------------------

    async def deliver(self, node: Node, archive: Archive) -> str:
        """Send the archive over a line of its own, into a directory that goes with it."""
        if archive.descriptor is None:
            raise TemplateError(
                f"template {archive.digest} is not on node {node.id}, and this driver does not"
                " have it; give the directory",
                "missing",
            )
        line = DataLine(node)
        await line.begin()
        try:
            executor = FleetExecutor(line)
            place = await executor.temporary()
            if place is None:
                raise FleetError(f"the server of node {node.id} has no place for a template")
            name = f"{archive.digest}.tar"
            await _send(archive, executor.files, place, name)
        except BaseException:
            await line.close()
            raise
        uri = path_uri.to_uri(f"{place}/{name}".encode())
        self._sending[uri] = line
        return uri

    async def discard(self, node: Node, uri: str) -> None:
        line = self._sending.pop(uri, None)
        if line is not None:
            await line.close()  # the session ends, and its directory with it

    async def offer(self, archive: Archive) -> None:
        """Nothing keeps it but the hosts."""

    async def known_template(self, digest: str) -> bool:
        return False

    # --- quotas ---------------------------------------------------------------------------

    async def reserve(self, tenant: str, amounts: Amounts, *, exact: bool) -> None:
        """Count on the hosts: nothing else knows of other drivers.  Raises QuotaExceeded.

        Near a quota they are always asked, so every refusal is exact.
        """
        limits = self.quotas.get(tenant)
        if limits is None:
            return
        async with self._counting:
            if time.monotonic() - self._counted > _COUNT_SECONDS or self._is_close(tenant, limits):
                await self._count()
            check_quota(tenant, limits, self._used(tenant), amounts)
            _add(self._own.setdefault(tenant, _nothing()), amounts, 1)

    def take(self, tenant: str, amounts: Amounts) -> None:
        if tenant in self.quotas:
            _add(self._own.setdefault(tenant, _nothing()), amounts, 1)

    def give_back(self, tenant: str, amounts: Amounts) -> None:
        if tenant in self._own:
            _add(self._own[tenant], amounts, -1)

    def _used(self, tenant: str) -> dict[str, float]:
        """Sum the use of all drivers; of this one also what it makes and has adopted."""
        own, seen_own = self._own.get(tenant, _nothing()), self._seen_own.get(tenant, _nothing())
        seen = self._seen.get(tenant, _nothing())
        return {what: seen[what] + max(own[what], seen_own[what]) for what in seen}

    def _is_close(self, tenant: str, limits: Mapping[str, float]) -> bool:
        used = self._used(tenant)
        return any(used[what] >= limit / 4 or limit < _FEW for what, limit in limits.items())

    async def _count(self) -> None:
        seen: dict[str, dict[str, float]] = {}
        own: dict[str, dict[str, float]] = {}

        async def one(node: Node) -> None:
            try:
                listed = await node.list()
            except HandrailError:
                return
            for entry in listed.workspaces:
                counts = own if entry.owner == self._owner else seen
                amounts = Amounts(entry.cpu_millis, entry.memory_bytes)
                _add(counts.setdefault(entry.tenant, _nothing()), amounts, 1)

        await asyncio.gather(*(one(node) for node in self.nodes.values() if node.state == "ready"))
        self._seen, self._seen_own, self._counted = seen, own, time.monotonic()

    # --- the rest -------------------------------------------------------------------------

    def demand(self, amounts: Amounts) -> None:
        """A list of hosts does not grow."""

    def may_grow(self, amounts: Amounts) -> bool:
        return False

    def too_small(self, amounts: Amounts) -> str:
        return ""  # no host comes later

    async def logs(self, node: str, lines: int) -> str:
        raise FleetError(
            f"the logs of host {node} are where its service writes them; handrail did not start it"
        )

    async def metrics(self, node: Node) -> str:
        """By HTTP; a host that is reached by ssh offers none."""
        from handrail.fleet.metrics import fetch

        url = via_url(self._via, node.member.url)
        if not url.startswith(("ws://", "wss://")):
            return ""
        return await asyncio.to_thread(fetch, url, self._token_of(node.member.url), None)

    async def down(self) -> None:
        """The servers are not ours to end; the fleet has ended their workspaces."""

    async def close(self, *, ends: bool) -> None:
        for line in self._sending.values():
            await line.leave()
        self._sending.clear()


async def _send(archive: Archive, files: Files, place: str, name: str) -> None:
    """Write an archive to a file there, some parts at a time; raises FilesError."""
    from handrail.executor.trees.copy_between_machines import WINDOW, Side
    from handrail.executor.trees.listed import BATCH_BYTES
    from handrail.filesystem.trees.entry import Change

    trees = Side(files, place).trees
    stage, path = token_hex(8), name.encode()

    async def write(change: Change, data: bytes) -> None:
        (problem,) = await trees.change(place, [change], data)
        if problem is not None:
            raise problem

    async def part(offset: int) -> None:
        data = await asyncio.to_thread(archive.read, BATCH_BYTES, offset)
        change = Change(path, "part", length=len(data), offset=offset, stage=stage)
        await write(change, data)

    await part(0)  # makes the stage
    for first in range(BATCH_BYTES, archive.size, BATCH_BYTES * WINDOW):
        last = min(first + BATCH_BYTES * WINDOW, archive.size)
        await asyncio.gather(*(part(offset) for offset in range(first, last, BATCH_BYTES)))
    finish = Change(path, "finish", mode=0o600, modified_ns=0, offset=archive.size, stage=stage)
    await write(finish, b"")


def _nothing() -> dict[str, float]:
    return {"workspaces": 0.0, "cpus": 0.0, "memory": 0.0}


def _add(used: dict[str, float], amounts: Amounts, sign: int) -> None:
    used["workspaces"] += sign * amounts.workspaces
    used["cpus"] += sign * amounts.cpu_millis / 1000
    used["memory"] += sign * amounts.memory_bytes


def check_quota(
    tenant: str, limits: Mapping[str, float], used: Mapping[str, float], amounts: Amounts
) -> None:
    """Raise QuotaExceeded if this is too much."""
    asked = {
        "workspaces": amounts.workspaces,
        "cpus": amounts.cpu_millis / 1000,
        "memory": amounts.memory_bytes,
    }
    for what, limit in limits.items():
        if used[what] + asked[what] > limit + 1e-9:
            raise QuotaExceeded(tenant, what, limit, used[what])


def _host_id(url: str, taken: Mapping[str, str]) -> str:
    if not isinstance(url, str) or not url.startswith(("ws://", "wss://", "ssh://")):
        raise UsageError(f"a host is ws://, wss:// or ssh://, not {url!r}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL of a host: {error}") from None
    if not host:
        raise UsageError(f"{url!r} names no host")
    found = host if port is None else f"{host}:{port}"
    if found in taken:
        raise UsageError(f"the host {found} is named twice")
    return found
