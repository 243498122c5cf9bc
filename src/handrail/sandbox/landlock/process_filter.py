"""Seccomp filter for a command that sees the host's processes: it reaches no other one.  Pure.

In bubblewrap a command is alone: processes, System V objects and sockets of the host have no ids
there.  Under Landlock they have, and Landlock restricts files only.  So this filter refuses calls
that name another process.  A filter does not know the caller's pid, so only 0, which means the
caller, passes.
"""

from __future__ import annotations

import errno

from handrail.sandbox.syscalls.seccomp_filter import ALLOW, ARCHES, ERRNO, JEQ, Assembly

#: Refused whatever the arguments: name -> numbers on x86_64 and aarch64.
REFUSED: dict[str, tuple[int, int]] = {
    "socket": (41, 198),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
}
#: Calls with a pid as first argument.
BY_FIRST: dict[str, tuple[int, int]] = {
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
#: Calls about the second argument: a process if the first one has this value, else a process group
#: or all of a user.
BY_SECOND: dict[str, tuple[tuple[int, int], int]] = {
    "setpriority": ((141, 140), 0),
    "ioprio_set": ((251, 30), 1),
}


def program(arch: str) -> bytes:
    """Build the filter for an architecture; raises KeyError if its syscall numbers are unknown.

    It is installed beside ``seccomp_filter.program``, which kills on calls of another architecture.
    """
    column = ARCHES[arch][1]
    refuse = ERRNO | errno.EPERM
    main = Assembly()
    main.number()
    for numbers in REFUSED.values():
        main.answer_if(JEQ, numbers[column], refuse)
    for numbers in BY_FIRST.values():
        block = Assembly()
        block.argument(0)
        block.answer_if(JEQ, 0, ALLOW)
        block.answer(refuse)
        main.only_for(numbers[column], block)
    for numbers, process in BY_SECOND.values():
        block = Assembly()
        block.argument(0)
        block.answer_unless(JEQ, process, refuse)
        block.argument(1)
        block.answer_if(JEQ, 0, ALLOW)
        block.answer(refuse)
        main.only_for(numbers[column], block)
    main.answer(ALLOW)
    return main.bytes()
