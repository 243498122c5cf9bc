"""Signals by name, and wait statuses read."""

from __future__ import annotations

import signal

import pytest

from handrail.process.exit_status import ExitKind, Usage, exit_from_status
from handrail.process.signal_names import signal_number
from handrail.process.spec import ProcessSpec


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("interrupt", signal.SIGINT),
        ("int", signal.SIGINT),
        ("sigint", signal.SIGINT),
        ("term", signal.SIGTERM),
        ("sigterm", signal.SIGTERM),
        ("hup", signal.SIGHUP),
        ("kill", signal.SIGKILL),
        ("usr1", signal.SIGUSR1),
        ("winch", signal.SIGWINCH),
        ("chld", signal.SIGCHLD),
        ("rtmin", signal.SIGRTMIN),
        ("rtmax", signal.SIGRTMAX),
        ("", None),
        ("sig", None),
        ("sigsigint", None),
        ("INT", None),
        ("9", None),
        ("interrupts", None),
    ],
)
def test_signal_number(name: str, number: int | None) -> None:
    assert signal_number(name) == number


@pytest.mark.parametrize("code", [0, 1, 127, 128, 255])
@pytest.mark.parametrize("terminated", [False, True])
def test_exit_code(code: int, terminated: bool) -> None:
    info = exit_from_status(code << 8, terminated=terminated)
    assert (info.code, info.signal, info.core_dumped) == (code, None, False)
    assert info.kind is (ExitKind.TERMINATED if terminated else ExitKind.EXITED)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("terminated", [False, True])
def test_killed_by_a_signal_is_128_and_its_number(number: signal.Signals, terminated: bool) -> None:
    usage = Usage(1, 2, 3, 4)
    info = exit_from_status(int(number), terminated=terminated, usage=usage)
    assert (info.code, info.signal) == (128 + number, number.name)
    assert info.kind is (ExitKind.TERMINATED if terminated else ExitKind.SIGNALED)
    assert info.usage is usage


def test_a_signal_without_a_name() -> None:
    info = exit_from_status(40, terminated=False)
    assert (info.code, info.signal) == (168, "SIG40")
    assert exit_from_status(6 | 0x80, terminated=False).core_dumped


def test_environment_is_not_shown() -> None:
    shown = repr(ProcessSpec((b"true",), b"/", {b"TOKEN": b"hidden"}))
    assert "hidden" not in shown
