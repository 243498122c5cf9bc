"""What children take: input, sizes, and whoever waits for them."""

from __future__ import annotations

import asyncio
import os

import pytest

from handrail.errors import StdinClosed
from handrail.process.child import Child
from tests.process.workshop import Workshop, sh, spec
from tests.support.eventually import LIMIT


def _put(child: Child, data: bytes) -> asyncio.Future[None] | None:
    return child.stdin.write(data, lambda: True)


@pytest.mark.both_loops
async def test_stdin_arrives_exactly_and_ends(shop: Workshop) -> None:
    child, sink = await shop.record(spec("cat", pipe_stdin=True))
    data = os.urandom(3 << 20)
    for at in range(0, len(data), 50_000):
        turn = _put(child, data[at : at + 50_000])
        if turn is not None:
            await turn
    child.stdin.finish()
    assert not child.stdin.takes_input
    with pytest.raises(StdinClosed):
        _put(child, b"more")
    await shop.finished(child)
    assert sink.out == data
    assert child.exit is not None
    assert child.exit.code == 0


@pytest.mark.both_loops
async def test_terminal_takes_input_and_its_end_of_file_key(shop: Workshop) -> None:
    child, sink = await shop.record(spec("cat", tty=True))
    _put(child, b"typed\n")
    await shop.said(child, sink, b"typed\r\ntyped\r\n")
    child.stdin.finish()
    await shop.finished(child)
    assert child.exit is not None
    assert child.exit.code == 0
    assert not child.stdin.takes_input


@pytest.mark.both_loops
async def test_more_than_a_terminal_takes_at_once(shop: Workshop) -> None:
    """Reading and writing wait on the same descriptor."""

    lines = b"".join(b"%06d\n" % n for n in range(20_000))
    script = "stty -echo; echo ready; head -n 20000 | cksum"
    child, sink = await shop.record(sh(script, tty=True))
    await shop.said(child, sink, b"ready")
    for at in range(0, len(lines), 7000):
        turn = _put(child, lines[at : at + 7000])
        if turn is not None:
            await turn
    await shop.finished(child)
    _, reference = await shop.done(sh("seq -f %06.0f 0 19999 | cksum"))
    assert sink.tty.split()[1:] == reference.out.split()


async def test_no_stdin(shop: Workshop) -> None:
    child, sink = await shop.record(spec("cat"))
    assert not child.stdin.takes_input
    with pytest.raises(StdinClosed):
        _put(child, b"x")
    child.stdin.finish()
    await shop.finished(child)
    assert sink.out == b""


async def test_stdin_that_nobody_reads_holds_up_nobody(shop: Workshop) -> None:
    deaf = await shop.start(spec("sleep", "1000", pipe_stdin=True))
    turns = [_put(deaf, b"x" * 65536) for _ in range(200)]
    waiting = [turn for turn in turns if turn is not None]
    assert waiting
    _, other = await shop.done(sh("echo other"))
    assert other.out == b"other\n"
    assert not any(turn.done() for turn in waiting)
    await deaf.ending.kill()
    await shop.finished(deaf)
    # As on the wire: after the exit writes are accepted and their bytes vanish.
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), StdinClosed}


async def test_child_that_closes_its_stdin(shop: Workshop) -> None:
    child, sink = await shop.record(sh("exec 0<&-; echo ready; sleep 1000", pipe_stdin=True))
    await shop.said(child, sink, b"ready")
    for _ in range(5):
        assert _put(child, b"nobody\n" * 10_000) is None
    assert child.running


async def test_resize(shop: Workshop) -> None:
    script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.01; done"
    child, sink = await shop.record(sh(script, tty=True, rows=11, cols=22))
    await shop.said(child, sink, b"11 22\r\n")
    child.output.resize(33, 44)
    await shop.said(child, sink, b"33 44\r\n")
    await child.ending.kill()
    await shop.finished(child)
    child.output.resize(1, 2)  # too late, and harmless


async def test_changed_returns_by_itself(shop: Workshop) -> None:
    child = await shop.start(spec("sleep", "1000"))
    await child.changed(0.001)
    assert child._waiters == []
    waiting = asyncio.create_task(child.changed(LIMIT))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert child._waiters == []
