"""When a porter without processes is told to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from handrail.network import link
from handrail.network.config import ManagedNetwork
from handrail.network.managed.porter_life import IDLE_SECONDS, PorterLife
from handrail.network.managed.start import ManagedStart


class Clock:
    """A loop whose time the test sets; it has timers and nothing else."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> object:
        self.timers.append((self.now + delay, call))
        return object()

    def pass_to(self, now: float) -> None:
        self.now = now
        due = [timer for timer in self.timers if timer[0] <= now]
        self.timers = [timer for timer in self.timers if timer[0] > now]
        for _, call in due:
            call()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What porters are told."""
    said: list[int] = []
    monkeypatch.setattr(PorterLife, "_send", lambda _, op, *rest: said.append(op))
    monkeypatch.setattr(PorterLife, "_ensure", lambda _: None)
    return said


def test_commands_that_come_and_go_keep_their_porter_by_one_timer(
    clock: Clock, said: list[int]
) -> None:
    loop: Any = clock
    launcher: Any = None
    life = PorterLife(launcher, loop, {})
    for number in range(1, 30):
        process = life.start(ManagedStart(ManagedNetwork()))
        process.begin(number)
        clock.pass_to(clock.now + IDLE_SECONDS / 4)
        process.ended()
        assert len(clock.timers) == 1
    assert said == []
    clock.pass_to(clock.now + IDLE_SECONDS - 1)
    assert said == []
    clock.pass_to(clock.now + 1)
    assert said == [link.STOP]
    assert clock.timers == []


def test_a_porter_stays_while_a_command_runs(clock: Clock, said: list[int]) -> None:
    loop: Any = clock
    launcher: Any = None
    life = PorterLife(launcher, loop, {})
    first, second = (life.start(ManagedStart(ManagedNetwork())) for _ in range(2))
    first.begin(1)
    first.ended()
    second.begin(2)
    clock.pass_to(clock.now + 2 * IDLE_SECONDS)
    assert said == []
    second.ended()
    clock.pass_to(clock.now + IDLE_SECONDS)
    assert said == [link.STOP]


def test_nothing_is_read_for_a_command_that_never_connects(
    clock: Clock, said: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: Any = clock
    launcher: Any = None
    life = PorterLife(launcher, loop, {})
    monkeypatch.setattr(PorterLife, "read_records", lambda _: pytest.fail("it was read"))
    process = life.start(ManagedStart(ManagedNetwork()))
    process.begin(1)
    assert not process.denials
    process.ended()
