"""What the keeper waits for is seen with few descriptors and with many."""

from __future__ import annotations

import os
import select

from handrail.keeper import readiness
from handrail.keeper.readiness import Readiness
from tests.support.processes import descriptors


def test_few_need_no_descriptor_and_many_are_seen_as_well() -> None:
    waiting = Readiness()
    before = len(descriptors())
    pipes = [os.pipe() for _ in range(readiness._MANY - 1)]
    for reading, _ in pipes:
        waiting.register(reading, select.EPOLLIN)
    waiting.modify(pipes[0][0], 0)
    waiting.unregister(pipes[1][0])
    for pipe in pipes[:4]:
        os.write(pipe[1], b"x")
    seen = [(pipe[0], select.EPOLLIN) for pipe in pipes[2:4]]
    assert sorted(waiting.poll(0)) == sorted(seen)
    assert len(descriptors()) == before + 2 * len(pipes)
    pipes += [os.pipe() for _ in range(2)]
    for reading, _ in pipes[-2:]:
        waiting.register(reading, select.EPOLLIN)
    assert len(descriptors()) == before + 2 * len(pipes) + 1
    os.write(pipes[-1][1], b"x")
    seen.append((pipes[-1][0], select.EPOLLIN))
    assert sorted(waiting.poll(None)) == sorted(seen)  # and what was taken out stays out
    waiting.modify(pipes[0][0], select.EPOLLIN)
    waiting.unregister(pipes[2][0])
    seen[0] = (pipes[0][0], select.EPOLLIN)
    assert sorted(waiting.poll(0.001)) == sorted(seen)
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)
