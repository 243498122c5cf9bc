"""Put this process under a seccomp filter that reports its syscalls."""

from __future__ import annotations

import ctypes
import os
import resource

from handrail.keeper.seccomp import stub as seccomp_stub

#: The number of the system call.
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER = 1
_NEW_LISTENER = 1 << 3
#: Once a call was taken, only a signal that kills interrupts it: otherwise an answer can be lost on
#: its way.  Since Linux 5.19; before, that is how it is.
_WAIT_KILLABLE = 1 << 5
_PR_SET_NO_NEW_PRIVS = 38


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def install(code: bytes) -> int:
    """Install the filter, which stays for good, and return its listener; raises OSError.

    Core files are given up as well, as ``stub.py`` does.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (seccomp_stub.CORE_BYTES, seccomp_stub.CORE_BYTES))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
        raise _failed()
    number, mode = ctypes.c_long(_SECCOMP[os.uname().machine]), ctypes.c_long(_SET_FILTER)
    program = _Program(len(code) // 8, code)
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        listener: int = _libc.syscall(number, mode, ctypes.c_long(flags), ctypes.byref(program))
        if listener >= 0:
            return listener
    raise _failed()


def _failed() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
