"""Run a program under a seccomp filter that refuses some system calls.

``python refusal.py ERRNO CALL[:FIRST][,CALL...] PROGRAM ARG...``: every call with one of these
names fails with that error, in the program and in everything it starts; ``FIRST`` is the value of
the first argument for which that is so.  This is what the filters of containers do.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

#: Numbers on x86_64 and aarch64.
CALLS = {
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
    "sendfile": (40, 71),
    "copy_file_range": (326, 285),
    "fallocate": (285, 47),
    "memfd_create": (319, 279),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "waitid": (247, 95),
    "close_range": (436, 436),
    "openat2": (437, 437),
    "faccessat2": (439, 439),
    "statx": (332, 291),
    "renameat2": (316, 276),
    "linkat": (265, 37),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "epoll_pwait2": (441, 441),
    "signalfd4": (289, 74),
    "eventfd2": (290, 19),
    "timerfd_create": (283, 85),
    "inotify_init1": (294, 26),
    "io_uring_setup": (425, 425),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444),
    "process_vm_readv": (310, 270),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "rseq": (334, 293),
    "sched_setaffinity": (203, 122),
    "sched_getaffinity": (204, 123),
    "setpriority": (141, 140),
    "flock": (73, 32),
    "mlock": (149, 228),
    "madvise": (28, 233),
    "preadv2": (327, 286),
    "accept4": (288, 242),
    "sendmmsg": (307, 269),
    "recvmmsg": (299, 243),
    "ptrace": (101, 117),
    "kcmp": (312, 272),
    "name_to_handle_at": (303, 264),
    "getcpu": (309, 168),
    "socketpair": (53, 199),
    "mremap": (25, 216),
}
#: Arguments of prctl.
PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 4, 15, 36

_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


def program(refused: list[tuple[int, int | None]], number: int) -> bytes:
    """The filter's instructions."""
    code: list[tuple[int, int, int, int]] = []
    answer = (_RETURN, 0, 0, _ERRNO | number)
    for call, first in refused:
        code.append((_LOAD, 0, 0, 0))
        if first is None:
            code += [(_JUMP_EQUAL, 0, 1, call), answer]
        else:
            code += [(_JUMP_EQUAL, 0, 3, call), (_LOAD, 0, 0, 16)]
            code += [(_JUMP_EQUAL, 0, 1, first), answer]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *one) for one in code)


def numbers(names: str) -> list[tuple[int, int | None]]:
    column = ("x86_64", "aarch64").index(platform.machine())
    found: list[tuple[int, int | None]] = []
    for word in names.split(","):
        name, _, first = word.partition(":")
        found.append((CALLS[name][column], int(first) if first else None))
    return found


def install(code: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    filter_ = Program(len(code) // 8, code)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(filter_), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def main() -> None:
    number, names, *argv = sys.argv[1:]
    install(program(numbers(names), getattr(errno, number)))
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main()
