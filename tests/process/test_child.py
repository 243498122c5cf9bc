"""One child through a launcher: every byte, in order, and its end."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import signal
import struct
import termios
from functools import cache
from pathlib import Path

import pytest
from keeper.watching import LIMIT, alive, descriptors, exists, status

from handrail.errors import StdinClosed
from handrail.process import child as child_module
from handrail.process.child import Child
from handrail.process.output_log import RETENTION_BYTES
from handrail.process.spec import ExitKind
from handrail.process.spool import Spool

from .workshop import Recorder, Run, Workshop, python, sh, spec

BOTH = pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])


@cache
def _numbers(last: int, end: bytes = b"\n") -> bytes:
    """What ``seq 1 last`` writes."""
    return b"".join(b"%d%b" % (n, end) for n in range(1, last + 1))


# --- output --------------------------------------------------------------------------------------


def test_twenty_megabytes_arrive_exactly(run_everywhere: Run) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.done(spec("seq", "1", "2700000"))
        wanted = _numbers(2_700_000)
        assert len(wanted) > 20_000_000
        assert sink.out == wanted
        assert child.log.bytes_total == len(wanted)
        assert sink.kinds[-2:] == ["exited", "closed"]
        # What is retained is the newest MiB, and readable.
        page = child.log.read(0, None)
        kept = b"".join(child.read_chunk(chunk) for chunk in page.chunks)
        assert wanted.endswith(kept)
        assert RETENTION_BYTES - 65536 < len(kept) <= RETENTION_BYTES
        assert child.log.omitted(0)[0] == len(wanted) - len(kept)

    run_everywhere(main)


def test_two_streams_are_kept_apart(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        _, sink = await shop.done(sh("seq 1 300000 & seq 300001 600000 >&2; wait"))
        assert sink.out == _numbers(300_000)
        assert sink.out + sink.err == _numbers(600_000)

    run(main)


def test_megabytes_through_a_terminal_arrive_exactly(run_everywhere: Run) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.done(spec("seq", "1", "400000", tty=True))
        assert sink.tty == _numbers(400_000, b"\r\n")
        assert len(sink.tty) > 2 * 1024 * 1024
        page = child.log.read(0, None)
        kept = b"".join(child.read_chunk(chunk) for chunk in page.chunks)
        assert sink.tty.endswith(kept)

    run_everywhere(main)


def test_no_sink_loses_nothing_that_is_retained(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        child = await shop.start(spec("seq", "1", "500000"))
        await shop.finished(child)
        wanted = _numbers(500_000)
        kept = b"".join(child.read_chunk(c) for c in child.log.read(0, None).chunks)
        assert wanted.endswith(kept)
        assert child.log.bytes_total == len(wanted)
        assert child.log.omitted(0)[0] + len(kept) == len(wanted)

    run(main)


@BOTH
def test_a_sink_that_does_not_keep_up_stops_the_child(run_everywhere: Run, tty: bool) -> None:
    async def main(shop: Workshop) -> None:
        last = 250_000 if tty else 2_700_000
        sink = Recorder()
        child = await shop.start(spec("seq", "1", str(last), tty=tty), sink)
        await shop.until(lambda: child.log.bytes_total > 100_000, "it runs")
        sink.ready = False
        await shop.until(lambda: sink.stalled == [child], "we are told once")
        taken = child.log.bytes_total
        await shop.until(lambda: status(child.pid)["State"][0] == "S", "the child waits")
        fd = child.streams[0].fd
        waiting = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
        assert waiting > 0
        # Others are not held up by it.
        _, other = await shop.done(sh("echo other"))
        assert other.out == b"other\n"
        assert child.log.bytes_total == taken
        assert child.running
        assert sink.stalled == [child]
        sink.resume()
        await shop.finished(child)
        stream = sink.tty if tty else sink.out
        assert stream == _numbers(last, b"\r\n" if tty else b"\n")
        assert sink.kinds[-2:] == ["exited", "closed"]

    run_everywhere(main)


def test_a_sink_that_comes_and_goes_all_the_time(run: Run) -> None:
    async def main(shop: Workshop) -> None:
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

    run(main)


def test_exit_while_the_sink_is_not_ready(run: Run) -> None:
    """The exit is told at once; what is in the pipes comes when it is wanted, numbered after."""

    async def main(shop: Workshop) -> None:
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

    run(main)


def test_detaching_lets_a_blocked_child_go_on(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        sink = Recorder(ready=False)
        child = await shop.start(spec("seq", "1", "100000"), sink)
        await shop.until(lambda: child.blocked, "it waits")
        child.sink = None
        child.resume()
        await shop.finished(child)
        assert child.log.bytes_total == len(_numbers(100_000))
        assert sink.events == []

    run(main)


@BOTH
def test_output_before_the_exit_is_numbered_before_it(run: Run, tty: bool) -> None:
    async def main(shop: Workshop) -> None:
        script = "echo out; [ -t 2 ] || echo err >&2; exit 7"
        ends = await asyncio.gather(*(shop.done(sh(script, tty=tty)) for _ in range(60)))
        for child, sink in ends:
            assert sink.kinds[-2:] == ["exited", "closed"]
            assert sink.tty + sink.out == (b"out\r\n" if tty else b"out\n")
            assert sink.err == (b"" if tty else b"err\n")
            assert child.exit is not None
            assert child.exit.code == 7

    run(main)


def test_a_full_large_pipe_at_the_exit_is_numbered_first(run: Run) -> None:
    """Also when the child has made its pipe as large as it may, and we are late."""

    async def main(shop: Workshop) -> None:
        script = (
            "import fcntl, os\n"
            "size = fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)\n"
            "os.write(1, b'x' * size)\n"
        )
        sink = Recorder(ready=False)
        child = await shop.start(python(script), sink)
        await shop.until(lambda: child.blocked, "its output waits")
        await shop.until(lambda: status(child.pid).get("State", "Z")[0] in "ZX", "it has ended")
        if child.running:  # the news of it is on the way; from now on we listen
            sink.ready = True
        await shop.exited(child)
        sink.resume()
        await shop.finished(child)
        assert len(sink.out) == 1 << 20

    run(main)


@BOTH
def test_late_output_of_a_grandchild(run: Run, tmp_path: Path, tty: bool) -> None:
    async def main(shop: Workshop) -> None:
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
        assert child.log.closed_seq == 4

    run(main)


def test_streams_that_end_long_before_the_child(run_everywhere: Run, tmp_path: Path) -> None:
    async def main(shop: Workshop) -> None:
        script = "echo x; exec 1>&- 2>&-; while ! [ -e gate ]; do sleep 0.01; done; exit 9"
        child, sink = await shop.record(sh(script, cwd=str(tmp_path)))
        await shop.until(lambda: all(s.ended for s in child.streams), "both have ended")
        assert child.running
        assert not child.closed
        (tmp_path / "gate").touch()
        await shop.finished(child)
        assert sink.kinds == ["stdout", "exited", "closed"]

    run_everywhere(main)


def test_a_silent_child_costs_no_spool(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.done(sh("exit 0"))
        assert sink.kinds == ["exited", "closed"]
        assert all(stream.spool is None for stream in child.streams)

    run(main)


# --- ends ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("script", "code", "name"),
    [
        ("exit 0", 0, None),
        ("exit 255", 255, None),
        ("kill -KILL $$", 137, "SIGKILL"),
        ("kill -TERM $$", 143, "SIGTERM"),
        ("kill -INT $$", 130, "SIGINT"),
        ("kill -HUP $$", 129, "SIGHUP"),
    ],
)
def test_exit_codes_are_the_same_on_pipes_and_terminals(
    run: Run, tty: bool, script: str, code: int, name: str | None
) -> None:
    async def main(shop: Workshop) -> None:
        child, _ = await shop.done(sh(script, tty=tty))
        assert child.exit is not None
        assert (child.exit.code, child.exit.signal) == (code, name)
        assert child.exit.kind is (ExitKind.EXITED if name is None else ExitKind.SIGNALED)
        assert not child.running
        assert not exists(child.pid)

    run(main)


def test_usage(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        child, _ = await shop.done(python("import time\nwhile time.process_time() < 0.05: pass"))
        assert child.exit is not None
        usage = child.exit.usage
        assert usage is not None
        assert usage.user_ms + usage.system_ms >= 49
        assert usage.wall_ms >= usage.user_ms
        assert usage.max_rss_bytes > 1 << 20

    run(main)


@BOTH
def test_kill_is_terminated_and_137(run: Run, tty: bool) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.record(sh("trap '' TERM HUP; echo ready; sleep 1000", tty=tty))
        await shop.said(child, sink, b"ready")
        await child.kill()
        await shop.finished(child)
        assert child.exit is not None
        assert (child.exit.kind, child.exit.code) == (ExitKind.TERMINATED, 137)

    run(main)


@BOTH
def test_end_with_grace_lets_the_child_clean_up(run: Run, tty: bool) -> None:
    async def main(shop: Workshop) -> None:
        script = "trap 'echo cleaning; exit 12' TERM; trap '' HUP; echo ready; "
        script += "while :; do sleep 0.01; done"
        child, sink = await shop.record(sh(script, tty=tty))
        await shop.said(child, sink, b"ready")
        await child.end(LIMIT)
        await shop.finished(child)
        assert b"cleaning" in sink.out + sink.tty
        assert child.exit is not None
        assert (child.exit.kind, child.exit.code) == (ExitKind.TERMINATED, 12)

    run(main)


def test_end_hangs_up_a_terminal_first(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        script = "trap 'echo hung up' HUP; trap 'exit 3' TERM; echo ready; "
        script += "while :; do sleep 0.01; done"
        child, sink = await shop.record(sh(script, tty=True))
        await shop.said(child, sink, b"ready")
        await child.end(LIMIT)
        await shop.finished(child)
        assert b"hung up" in sink.tty

    run(main)


@BOTH
def test_end_kills_after_the_grace(run: Run, tty: bool) -> None:
    async def main(shop: Workshop) -> None:
        script = "trap '' TERM HUP; setsid sleep 1000 & echo ready $!; wait; sleep 1000"
        child, sink = await shop.record(sh(script, tty=tty))
        await shop.said(child, sink, b"ready")
        await shop.until(lambda: (sink.out + sink.tty).endswith(b"\n"), "the whole line")
        escaped = int((sink.out + sink.tty).split()[1])
        await child.end(0.05)
        await shop.finished(child)
        assert child.exit is not None
        assert child.exit.code == 137
        await shop.until(lambda: not exists(escaped), "and who escaped as well")

    run(main)


def test_signal_goes_to_the_group_and_after_the_exit_to_nobody(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.record(
            sh("trap 'echo int; exit 1' INT; echo ready; while :; do sleep 0.01; done")
        )
        await shop.said(child, sink, b"ready")
        assert await child.signal(signal.SIGINT) == 1
        await shop.finished(child)
        assert sink.out == b"ready\nint\n"
        assert child.exit is not None
        assert child.exit.kind is ExitKind.EXITED
        assert await child.signal(signal.SIGINT) == 0

    run(main)


def test_what_the_leader_left_is_reached_by_tree(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.record(sh("sleep 1000 & echo $!"))
        await shop.exited(child)
        left = int(sink.out)
        assert alive(left)
        assert await shop.launcher.orphans() == {child.number: 1}
        assert await child.signal(signal.SIGTERM) == 0
        assert alive(left)
        assert await child.signal(signal.SIGTERM, tree=True) == 1
        await shop.finished(child)
        await shop.until(lambda: not exists(left), "it is gone")

    run(main)


def test_closed_never_before_exited_however_fast(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        scripts = ["true", "echo x", "exec 1>&- 2>&-", "echo x >&2; kill -9 $$"]
        ends = await asyncio.gather(*(shop.done(sh(s)) for s in scripts * 30))
        for child, sink in ends:
            assert sink.kinds.count("exited") == sink.kinds.count("closed") == 1
            assert sink.kinds.index("exited") < sink.kinds.index("closed")
            assert child.log.next_seq == len(sink.events) + 1

    run(main)


# --- input ---------------------------------------------------------------------------------------


def _put(child: Child, data: bytes) -> asyncio.Future[None] | None:
    return child.write(data, lambda: True)


def test_stdin_arrives_exactly_and_ends(run_everywhere: Run) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.record(spec("cat", pipe_stdin=True))
        data = os.urandom(3 << 20)
        for at in range(0, len(data), 50_000):
            turn = _put(child, data[at : at + 50_000])
            if turn is not None:
                await turn
        child.close_stdin()
        assert not child.takes_input
        with pytest.raises(StdinClosed):
            _put(child, b"more")
        await shop.finished(child)
        assert sink.out == data
        assert child.exit is not None
        assert child.exit.code == 0

    run_everywhere(main)


def test_terminal_takes_input_and_its_end_of_file_key(run_everywhere: Run) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.record(spec("cat", tty=True))
        _put(child, b"typed\n")
        await shop.said(child, sink, b"typed\r\ntyped\r\n")
        child.close_stdin()
        await shop.finished(child)
        assert child.exit is not None
        assert child.exit.code == 0
        assert not child.takes_input

    run_everywhere(main)


def test_more_than_a_terminal_takes_at_once(run_everywhere: Run) -> None:
    """Reading and writing wait on the same descriptor."""

    async def main(shop: Workshop) -> None:
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

    run_everywhere(main)


def test_no_stdin(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.record(spec("cat"))
        assert not child.takes_input
        with pytest.raises(StdinClosed):
            _put(child, b"x")
        child.close_stdin()
        await shop.finished(child)
        assert sink.out == b""

    run(main)


def test_stdin_that_nobody_reads_holds_up_nobody(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        deaf = await shop.start(spec("sleep", "1000", pipe_stdin=True))
        turns = [_put(deaf, b"x" * 65536) for _ in range(200)]
        waiting = [turn for turn in turns if turn is not None]
        assert waiting
        _, other = await shop.done(sh("echo other"))
        assert other.out == b"other\n"
        assert not any(turn.done() for turn in waiting)
        await deaf.kill()
        await shop.finished(deaf)
        # As on the wire: after the exit writes are accepted and their bytes vanish.
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), StdinClosed}

    run(main)


def test_child_that_closes_its_stdin(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.record(sh("exec 0<&-; echo ready; sleep 1000", pipe_stdin=True))
        await shop.said(child, sink, b"ready")
        for _ in range(5):
            assert _put(child, b"nobody\n" * 10_000) is None
        assert child.running

    run(main)


def test_resize(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.01; done"
        child, sink = await shop.record(sh(script, tty=True, rows=11, cols=22))
        await shop.said(child, sink, b"11 22\r\n")
        child.resize(33, 44)
        await shop.said(child, sink, b"33 44\r\n")
        await child.kill()
        await shop.finished(child)
        child.resize(1, 2)  # too late, and harmless

    run(main)


# --- descriptors ---------------------------------------------------------------------------------


@BOTH
def test_no_descriptor_for_the_spool_makes_the_child_wait(run_everywhere: Run, tty: bool) -> None:
    async def main(shop: Workshop) -> None:
        child, sink = await shop.record(
            sh("stty -echo 2>/dev/null; read x; echo one; exit 3", tty=tty, pipe_stdin=not tty)
        )
        _put(child, b"")  # its input has a place before they run out
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        top = max(descriptors()) + 1
        fillers = [os.dup(0) for _ in range(top - len(descriptors()))]
        resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
        try:
            _put(child, b"\n")
            await shop.exited(child)
            assert child.exit is not None
            assert child.exit.code == 3
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in fillers:
                os.close(fd)
        await shop.finished(child)
        assert (sink.out + sink.tty).endswith(b"one\r\n" if tty else b"one\n")

    run_everywhere(main)


@BOTH
def test_no_room_in_the_spool_makes_the_child_wait(
    run: Run, tty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the exit nor a byte is lost, and the loop does not spin."""

    async def main(shop: Workshop) -> None:
        turns = 0
        fill = Spool.fill

        def full(spool: Spool, source: int) -> int:
            nonlocal turns
            turns += 1
            if turns == 3:  # some of it is in the spool, some may be staged
                raise OSError(errno.ENOSPC, "no room")
            return fill(spool, source)

        monkeypatch.setattr(Spool, "fill", full)
        monkeypatch.setattr(child_module, "_RETRY_SECONDS", 0.01)
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

    run(main)


def test_discard_of_a_child_in_every_state(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        before, keeper = descriptors(), await shop.keeper_fds()
        for how in ({}, {"tty": True}, {"pipe_stdin": True}):
            for script in ("sleep 1000", "echo x; sleep 1000", "echo x", "sleep 1000 & echo x"):
                child, sink = await shop.record(sh(script, **how))
                if "x" in script:
                    await shop.said(child, sink, b"x")
                if "1000" not in script or "&" in script:
                    await shop.exited(child)
                await child.kill()
                child.discard()
                assert await asyncio.wait_for(child.changed(0.001), LIMIT) is None
        shop.table._entries.clear()
        await shop.until(lambda: descriptors() == before, "ours are closed")
        assert await shop.keeper_fds() == keeper

    run(main)


def test_changed_returns_by_itself(run: Run) -> None:
    async def main(shop: Workshop) -> None:
        child = await shop.start(spec("sleep", "1000"))
        await child.changed(0.001)
        assert child._waiters == []
        waiting = asyncio.create_task(child.changed(LIMIT))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert child._waiters == []

    run(main)
