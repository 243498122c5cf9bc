"""The syscalls that try to change something, and the arguments that name it.  Pure.

One table for the filter that reports such calls and for the reader of the reports.
(``openat2`` is not in it: the other filter refuses it to every command.)
Reads are never reported: they are too many, and what a profile hides is rarely what a command
failed on.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

AT_FDCWD = -100
#: Opening with one of these flags is meant to change something.
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True, slots=True)
class MutatingCall:
    """One syscall; ``paths`` are (argument with the directory or None, argument with the path)."""

    name: str
    paths: tuple[tuple[int | None, int], ...] = ()
    #: The argument with the flags of an open.
    flags: int | None = None
    #: ``make``: fails first if the name exists.  ``change``: fails first if it does not.
    sort: str = "change"


_CALLS = (
    MutatingCall("open", ((None, 0),), flags=1, sort="open"),
    MutatingCall("creat", ((None, 0),), sort="put"),
    MutatingCall("openat", ((0, 1),), flags=2, sort="open"),
    MutatingCall("mkdir", ((None, 0),), sort="make"),
    MutatingCall("mkdirat", ((0, 1),), sort="make"),
    MutatingCall("mknod", ((None, 0),), sort="make"),
    MutatingCall("mknodat", ((0, 1),), sort="make"),
    MutatingCall("symlink", ((None, 1),), sort="make"),
    MutatingCall("symlinkat", ((1, 2),), sort="make"),
    MutatingCall("link", ((None, 1),), sort="make"),
    MutatingCall("linkat", ((2, 3),), sort="make"),
    MutatingCall("rmdir", ((None, 0),)),
    MutatingCall("unlink", ((None, 0),)),
    MutatingCall("unlinkat", ((0, 1),)),
    MutatingCall("rename", ((None, 0), (None, 1)), sort="move"),
    MutatingCall("renameat", ((0, 1), (2, 3)), sort="move"),
    MutatingCall("renameat2", ((0, 1), (2, 3)), sort="move"),
    MutatingCall("truncate", ((None, 0),)),
    MutatingCall("chmod", ((None, 0),)),
    MutatingCall("fchmodat", ((0, 1),)),
    MutatingCall("chown", ((None, 0),)),
    MutatingCall("lchown", ((None, 0),)),
    MutatingCall("fchownat", ((0, 1),)),
    MutatingCall("connect"),  # made by the supervisor, not recorded
)
_BY_NAME = {call.name: call for call in _CALLS}

_X86_64 = {
    "open": 2, "connect": 42, "truncate": 76, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85,
    "link": 86, "unlink": 87, "symlink": 88, "chmod": 90, "chown": 92, "lchown": 94, "mknod": 133,
    "openat": 257, "mkdirat": 258, "mknodat": 259, "fchownat": 260, "unlinkat": 263,
    "renameat": 264, "linkat": 265, "symlinkat": 266, "fchmodat": 268, "renameat2": 316,
}  # fmt: skip
_AARCH64 = {
    "mknodat": 33, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38,
    "truncate": 45, "fchmodat": 53, "fchownat": 54, "openat": 56, "connect": 203, "renameat2": 276,
}  # fmt: skip
#: Machine -> (AUDIT_ARCH value of the kernel, syscall numbers).
MACHINES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _AARCH64),
}

_LOAD, _JEQ, _JSET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16


def calls_of(machine: str) -> dict[int, MutatingCall]:
    """The calls by syscall number."""
    return {number: _BY_NAME[name] for name, number in MACHINES[machine][1].items()}


def filter_code(machine: str, more: bytes = b"") -> bytes:
    """Build a seccomp program that reports the calls of the table and allows everything.

    ``more``: instructions that find the syscall number loaded, and return or leave it loaded.
    What another filter of the same process refuses is refused without a report.
    """
    arch, numbers = MACHINES[machine]
    code = [_step(_LOAD, _ARCH), _step(_JEQ, arch, 1, 0), _step(_RETURN, _ALLOW)]
    code.append(_step(_LOAD, _NUMBER))
    for name, number in numbers.items():
        flags = _BY_NAME[name].flags
        if flags is None:
            code += [_step(_JEQ, number, 0, 1), _step(_RETURN, _NOTIFY)]
        else:
            code += [
                _step(_JEQ, number, 0, 4),
                _step(_LOAD, _ARGUMENTS + 8 * flags),
                _step(_JSET, WRITE_FLAGS, 0, 1),
                _step(_RETURN, _NOTIFY),
                _step(_RETURN, _ALLOW),
            ]
    return b"".join((*code, more, _step(_RETURN, _ALLOW)))


def _step(code: int, value: int, hit: int = 0, miss: int = 0) -> bytes:
    return struct.pack("=HBBI", code, hit, miss, value)


def fails_first(sort: str, flags: int, exists: bool) -> bool:
    """Whether the kernel has another reason to refuse, before any sandbox matters."""
    if sort == "make":
        return exists
    if sort == "open":
        if exists:
            return not flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC)  # O_CREAT of what is there
        return not flags & os.O_CREAT
    if sort == "put":
        return False
    return not exists


def address_text(raw: bytes) -> str | None:
    """host:port of an Internet address that is not this machine's own; else None."""
    import ipaddress  # only needed for a failed connect

    if len(raw) < 8:
        return None
    family = int.from_bytes(raw[:2], "little")
    port = int.from_bytes(raw[2:4], "big")
    host: ipaddress.IPv4Address | ipaddress.IPv6Address
    if family == 2:
        host = ipaddress.IPv4Address(raw[4:8])
        if host.is_loopback or host == ipaddress.IPv4Address(0):
            return None
        return f"{host}:{port}"
    if family == 10 and len(raw) >= 24:
        host = ipaddress.IPv6Address(raw[8:24])
        mapped = host.ipv4_mapped
        if host.is_loopback or int(host) == 0 or (mapped is not None and mapped.is_loopback):
            return None
        return f"[{host}]:{port}"
    return None
