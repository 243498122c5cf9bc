"""What children say, through real pipes and terminals: exact, in order, never too much."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import struct
import termios
from functools import cache
from pathlib import Path

import pytest

from handrail.process.output import stream as stream_module
from handrail.process.output.output_log import RETENTION_BYTES
from handrail.process.output.spool import Spool
from tests.process.workshop import Recorder, Workshop, python, sh, spec
from tests.support.eventually import LIMIT
from tests.support.processes import descriptors, status

BOTH = pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])


@cache
def _numbers(last: int, end: bytes = b"\n") -> bytes:
    """What ``seq 1 last`` writes."""
    return b"".join(b"%d%b" % (n, end) for n in range(1, last + 1))


@pytest.mark.both_loops
async def test_twenty_megabytes_arrive_exactly(shop: Workshop) -> None:
    child, sink = await shop.done(spec("seq", "1", "2700000"))
    wanted = _numbers(2_700_000)
    assert len(wanted) > 20_000_000
    assert sink.out == wanted
    assert child.output.log.bytes_total == len(wanted)
    assert sink.kinds[-2:] == ["exited", "closed"]
    # What is retained is the newest MiB, and readable.
    page = child.output.log.read(0, None)
    kept = b"".join(child.output.read_chunk(chunk) for chunk in page.chunks)
    assert wanted.endswith(kept)
    assert RETENTION_BYTES - 65536 < len(kept) <= RETENTION_BYTES
    assert child.output.log.omitted(0)[0] == len(wanted) - len(kept)


async def test_two_streams_are_kept_apart(shop: Workshop) -> None:
    _, sink = await shop.done(sh("seq 1 300000 & seq 300001 600000 >&2; wait"))
    assert sink.out == _numbers(300_000)
    assert sink.out + sink.err == _numbers(600_000)


@pytest.mark.both_loops
async def test_megabytes_through_a_terminal_arrive_exactly(shop: Workshop) -> None:
    child, sink = await shop.done(spec("seq", "1", "400000", tty=True))
    assert sink.tty == _numbers(400_000, b"\r\n")
    assert len(sink.tty) > 2 * 1024 * 1024
    page = child.output.log.read(0, None)
    kept = b"".join(child.output.read_chunk(chunk) for chunk in page.chunks)
    assert sink.tty.endswith(kept)


async def test_no_sink_loses_nothing_that_is_retained(shop: Workshop) -> None:
    child = await shop.start(spec("seq", "1", "500000"))
    await shop.finished(child)
    wanted = _numbers(500_000)
    kept = b"".join(child.output.read_chunk(c) for c in child.output.log.read(0, None).chunks)
    assert wanted.endswith(kept)
    assert child.output.log.bytes_total == len(wanted)
    assert child.output.log.omitted(0)[0] + len(kept) == len(wanted)


@BOTH
@pytest.mark.both_loops
async def test_a_sink_that_does_not_keep_up_stops_the_child(shop: Workshop, tty: bool) -> None:
    last = 250_000 if tty else 2_700_000
    sink = Recorder()
    child = await shop.start(spec("seq", "1", str(last), tty=tty), sink)
    await shop.until(lambda: child.output.log.bytes_total > 100_000, "it runs")
    sink.ready = False
    await shop.until(lambda: sink.stalled == [child], "we are told once")
    taken = child.output.log.bytes_total
    await shop.until(lambda: status(child.pid)["State"][0] == "S", "the child waits")
    fd = child.output.streams[0].fd
    waiting = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
    assert waiting > 0
    # Others are not held up by it.
    _, other = await shop.done(sh("echo other"))
    assert other.out == b"other\n"
    assert child.output.log.bytes_total == taken
    assert child.running
    assert sink.stalled == [child]
    sink.resume()
    await shop.finished(child)
    stream = sink.tty if tty else sink.out
    assert stream == _numbers(last, b"\r\n" if tty else b"\n")
    assert sink.kinds[-2:] == ["exited", "closed"]


async def test_a_sink_that_comes_and_goes_all_the_time(shop: Workshop) -> None:
    sink = Recorder()
    child = await shop.start(sh("seq 1 200000; seq 1 200000 >&2"), sink)
    async with asyncio.timeout(LIMIT):
        while not child.closed:
            sink.ready = False
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            sink.resume()
            await asyncio.sleep(0)
    assert sink.out == sink.err == _numbers(200_000)


async def test_exit_while_the_sink_is_not_ready(shop: Workshop) -> None:
    """The exit is told at once; what is in the pipes comes when it is wanted, numbered after."""

    sink = Recorder(ready=False)
    child = await shop.start(sh("echo out; echo err >&2; exit 4"), sink)
    await shop.exited(child)
    assert sink.kinds == ["exited"]
    assert not child.closed
    sink.resume()
    await shop.finished(child)
    assert sorted(sink.kinds[1:-1]) == ["stderr", "stdout"]
    assert (sink.out, sink.err) == (b"out\n", b"err\n")
    assert child.exit is not None
    assert child.exit.code == 4


async def test_detaching_lets_a_blocked_child_go_on(shop: Workshop) -> None:
    sink = Recorder(ready=False)
    child = await shop.start(spec("seq", "1", "100000"), sink)
    await shop.until(lambda: child.output.blocked, "it waits")
    child.sink = None
    child.output.resume()
    await shop.finished(child)
    assert child.output.log.bytes_total == len(_numbers(100_000))
    assert sink.events == []


@BOTH
async def test_output_before_the_exit_is_numbered_before_it(shop: Workshop, tty: bool) -> None:
    script = "echo out; [ -t 2 ] || echo err >&2; exit 7"
    ends = await asyncio.gather(*(shop.done(sh(script, tty=tty)) for _ in range(60)))
    for child, sink in ends:
        assert sink.kinds[-2:] == ["exited", "closed"]
        assert sink.tty + sink.out == (b"out\r\n" if tty else b"out\n")
        assert sink.err == (b"" if tty else b"err\n")
        assert child.exit is not None
        assert child.exit.code == 7


async def test_a_full_large_pipe_at_the_exit_is_numbered_first(shop: Workshop) -> None:
    """Also when the child has made its pipe as large as it may, and we are late."""

    script = (
        "import fcntl, os\n"
        "size = fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)\n"
        "os.write(1, b'x' * size)\n"
    )
    sink = Recorder(ready=False)
    child = await shop.start(python(script), sink)
    await shop.until(lambda: child.output.blocked, "its output waits")
    await shop.until(lambda: status(child.pid).get("State", "Z")[0] in "ZX", "it has ended")
    if child.running:  # the news of it is on the way; from now on we listen
        sink.ready = True
    await shop.exited(child)
    sink.resume()
    await shop.finished(child)
    assert len(sink.out) == 1 << 20


@BOTH
async def test_late_output_of_a_grandchild(shop: Workshop, tmp_path: Path, tty: bool) -> None:
    gate = tmp_path / "gate"
    script = "trap '' HUP; (while ! [ -e gate ]; do sleep 0.01; done; echo late) &"
    script += " echo early; exit 3"
    child, sink = await shop.record(sh(script, cwd=str(tmp_path), tty=tty))
    await shop.exited(child)
    assert not child.closed
    assert sink.kinds[-1] == "exited"
    gate.touch()
    await shop.finished(child)
    stream = "pty" if tty else "stdout"
    assert sink.kinds == [stream, "exited", stream, "closed"]
    assert (sink.tty + sink.out).split() == [b"early", b"late"]
    assert child.output.log.closed_seq == 4


@pytest.mark.both_loops
async def test_streams_that_end_long_before_the_child(shop: Workshop, tmp_path: Path) -> None:
    script = "echo x; exec 1>&- 2>&-; while ! [ -e gate ]; do sleep 0.01; done; exit 9"
    child, sink = await shop.record(sh(script, cwd=str(tmp_path)))
    await shop.until(lambda: all(s.ended for s in child.output.streams), "both have ended")
    assert child.running
    assert not child.closed
    (tmp_path / "gate").touch()
    await shop.finished(child)
    assert sink.kinds == ["stdout", "exited", "closed"]


async def test_a_silent_child_costs_no_spool(shop: Workshop) -> None:
    child, sink = await shop.done(sh("exit 0"))
    assert sink.kinds == ["exited", "closed"]
    assert all(stream.spool is None for stream in child.output.streams)


@BOTH
@pytest.mark.both_loops
async def test_no_descriptor_for_the_spool_makes_the_child_wait(shop: Workshop, tty: bool) -> None:
    child, sink = await shop.record(
        sh("stty -echo 2>/dev/null; read x; echo one; exit 3", tty=tty, pipe_stdin=not tty)
    )
    child.stdin.write(b"", lambda: True)  # its input has a place before they run out
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(descriptors()) + 1
    fillers = [os.dup(0) for _ in range(top - len(descriptors()))]
    resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
    try:
        child.stdin.write(b"\n", lambda: True)
        await shop.exited(child)
        assert child.exit is not None
        assert child.exit.code == 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)
    await shop.finished(child)
    assert (sink.out + sink.tty).endswith(b"one\r\n" if tty else b"one\n")


@BOTH
async def test_no_room_in_the_spool_makes_the_child_wait(
    shop: Workshop, tty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the exit nor a byte is lost, and the loop does not spin."""

    turns = 0
    fill = Spool.fill

    def full(spool: Spool, source: int) -> int:
        nonlocal turns
        turns += 1
        if turns == 3:  # some of it is in the spool, some may be staged
            raise OSError(errno.ENOSPC, "no room")
        return fill(spool, source)

    monkeypatch.setattr(Spool, "fill", full)
    monkeypatch.setattr(stream_module, "_RETRY_SECONDS", 0.01)
    child, sink = await shop.record(spec("seq", "1", "100000", tty=tty))
    await shop.finished(child)
    assert turns > 3
    stream = sink.tty if tty else sink.out
    assert stream == _numbers(100_000, b"\r\n" if tty else b"\n")
    turns = 2
    last, said = await shop.record(sh("echo x; exit 6", tty=tty))
    await shop.exited(last)
    assert last.exit is not None
    assert last.exit.code == 6
    await shop.finished(last)
    assert (said.out + said.tty).split() == [b"x"]
