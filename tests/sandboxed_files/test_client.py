from __future__ import annotations

import asyncio
import socket

import pytest

from handrail.errors import FilesError
from handrail.sandboxed_files import frames
from handrail.sandboxed_files.client import FileHelperClient


class Far:
    """The helper's end, played by the test."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.lost = 0
        self.link = FileHelperClient(theirs, asyncio.get_running_loop(), self._lost)
        self._reader = frames.FrameReader()
        self._frames: list[tuple[bytes, bytes]] = []

    def _lost(self) -> None:
        self.lost += 1

    async def next(self) -> tuple[list[object], bytes]:
        loop = asyncio.get_running_loop()
        while not self._frames:
            self._frames += self._reader.feed(await loop.sock_recv(self.ours, 1 << 16))
        head, body = self._frames.pop(0)
        return frames.decode_head(head), body

    async def answer(self, *head: object, body: bytes = b"") -> None:
        for piece in frames.encode(list(head), body):
            await asyncio.get_running_loop().sock_sendall(self.ours, piece)

    def close(self) -> None:
        self.link.close()
        self.ours.close()


async def test_answers_find_their_calls_in_any_order() -> None:
    far = Far()
    calls = [asyncio.create_task(far.link.call("op", [n], deadline=30)) for n in range(3)]
    asked = [(await far.next())[0] for _ in range(3)]
    for number, _, (argument,) in reversed(asked):  # type: ignore[misc]
        await far.answer(number, argument * 2, body=b"x" * argument)
    replies = await asyncio.gather(*calls)
    assert [(reply.result(), reply.body) for reply in replies] == [(0, b""), (2, b"x"), (4, b"xx")]
    far.close()


async def test_a_large_body_does_not_stop_the_loop() -> None:
    far = Far()
    body = bytes(range(256)) * 12_000
    call = asyncio.create_task(far.link.call("op", [], body, deadline=30))
    head, came = await far.next()
    assert came == body
    await far.answer(head[0], None, "no", "exists", "/x")
    with pytest.raises(FilesError, match="no") as raised:
        (await call).result()
    assert (raised.value.kind, raised.value.path) == ("exists", "/x")
    far.close()


async def test_a_call_is_given_up_at_its_deadline() -> None:
    far = Far()
    with pytest.raises(FilesError, match="was given up"):
        await far.link.call("op", [], deadline=0.01)
    assert far.link.hung == 1
    head, _ = await far.next()
    await far.answer(head[0], None)
    after = asyncio.create_task(far.link.call("op", [], deadline=30))
    await far.answer((await far.next())[0][0], "late is late")
    assert (await after).result() == "late is late"
    assert far.link.hung == 0
    far.close()


async def test_each_call_has_its_own_deadline() -> None:
    far = Far()
    long = asyncio.create_task(far.link.call("op", ["long"], deadline=30))
    head, _ = await far.next()
    for _ in range(2):
        with pytest.raises(FilesError, match=r"within 0\.01 s"):
            await far.link.call("op", [], deadline=0.01)
    await far.answer(head[0], "in time")
    assert (await long).result() == "in time"
    far.close()


@pytest.mark.parametrize("nonsense", [b"", b"\xff" * 8, b"\0\0\0\2\0\0\0\0{}"])
async def test_a_helper_that_is_lost_fails_its_calls(nonsense: bytes) -> None:
    far = Far()
    call = asyncio.create_task(far.link.call("op", [], deadline=30))
    await far.next()
    if nonsense:
        far.ours.send(nonsense)
    else:
        far.ours.close()
    with pytest.raises(FilesError, match="has ended"):
        await call
    assert (far.lost, far.link.alive) == (1, False)
    with pytest.raises(FilesError, match="has ended"):
        await far.link.call("op", [], deadline=30)
    far.close()
    assert far.lost == 1
