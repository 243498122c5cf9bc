"""What the server of a share holds, asked by its supervisor."""

from __future__ import annotations

import msgspec

from handrail.executor.client.session import ExecServerClient
from handrail.fleet.dialing import SignedDialer
from handrail.fleet.shares import tokens
from handrail.fleet.shares.server import ShareOptions
from handrail.protocol.workspace import ListResult
from handrail.transport.tls import pinned_context

_SECONDS = 10.0


async def usage_of(
    url: str, options: ShareOptions, certificate: str
) -> list[tuple[str, str, int, float, int]]:
    """The workspaces by tenant and owner: number, processors, bytes of memory.

    Raises HandrailError and OSError.
    """
    dialer = SignedDialer(
        url,
        lambda: tokens.sign(options.key, options.share, "", 60.0),
        pinned_context(certificate) if certificate else None,
    )
    client = await ExecServerClient.connect(dialer, detach_ttl=0.0, request_timeout=_SECONDS)
    try:
        raw = await client.call("workspace/list", {"owner": None, "labels": {}}, timeout=_SECONDS)
    finally:
        await client.close()
    found: dict[tuple[str, str], list[float]] = {}
    for entry in msgspec.convert(raw, ListResult).workspaces:
        counts = found.setdefault((entry.tenant, entry.owner), [0, 0.0, 0])
        counts[0] += 1
        counts[1] += entry.cpu_millis / 1000
        counts[2] += entry.memory_bytes
    return [
        (tenant, owner, int(count), cpus, int(memory))
        for (tenant, owner), (count, cpus, memory) in found.items()
    ]
