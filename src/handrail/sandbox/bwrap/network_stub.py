"""Programs of a few hundred bytes that make a network namespace, and run bwrap in it.  Pure.

bwrap can make a network namespace and cannot join one.  So the namespace that commands share is
made by the first of these programs, and the second joins it and becomes bwrap.  An ordinary user
has the right to do either only in a user namespace that owns the network; the ids stay the same.

In C the first would be::

    unshare(CLONE_NEWNET | CLONE_NEWUSER);
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", "UID UID 1");
    write_file("/proc/self/gid_map", "GID GID 1");
    ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &(struct ifreq){"lo", IFF_UP});
    write(1, "/", 1);
    read(0, ...);                       // until the namespace has been opened

and the second::

    int owner = ioctl(NETWORK, NS_GET_USERNS);
    setns(owner, CLONE_NEWUSER);
    close(owner);
    setns(NETWORK, CLONE_NEWNET);
    close(NETWORK);
    unshare(CLONE_NEWNS);               // where mounts propagate: see private_mounts_stub.py
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    close(NUMBER);
    execve(argv[1], argv + 1, environ);

They exit with the errno of what fails.
"""

from __future__ import annotations

from handrail.keeper.elf_x86_64 import (
    EDI,
    EDX,
    ESI,
    LEAVE,
    OR_LEAVE,
    call,
    data_at,
    executable,
    put,
)
from handrail.sandbox.bwrap.private_mounts_stub import (
    ISOLATION,
    become,
    id_files,
    isolate_mounts,
    write_files,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_READ, _WRITE, _CLOSE, _IOCTL, _SOCKET, _UNSHARE, _SETNS = 0, 1, 3, 16, 41, 272, 308
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_GET_USER_NAMESPACE = 0xB701
_SET_FLAGS = 0x8914
_INTERNET, _DATAGRAM = 2, 2
#: ``struct ifreq``: the name, then the flags IFF_UP and IFF_RUNNING.
_LOOPBACK_UP = b"lo".ljust(16, b"\0") + b"\x41\0".ljust(24, b"\0")
_ROOT = b"/\0"


def maker(uid: int, gid: int, *, user: bool) -> bytes:
    """The program that makes a namespace, in a user namespace of its own if ``user``."""
    files = id_files(uid, gid) if user else []
    flags = _NEW_NETWORK | _NEW_USER if user else _NEW_NETWORK

    def text(places: list[int]) -> bytes:
        code = put(EDI, flags) + call(_UNSHARE) + OR_LEAVE
        code += write_files(files, places[2:])
        code += put(EDI, _INTERNET) + put(ESI, _DATAGRAM) + put(EDX, 0) + call(_SOCKET) + OR_LEAVE
        code += b"\x89\xc7" + put(ESI, _SET_FLAGS) + put(EDX, places[0])  # mov edi, eax
        code += call(_IOCTL) + OR_LEAVE
        code += put(EDI, 1) + put(ESI, places[1]) + put(EDX, 1) + call(_WRITE) + OR_LEAVE
        code += put(EDI, 0) + put(ESI, places[0]) + put(EDX, 1) + call(_READ)
        return code + LEAVE

    return _built([_LOOPBACK_UP, _ROOT, *files], text)


def joiner(network: int, itself: int, *, user: bool, apart: bool) -> bytes:
    """The program that joins the namespace of fd ``network`` and becomes its first argument.

    ``user``: a user namespace owns it, which has to be joined before.  ``apart``: later mounts of
    the machine are to stay out.  It closes both fds.
    """

    def text(places: list[int]) -> bytes:
        code = b""
        if user:
            code += put(EDI, network) + put(ESI, _GET_USER_NAMESPACE) + call(_IOCTL) + OR_LEAVE
            code += b"\x89\xc3" + b"\x89\xdf"  # mov ebx, eax; mov edi, ebx
            code += put(ESI, _NEW_USER) + call(_SETNS) + OR_LEAVE
            code += b"\x89\xdf" + call(_CLOSE)
        code += put(EDI, network) + put(ESI, _NEW_NETWORK) + call(_SETNS) + OR_LEAVE
        code += put(EDI, network) + call(_CLOSE)
        if apart:
            code += isolate_mounts(*places)
        return code + become(itself)

    return _built([*ISOLATION], text)


def _built(data: list[bytes], text: Callable[[list[int]], bytes]) -> bytes:
    """The executable of code that needs the addresses of its data."""
    code = b""
    for _ in range(2):  # the second pass knows its length
        places = [data_at(code)]
        for one in data[:-1]:
            places.append(places[-1] + len(one))
        code = text(places)
    return executable(code, b"".join(data))
