"""The syscalls that try to change something, and the arguments that name it.  Pure.

One table for the filter that reports such calls and for the reader of the reports.
(``openat2`` is not in it: the other filter refuses it to every command.)
Reads are never reported: they are too many, and what a profile hides is rarely what a command
failed on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from operator import itemgetter

from handrail.sandbox.syscalls.seccomp_filter import ALLOW, JEQ, JSET, NOTIFY, Assembly, numbers

AT_FDCWD = -100
#: Opening with one of these flags is meant to change something.
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: The port of name servers.
_NAME_SERVER = 53


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


def calls_of(machine: str) -> dict[int, MutatingCall]:
    """The calls by syscall number."""
    found = numbers(machine)
    return {found[call.name]: call for call in _CALLS if call.name in found}


def announce(main: Assembly, machine: str) -> None:
    """Report the calls of the table; the syscall number is loaded, and stays so for other calls."""
    for number, call in sorted(calls_of(machine).items(), key=itemgetter(0)):
        if call.flags is None:
            main.answer_if(JEQ, number, NOTIFY)
            continue
        block = Assembly()
        block.argument(call.flags)
        block.answer_if(JSET, WRITE_FLAGS, NOTIFY)
        block.answer(ALLOW)
        main.only_for(number, block)


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


def is_name_server(raw: bytes) -> bool:
    """Whether an address of any family has the port of name servers."""
    return raw[2:4] == b"\0%c" % _NAME_SERVER and int.from_bytes(raw[:2], "little") in (2, 10)


def address_text(raw: bytes, *, own_network: bool = False) -> str | None:
    """host:port of an Internet address that is not this machine's own; else None.

    ``own_network``: a name server of the machine counts as well.  A sandbox with a network of its
    own has none: no command in it may listen on a port below 1024.
    """
    import ipaddress  # only needed for a failed connect

    if len(raw) < 8:
        return None
    family = int.from_bytes(raw[:2], "little")
    port = int.from_bytes(raw[2:4], "big")
    plain: ipaddress.IPv4Address | ipaddress.IPv6Address
    if family == 2:
        plain = ipaddress.IPv4Address(raw[4:8])
        shown = f"{plain}:{port}"
    elif family == 10 and len(raw) >= 24:
        long = ipaddress.IPv6Address(raw[8:24])
        plain = long.ipv4_mapped or long
        shown = f"[{long}]:{port}"
    else:
        return None
    here = plain.is_loopback or plain.is_unspecified
    if here and not (own_network and port == _NAME_SERVER):
        return None
    return shown
