"""The ProxyCommand that git's ssh is given."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from handrail.network import variables

PROGRAM = Path(variables.__file__).with_name("tunnel_program.py")


@asynccontextmanager
async def proxy(answer: bytes, heads: list[bytes]) -> AsyncIterator[int]:
    """Gives each CONNECT this answer, and then says back what it is told."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def run(port: int, host: str, said: bytes) -> tuple[int | None, bytes, bytes]:
    words = ("-I", "-S", "-B", str(PROGRAM), "127.0.0.1", str(port), host, "22")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=pipe, stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate(said)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("host", "authority"),
    [("git.example", b"git.example:22"), ("2600:11::44", b"[2600:11::44]:22")],
)
async def test_both_ways_to_their_ends(host: str, authority: bytes) -> None:
    heads: list[bytes] = []
    data = bytes(range(256)) * 4096
    async with proxy(b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0-early\r\n", heads) as port:
        code, out, err = await run(port, host, data)
    assert (code, err) == (0, b"")
    assert out == b"SSH-2.0-early\r\n" + data
    assert heads == [b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (authority, authority)]


async def test_a_refusal_is_told() -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno!"
    async with proxy(refusal, []) as port:
        code, out, err = await run(port, "git.example", b"")
    assert (code, out) == (1, b"")
    assert err == b"HTTP/1.1 403 Forbidden: no!\n"
