"""Commands to their end: limits, signals, streams."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from handrail.executor.base import OutputKind
from handrail.orchestrator.audit import Outcome, RunEnded
from handrail.orchestrator.one_shot import KEEP, Command, run_command
from handrail.orchestrator.result import CommandTimedOut, KilledBySignal, normalise
from handrail.orchestrator.settings import Mode, SandboxMode, Settings
from handrail.policy.context import Approval
from tests.orchestrator.scripted import PATH, Room, played, sh
from tests.support.eventually import PATIENCE

FREE = Settings("/", Approval.NEVER, sandbox=SandboxMode(Mode.OFF))


def run(script: str, room: Room | None = None, **more: Any) -> Any:
    room = room or Room(FREE)
    command = Command(sh(script), PATH, **more)
    return played(room, lambda: run_command(room.orchestrator, room.executor, command))


def test_streams_are_apart_and_together() -> None:
    output = run("echo out; echo err >&2; exit 3")
    assert (output.stdout, output.stderr, output.aggregated) == (b"out\n", b"err\n", b"out\nerr\n")
    assert (output.exit_code, output.timed_out, output.omitted) == (3, False, 0)


def timed_out(script: str, make: Callable[[], Room]) -> tuple[Room, CommandTimedOut]:
    """Run one that prints something and then does not end, with enough time to print it."""
    for seconds in PATIENCE:
        room = make()
        with pytest.raises(CommandTimedOut) as caught:
            run(script, room, timeout=seconds)
        if caught.value.output.stdout:
            break
    return room, caught.value


def test_a_timeout_carries_the_output_and_is_never_retried() -> None:
    script = "echo 'Permission denied'; exec sleep 1000"
    room, late = timed_out(script, lambda: Room(Settings("/", Approval.ON_FAILURE)))
    output = normalise(late)
    assert (output.exit_code, output.timed_out) == (124, True)
    assert output.stdout == b"Permission denied\n"
    assert len(room.executor.requests) == 1
    assert room.scribe.questions == []
    ended = room.trail.events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.outcome is Outcome.TIMED_OUT


def test_a_timeout_ends_the_whole_tree() -> None:
    _, late = timed_out("sleep 1000 & echo $!; wait", lambda: Room(FREE))
    pid = int(late.output.stdout)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_signal_is_an_error_with_what_was_printed() -> None:
    with pytest.raises(KilledBySignal, match="SIGKILL") as caught:
        run("echo a; kill -9 $$")
    assert caught.value.output.stdout == b"a\n"
    assert caught.value.output.exit_code == 137


def test_more_than_is_kept_is_read_and_counted() -> None:
    output = run(f"head -c {KEEP + 1000} /dev/zero; echo end >&2")
    assert (len(output.stdout), output.omitted) == (KEEP, 1000)
    assert output.stderr == b"end\n"
    assert len(output.aggregated) == KEEP
    assert output.aggregated.endswith(b"end\n")


def test_stdin_is_at_its_end() -> None:
    assert run("cat; echo $?").stdout == b"0\n"


def test_output_is_told_in_small_pieces() -> None:
    pieces: list[tuple[OutputKind, bytes]] = []
    run("head -c 20000 /dev/zero", on_output=lambda kind, data: pieces.append((kind, data)))
    assert sum(len(data) for _, data in pieces) == 20_000
    assert max(len(data) for _, data in pieces) <= 8192


def test_what_the_callback_raises_ends_the_command_and_is_raised() -> None:
    def fails(kind: OutputKind, data: bytes) -> None:
        raise ValueError(data.decode())

    with pytest.raises(ValueError, match="begun"):
        run("echo begun; exec sleep 1000", timeout=None, on_output=fails)


def test_a_cancelled_command_is_ended() -> None:
    room = Room(FREE)
    started = asyncio.Event()
    pid: list[int] = []

    def seen(kind: OutputKind, data: bytes) -> None:
        pid.append(int(data))
        started.set()

    async def main() -> None:
        command = Command(sh("echo $$; exec sleep 1000"), PATH, None, seen)
        task = asyncio.create_task(run_command(room.orchestrator, room.executor, command))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ProcessLookupError):
            os.kill(pid[0], 0)

    played(room, main)
