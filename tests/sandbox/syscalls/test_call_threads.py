"""Threads for calls that may block: one for each call, and again for the next."""

from __future__ import annotations

import threading

import pytest

from handrail.sandbox.syscalls import call_threads
from handrail.sandbox.syscalls.call_threads import CallThreads
from tests.support.eventually import LIMIT, eventually


def thread_of(threads: CallThreads) -> threading.Thread:
    """The thread that runs a call which is done at once."""
    found: list[threading.Thread] = []
    done = threading.Event()

    def call() -> None:
        found.append(threading.current_thread())
        done.set()

    threads.run(call)
    assert done.wait(LIMIT)
    return found[0]


def test_a_thread_that_is_done_takes_the_next_call() -> None:
    threads = CallThreads()
    first = thread_of(threads)
    eventually(lambda: threads._idle)
    assert thread_of(threads) is first
    eventually(lambda: threads._idle)
    threads.close()
    first.join(LIMIT)
    assert not first.is_alive()


def test_a_call_that_blocks_holds_up_no_other() -> None:
    threads = CallThreads()
    gates = [threading.Event() for _ in range(8)]
    begun = [threading.Event() for _ in gates]

    def call(number: int) -> None:
        begun[number].set()
        gates[number].wait(LIMIT)

    for number in range(len(gates)):
        threads.run(lambda number=number: call(number))  # type: ignore[misc]
    for one in begun:
        assert one.wait(LIMIT)
    for gate in gates:
        gate.set()
    eventually(lambda: threads._idle == len(gates))
    threads.close()


def test_an_idle_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_threads, "_IDLE_SECONDS", 0.01)
    threads = CallThreads()
    first = thread_of(threads)
    first.join(LIMIT)
    assert not first.is_alive()
    assert threads._idle == 0
    assert thread_of(threads) is not first
