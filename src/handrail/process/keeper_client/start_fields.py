"""The fields of a start request to the keeper.  Pure but for the clock."""

from __future__ import annotations

import time

from handrail import process
from handrail.keeper import messages
from handrail.keeper.limits import cgroups
from handrail.process.spec import NO_LIMITS, ProcessSpec


def spawn(spec: ProcessSpec, child: int, program: bytes, note: bytes) -> messages.Spawn:
    """A child to start; one that waits for its command has no limits and no end yet."""
    waiting = spec.waiting
    return messages.Spawn(
        b"%d" % child,
        _mode(spec),
        spec.rows,
        spec.cols,
        program,
        note,
        spec.running_sandbox is not None,
        [spec.argv[0] if spec.arg0 is None else spec.arg0, *spec.argv[1:]],
        spec.env,
        [number for number, _ in spec.passed] if spec.passed else [],
        _limits(spec) if waiting is None else {},
        None if waiting is not None or spec.timeout is None else _end_at(spec),
        int(process.TIMEOUT_GRACE * 1000),
        0 if waiting is None else waiting.line,
    )


def use(spec: ProcessSpec, child: int, note: bytes) -> messages.Use:
    """The command of a child that waits for it."""
    waiting = spec.waiting
    assert waiting is not None  # noqa: S101 (it waits)
    return messages.Use(
        b"%d" % child,
        spec.rows,
        spec.cols,
        note,
        waiting.cwd,
        list(waiting.argv),
        dict(waiting.env),
        _limits(spec),
        _end_at(spec),
        int(process.TIMEOUT_GRACE * 1000),
        waiting.covers,
    )


def _mode(spec: ProcessSpec) -> bytes:
    if spec.tty:
        return messages.MODE_PTY if spec.running_sandbox is None else messages.MODE_PTY_LOOSE
    return messages.MODE_STDIN if spec.pipe_stdin else messages.MODE_PIPES


def _end_at(spec: ProcessSpec) -> int | None:
    """When it is to end, in monotonic ms."""
    return None if spec.timeout is None else int((time.monotonic() + spec.timeout) * 1000)


def _limits(spec: ProcessSpec) -> dict[bytes, int]:
    """The limits of a child and of its group, by the keeper's names."""
    if spec.limits is NO_LIMITS and spec.group is None:
        return {}
    limits = {name.encode(): most for name, most in spec.limits.for_keeper().items()}
    if spec.group is not None:
        limits[cgroups.GROUP] = spec.group.number
        limits[cgroups.GROUP_MEMORY] = spec.group.memory
        limits[cgroups.GROUP_CPUS] = spec.group.cpu_millis
    return limits
