"""Make or join a network namespace where the stubs of ``network_stub.py`` cannot run.

``network_program.py make USER`` makes one, says so on stdout and waits for the end of stdin; with
USER 1 in a user namespace of its own.  ``network_program.py join FD HOW PROGRAM ARG...`` joins that
of fd FD, if HOW is ``user`` its owner before, and becomes the program.  The exit code is the errno
of what fails.  Standard library only.
"""

from __future__ import annotations

import _socket  # socket itself takes a while to import
import ctypes
import fcntl
import os
import signal
import sys
from typing import NoReturn

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_GET_USER_NAMESPACE = 0xB701
_SET_FLAGS = 0x8914
_LOOPBACK_UP = b"lo".ljust(16, b"\0") + b"\x41\0".ljust(24, b"\0")

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


def _make(user: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_NEW_NETWORK | (_NEW_USER if user else 0)))
    if user:
        maps = ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")
        for name, text in maps:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(sock.fileno(), _SET_FLAGS, _LOOPBACK_UP)
    sock.close()
    os.write(1, b"/")
    os.read(0, 1)


def _join(number: int, how: str, words: list[str]) -> NoReturn:
    if how == "user":
        owner = fcntl.ioctl(number, _GET_USER_NAMESPACE)
        _checked(_libc.setns(owner, _NEW_USER))
        os.close(owner)
    _checked(_libc.setns(number, _NEW_NETWORK))
    os.close(number)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by the interpreter
        signal.signal(ignored, signal.SIG_DFL)
    os.execv(words[0], words)


def main(arguments: list[str]) -> int:
    """Do what the words say; returns the exit code."""
    try:
        if arguments[0] == "make":
            _make(arguments[1] == "1")
            return 0
        _join(int(arguments[1]), arguments[2], arguments[3:])
    except OSError as error:
        return error.errno or 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
