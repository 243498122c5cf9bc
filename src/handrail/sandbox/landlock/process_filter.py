"""Seccomp filter for a command that sees the host's processes: it reaches no other one.  Pure.

In bubblewrap a command is alone: processes, System V objects and sockets of the host have no ids
there.  Under Landlock they have, and Landlock restricts files only.  So this filter refuses calls
that name another process.  A filter does not know the caller's pid, so only 0, which means the
caller, passes.
"""

from __future__ import annotations

import errno

from handrail.sandbox.syscalls.seccomp_filter import ALLOW, ERRNO, JEQ, Assembly, numbers

#: Refused whatever the arguments.
REFUSED = (
    "socket", "shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop", "msgget",
    "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink", "process_madvise", "process_mrelease",
)  # fmt: skip
#: Calls with a pid as first argument.
BY_FIRST = (
    "prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr",
    "migrate_pages", "move_pages",
)  # fmt: skip
#: Calls about the second argument: a process if the first one has this value, else a process group
#: or all of a user.
BY_SECOND = {"setpriority": 0, "ioprio_set": 1}


def program(arch: str) -> bytes:
    """Build the filter for an architecture; raises KeyError if its syscall numbers are unknown.

    It is installed beside ``seccomp_filter.program``, which kills on calls of another architecture.
    """
    calls = numbers(arch)
    refuse = ERRNO | errno.EPERM
    main = Assembly()
    main.number()
    for name in REFUSED:
        main.answer_if(JEQ, calls[name], refuse)
    for name in BY_FIRST:
        block = Assembly()
        block.argument(0)
        block.answer_if(JEQ, 0, ALLOW)
        block.answer(refuse)
        main.only_for(calls[name], block)
    for name, process in BY_SECOND.items():
        block = Assembly()
        block.argument(0)
        block.answer_unless(JEQ, process, refuse)
        block.argument(1)
        block.answer_if(JEQ, 0, ALLOW)
        block.answer(refuse)
        main.only_for(calls[name], block)
    main.answer(ALLOW)
    return main.bytes()
