"""Whether a command can start from a sandbox that waits.  Pure."""

from __future__ import annotations

from handrail.keeper import waiting_stub
from handrail.process.spec import ProcessSpec
from handrail.sandbox.bwrap.arguments import PROC_COVERED
from handrail.sandbox.plan.plan import Plan
from handrail.sandbox.profile import DEVICES, within
from handrail.sandbox.warm import copy_program

#: Limits that a group of processes has from its start; the others are set by the stub.
_OF_TREES = frozenset(("memory", "pids"))
#: What every sandbox has in /dev and /proc, which copies make anew.
_MADE_ANEW = PROC_COVERED | {DEVICES, b"/proc"}
#: Of the words and variables of a command; what the stub needs beside them fits into the rest.
_LONGEST = waiting_stub.LONGEST // 2


def fits(command: ProcessSpec, plan: Plan) -> bool:
    """Whether a command starts from a sandbox that waits just as it starts cold."""
    if plan.closed or plan.profile.managed or not plan.profile.sockets or command.passed:
        return False
    if len(plan.masks) > copy_program.MOST_COVERS or not _is_copyable(plan):
        return False
    if command.arg0 is not None and command.arg0 != command.argv[0]:
        return False
    if command.group is not None:  # of a workspace: it would not be in it
        return False
    if command.limits.for_keeper().keys() & _OF_TREES:
        return False
    size = sum(map(len, command.argv)) + 24 * (len(command.argv) + len(command.env))
    size += sum(len(name) + len(value) for name, value in command.env.items())
    path = command.env.get(b"PATH", b"")
    return size + 2 * len(path) + (path.count(b":") + 4) * len(command.argv[0]) < _LONGEST


def _is_copyable(plan: Plan) -> bool:
    """Whether it mounts nothing of its own in what each copy makes anew."""
    if plan.copyable is None:
        plan.copyable = not any(
            within(step.path, DEVICES) or within(step.path, b"/proc")
            for step in plan.steps
            if step.path not in _MADE_ANEW
        )
    return plan.copyable
