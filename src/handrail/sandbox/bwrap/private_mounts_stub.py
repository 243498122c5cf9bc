"""A program of a few hundred bytes that runs before bwrap where mounts propagate.  Pure.

On most systems a later mount, of a USB stick or a network share, shows up in every mount namespace,
and in a sandbox with the permissions it has outside: bwrap makes read-only what is there, not what
comes.  So bwrap is started in a private mount namespace.  Without root that needs a user namespace;
the ids stay the same.

In C it would be::

    unshare(CLONE_NEWNS | CLONE_NEWUSER);
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", "UID UID 1");
    write_file("/proc/self/gid_map", "GID GID 1");
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    mount_setattr(AT_FDCWD, "/dev", 0, MOUNT_ATTR_RDONLY);  // root owns the devices
    close(NUMBER);
    execve(argv[1], argv + 1, environ);

and it exits with the errno of what fails.
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
    number,
    put,
)
from handrail.sandbox.bwrap.arguments import APART_FD

#: The path of the devices, and ``struct mount_attr`` with MOUNT_ATTR_RDONLY.
SEAL = (b"/dev\0", (1).to_bytes(8, "little") + bytes(24))
#: What code of ``isolate_mounts`` reads.
ISOLATION = (b"/\0", *SEAL)
#: The fd of this program in its own process.
NUMBER = APART_FD

_WRITE, _OPEN, _CLOSE, _EXECVE, _MOUNT, _UNSHARE, _MOUNT_SETATTR = 1, 2, 3, 59, 165, 272, 442
_NEW_NAMESPACE, _NEW_USER = 0x20000, 0x10000000
_PRIVATE = 0x4000 | 1 << 18  # recursively
_FOR_WRITING = 1


def elf(uid: int, gid: int, itself: int) -> bytes:
    """Build the program for a user; it closes the fd of itself."""
    texts = [b"/\0", *(SEAL if uid == 0 else id_files(uid, gid))]
    text = b""
    for _ in range(2):  # the second pass knows its length
        places = [data_at(text)]
        for one in texts[:-1]:
            places.append(places[-1] + len(one))
        unshared = _NEW_USER if uid != 0 else 0
        text = _unshare(unshared)
        if uid == 0:
            text += _make_private(places[0]) + seal_devices(*places[1:])
        else:
            text += write_files(texts[1:], places[1:]) + _make_private(places[0])
        text += become(itself)
    return executable(text, b"".join(texts))


def id_files(uid: int, gid: int) -> list[bytes]:
    """The files that give a user namespace the ids of its maker: a name, then what is written."""
    return [
        b"/proc/self/setgroups\0",
        b"deny",
        b"/proc/self/uid_map\0",
        b"%d %d 1" % (uid, uid),
        b"/proc/self/gid_map\0",
        b"%d %d 1" % (gid, gid),
    ]


def write_files(texts: list[bytes], places: list[int]) -> bytes:
    """Code that writes files, each by the addresses of its name and of what is written."""
    text = b""
    for name, what in zip(range(0, len(texts), 2), range(1, len(texts), 2), strict=True):
        text += put(EDI, places[name]) + put(ESI, _FOR_WRITING) + call(_OPEN) + OR_LEAVE
        text += b"\x89\xc3" + b"\x89\xdf"  # mov ebx, eax; mov edi, ebx
        text += put(ESI, places[what]) + put(EDX, len(texts[what])) + call(_WRITE) + OR_LEAVE
        text += b"\x89\xdf" + call(_CLOSE)
    return text


def isolate_mounts(root: int, devices: int, read_only: int) -> bytes:
    """Code for a mount namespace that no later mount reaches, by the addresses of ``ISOLATION``."""
    return _unshare(0) + _make_private(root) + seal_devices(devices, read_only)


def become(itself: int) -> bytes:
    """Code that closes the fd of the program and executes its first argument."""
    text = put(EDI, itself) + call(_CLOSE)
    text += b"\x48\x8b\x7c\x24\x10"  # mov rdi, [rsp+16]: argv[1]
    text += b"\x48\x8d\x74\x24\x10"  # lea rsi, [rsp+16]
    text += b"\x48\x8b\x04\x24"  # mov rax, [rsp]: argc
    text += b"\x48\x8d\x54\xc4\x10"  # lea rdx, [rsp+rax*8+16]: environ
    return text + call(_EXECVE) + LEAVE


def _unshare(more: int) -> bytes:
    return put(EDI, _NEW_NAMESPACE | more) + call(_UNSHARE) + OR_LEAVE


def _make_private(root: int) -> bytes:
    text = put(EDI, 0) + put(ESI, root) + put(EDX, 0)
    text += b"\x41\xba" + number(_PRIVATE, 4) + b"\x4d\x31\xc0"  # mov r10d, flags; xor r8, r8
    return text + call(_MOUNT) + OR_LEAVE


def seal_devices(devices: int, read_only: int) -> bytes:
    """Make the mount of the devices read-only, if it is one; they can be written nevertheless.

    bwrap's mounts of them are then read-only too: what it makes so itself has no devices.
    """
    text = put(EDI, 2**32 - 100) + put(ESI, devices) + put(EDX, 0)
    text += b"\x48\x63\xff"  # movsxd rdi, edi: AT_FDCWD
    text += b"\x41\xba" + number(read_only, 4)  # mov r10d, address
    text += b"\x41\xb8" + number(len(SEAL[1]), 4)  # mov r8d, size
    return text + call(_MOUNT_SETATTR)
