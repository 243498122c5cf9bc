"""How children end, and how they are asked to."""

from __future__ import annotations

import asyncio
import signal

import pytest

from handrail.process.exit_status import ExitKind
from tests.process.workshop import Workshop, python, sh
from tests.support.eventually import LIMIT
from tests.support.processes import alive, descriptors, exists

BOTH = pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])


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
async def test_exit_codes_are_the_same_on_pipes_and_terminals(
    shop: Workshop, tty: bool, script: str, code: int, name: str | None
) -> None:
    child, _ = await shop.done(sh(script, tty=tty))
    assert child.exit is not None
    assert (child.exit.code, child.exit.signal) == (code, name)
    assert child.exit.kind is (ExitKind.EXITED if name is None else ExitKind.SIGNALED)
    assert not child.running
    assert not exists(child.pid)


async def test_usage(shop: Workshop) -> None:
    child, _ = await shop.done(python("import time\nwhile time.process_time() < 0.05: pass"))
    assert child.exit is not None
    usage = child.exit.usage
    assert usage is not None
    assert usage.user_ms + usage.system_ms >= 49
    assert usage.wall_ms >= usage.user_ms
    assert usage.max_rss_bytes > 1 << 20


@BOTH
async def test_kill_is_terminated_and_137(shop: Workshop, tty: bool) -> None:
    child, sink = await shop.record(sh("trap '' TERM HUP; echo ready; sleep 1000", tty=tty))
    await shop.said(child, sink, b"ready")
    await child.ending.kill()
    await shop.finished(child)
    assert child.exit is not None
    assert (child.exit.kind, child.exit.code) == (ExitKind.TERMINATED, 137)


@BOTH
async def test_end_with_grace_lets_the_child_clean_up(shop: Workshop, tty: bool) -> None:
    script = "trap 'echo cleaning; exit 12' TERM; trap '' HUP; echo ready; "
    script += "while :; do sleep 0.01; done"
    child, sink = await shop.record(sh(script, tty=tty))
    await shop.said(child, sink, b"ready")
    await child.end(LIMIT)
    await shop.finished(child)
    assert b"cleaning" in sink.out + sink.tty
    assert child.exit is not None
    assert (child.exit.kind, child.exit.code) == (ExitKind.TERMINATED, 12)


async def test_end_hangs_up_a_terminal_first(shop: Workshop) -> None:
    script = "trap 'echo hung up' HUP; trap 'exit 3' TERM; echo ready; "
    script += "while :; do sleep 0.01; done"
    child, sink = await shop.record(sh(script, tty=True))
    await shop.said(child, sink, b"ready")
    await child.end(LIMIT)
    await shop.finished(child)
    assert b"hung up" in sink.tty


@BOTH
async def test_end_kills_after_the_grace(shop: Workshop, tty: bool) -> None:
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


async def test_signal_goes_to_the_group_and_after_the_exit_to_nobody(shop: Workshop) -> None:
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


async def test_what_the_leader_left_is_reached_by_tree(shop: Workshop) -> None:
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


async def test_closed_never_before_exited_however_fast(shop: Workshop) -> None:
    scripts = ["true", "echo x", "exec 1>&- 2>&-", "echo x >&2; kill -9 $$"]
    ends = await asyncio.gather(*(shop.done(sh(s)) for s in scripts * 30))
    for child, sink in ends:
        assert sink.kinds.count("exited") == sink.kinds.count("closed") == 1
        assert sink.kinds.index("exited") < sink.kinds.index("closed")
        assert child.output.log.next_seq == len(sink.events) + 1


async def test_discard_of_a_child_in_every_state(shop: Workshop) -> None:
    before, keeper = descriptors(), await shop.keeper_fds()
    for how in ({}, {"tty": True}, {"pipe_stdin": True}):
        for script in ("sleep 1000", "echo x; sleep 1000", "echo x", "sleep 1000 & echo x"):
            child, sink = await shop.record(sh(script, **how))
            if "x" in script:
                await shop.said(child, sink, b"x")
            if "1000" not in script or "&" in script:
                await shop.exited(child)
            await child.ending.kill()
            child.discard()
            assert await asyncio.wait_for(child.changed(0.001), LIMIT) is None
    shop.table._entries.clear()
    await shop.until(lambda: descriptors() == before, "ours are closed")
    assert await shop.keeper_fds() == keeper
