"""Landlock: what it can express of a profile (pure), and its three syscalls.

The fallback for machines without user namespaces.  It limits writing to directories and nothing
finer: it cannot exclude a part of a writable tree, hide a path, or stop changes of mode, owner and
times outside.  So it is used only for profiles that need no more, and others are refused.  Standard
library only: ``program.py`` loads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Rights, by the ABI version that introduced them.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (
    1 << bit for bit in range(6, 13)
)
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST_RIGHTS = (1 << 13) - 1
READING = EXECUTE | READ_FILE | READ_DIR
#: All rights that a rule about a file, not a directory, may have.
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
#: Rights on the contents of an existing file.
_CONTENTS = WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_NET_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract Unix sockets, signals

#: Below this a file outside can be truncated although nothing may be written to it.
LOWEST_ABI = 3
#: The host devices a command has, as in bubblewrap, besides its own terminal: the user's other
#: terminals are in /dev as well.  No new terminal can be made: its end in /dev/pts would have to be
#: opened, and its name is not known beforehand.
DEVICES = tuple(b"/dev/" + n for n in (b"null", b"zero", b"full", b"tty", b"random", b"urandom"))
_DEV = b"/dev"

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION_FLAG = 1
_PATH_BENEATH = 1


class Rules(NamedTuple):
    """Trees that may be read, and trees that may be written too."""

    readable: tuple[bytes, ...]
    writable: tuple[bytes, ...]
    #: Trees in which names may be listed, and what is readable in them if it still exists.
    listable: tuple[bytes, ...] = ()
    beside: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why Landlock cannot enforce a profile."""

    reason: str


def rules_for(entries: Sequence[tuple[bytes, str]], network: str) -> Rules | Refusal:
    """The rules of a resolved profile: absolute paths with ``read``, ``write`` or ``deny``.

    The entries must include those that protect metadata below writable roots: exactly what Landlock
    cannot do.
    """
    if network != "restricted":
        return Refusal("an open network")
    writable = [path for path, access in entries if access == "write"]
    for path, access in entries:
        shown = path.decode("utf-8", "replace")
        if access == "deny":
            return Refusal(f"hiding {shown}")
        if access == "read":
            for root in writable:
                if _below(path, root):
                    above = root.decode("utf-8", "replace")
                    return Refusal(f"keeping {shown} read-only below the writable {above}")
    readable = tuple(path for path, access in entries if access == "read")
    return Rules(readable, tuple(writable))


def _below(path: bytes, root: bytes) -> bool:
    return path != root and path.startswith(root.rstrip(b"/") + b"/")


def handled(abi: int) -> tuple[int, int, int]:
    """The rights that are removed unless a rule grants them: files, network, scopes."""
    rights = _FIRST_RIGHTS
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        if abi >= since:
            rights |= right
    return rights, _NET_TCP if abi >= 4 else 0, _SCOPES if abi >= 6 else 0


def ruleset_attributes(abi: int) -> bytes:
    """The argument of landlock_create_ruleset, in the length this kernel knows."""
    rights, net, scopes = handled(abi)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    return struct.pack("=QQQ", rights, net, scopes)[:size]


def rule_attributes(rights: int, fd: int) -> bytes:
    """The argument of landlock_add_rule for what lies beneath an fd."""
    return struct.pack("=Qi", rights, fd)


# --- the machine --------------------------------------------------------------------------------


def _syscall(*arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return int(libc.syscall(*arguments))


def abi_version() -> int:
    """The Landlock ABI of this kernel; 0 if Landlock is missing or switched off."""
    if sys.platform != "linux":
        return 0
    return max(0, _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION_FLAG)))


def restrict(rules: Rules, abi: int) -> None:
    """Restrict this thread and everything it starts, for good.  Raises OSError.

    no_new_privs must be set already.
    """
    rights = handled(abi)[0]
    attributes = ruleset_attributes(abi)
    size = ctypes.c_size_t(len(attributes))
    ruleset = _syscall(_CREATE_RULESET, attributes, size, ctypes.c_uint(0))
    _check(ruleset, "landlock_create_ruleset")
    for path in rules.readable:
        _add_tree(ruleset, path, READING & rights)
    for path in rules.writable:
        _add_tree(ruleset, path, rights)
    for path in rules.listable:
        _add(ruleset, path, READ_DIR & rights)
    for path in rules.beside:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            _add(ruleset, path, READING & rights)
    for path in (*DEVICES, *own_terminals()):
        if os.path.exists(path):
            _add(ruleset, path, (WRITE_FILE | READ_FILE | IOCTL_DEV) & rights)
    _check(_syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0)), "landlock")
    os.close(ruleset)


def own_terminals() -> set[bytes]:
    """The paths of the terminals that this process has as its standard streams."""
    found = set()
    for fd in range(3):
        try:
            found.add(os.fsencode(os.ttyname(fd)))
        except OSError:
            pass  # closed, no terminal, or one of another mount
    return found


def _add_tree(ruleset: int, path: bytes, rights: int) -> None:
    """Grant rights below a path, but none to the contents of the host's devices.

    A rule cannot be revoked further down, so a tree that includes /dev gets its rights entry by
    entry.  Entries added beside /dev later are then out of reach.
    """
    if path not in (b"/", _DEV):
        _add(ruleset, path, rights)
        return
    _add(ruleset, path, rights & ~_CONTENTS)
    if path == b"/":
        for name in os.listdir(path):
            entry = path + name
            if entry != _DEV and not os.path.islink(entry):
                _add(ruleset, entry, rights)


def _add(ruleset: int, path: bytes, rights: int) -> None:
    fd = _open_no_links(path)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_RIGHTS
        argument = rule_attributes(rights, fd)
        done = _syscall(
            _ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_PATH_BENEATH),
            argument,
            ctypes.c_uint(0),
        )
        _check(done, "landlock_add_rule")
    finally:
        os.close(fd)


def _open_no_links(path: bytes) -> int:
    """Open a path without links: one could have been planted on the way to widen the rule."""
    here = os.open(b"/", os.O_PATH | os.O_CLOEXEC)
    for name in path.split(b"/"):
        if not name:
            continue
        try:
            step = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        finally:
            os.close(here)
        here = step
        if stat.S_ISLNK(os.fstat(here).st_mode):
            os.close(here)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return here


def _check(result: int, step: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")
