"""A program of some hundred bytes that covers missing names in a sandbox that waits.  Pure.

It is started by the keeper, outside of the sandbox's PID namespace, when the sandbox stands, and
joins its mounts (``docs/decisions/0028``).  The covers are made then, mounted nowhere.  When the
command comes it is told which inodes the placeholders have, mounts a cover on each, and hands the
command to the stub.  It has the paths from the start, so a packet has nothing to be taken apart.

In C it would be::

    setns(ioctl(NAMESPACE, NS_GET_USERNS), CLONE_NEWUSER);
    setns(NAMESPACE, CLONE_NEWNS);
    for (i = 0; i < covers; i++)
        cover[i] = directory[i] ? new_tmpfs("mode=0555") : copy_of(empty_file);
    write(SEEN, "w", 1);
    do got = read(LINE, picture, SIZE); while (got == -EINTR);
    if (got <= 0) exit(0);  // the other end is gone: no command comes any more
    for (i = 0; i < covers; i++) {
        int place = openat2(AT_FDCWD, path[i], O_PATH, RESOLVE_NO_SYMLINKS);
        if (statx(place) is not picture.inode[i]) exit(1);
        move_mount(cover[i], "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
        // What the path leads to is the cover: the name was not moved away meanwhile.
        int seen = openat2(AT_FDCWD, path[i], O_PATH, RESOLVE_NO_SYMLINKS);
        if (statx(seen).mnt_id != statx(cover[i]).mnt_id) exit(1);
    }
    if (read(SEEN, picture, 1) != 1) exit(1);
    write(STUB, picture.request, got - sizeof(picture.inode));

and it exits with the errno of what fails.  SEEN is a socket with one byte: closed when that was
read, and reset when it was not, so the server sees which of the two happened.  The byte is read
before the command begins: one that may have begun is never started a second time.
"""

from __future__ import annotations

from handrail.keeper.elf_x86_64 import (
    EDI,
    EDX,
    ESI,
    OR_LEAVE,
    Code,
    call,
    data_at,
    executable,
    number,
    put,
)
from handrail.keeper.waiting_stub import LONGEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    #: A path in the sandbox, and whether a directory covers it or a file.
    Cover = tuple[bytes, bool]

#: The fds it is started with.
NAMESPACE, LINE, STUB, SEEN = 3, 4, 5, 6
_FIRST_COVER = 16
#: Each is an open fd of it.
MOST = 200
#: What it writes to SEEN when it waits.
WAITS = b"w"
#: Inode and device of one placeholder, as ``statx`` has them.
_IDENTITY = 16

_READ, _WRITE, _CLOSE, _IOCTL, _DUP2, _EXIT, _FCHMOD, _UMOUNT = 0, 1, 3, 16, 33, 60, 91, 166
_OPENAT, _SETNS, _STATX = 257, 308, 332
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_OPENAT2, _MOUNT_SETATTR = 437, 442
_NEW_USER, _NEW_MOUNTS, _GET_USER_NAMESPACE = 0x10000000, 0x20000, 0xB701
_SET_STRING, _CREATE = 1, 6
_READ_ONLY, _NO_SUID, _NO_DEV = 1, 2, 4
_HERE, _EMPTY_PATH, _BOTH_EMPTY, _DETACH = 2**32 - 100, 0x1000, 0x44, 2
_CLONE_TREE = 1 | 0x80000 | _EMPTY_PATH
_PATH_ONLY, _NEW_FILE = 0x200000 | 0x80000, 0x40 | 0x80 | 0x80000
_NO_LINK = 0x20000
_NO_LINKS = 0x2 | 0x4
_EINTR = 4
#: ``struct statx``, and what of it is asked for.
_STATX_SIZE, _STATX_INODE, _STATX_DEVICE, _STATX_MOUNT = 256, 32, 136, 144
_WANT_INODE, _WANT_MOUNT = 0x100, 0x1000

_NOTHING, _TMPFS, _SOURCE, _MODE, _CLOSED, _OPEN = b"\0", b"tmpfs\0", b"source\0", b"mode\0", b"0555\0", b"0755\0"  # fmt: skip  # noqa: E501
_FILE, _ATTACH_POINT, _SAID = b"f\0", b"/proc\0", WAITS
_HOW = number(_PATH_ONLY | _NO_LINK, 8) + number(0, 8) + number(_NO_LINKS, 8)
_SEALED = number(_READ_ONLY | _NO_SUID | _NO_DEV, 8) + bytes(24)
_TEXTS = (
    _NOTHING, _TMPFS, _SOURCE, _MODE, _CLOSED, _OPEN, _FILE, _ATTACH_POINT, _SAID, _HOW, _SEALED,
)  # fmt: skip


def elf(covers: Sequence[Cover]) -> bytes:
    """The program for these names, in the order in which they are covered."""
    texts = (*_TEXTS, *(path + b"\0" for path, _ in covers))
    more = _STATX_SIZE + _IDENTITY * len(covers) + LONGEST
    text = b""
    for _ in range(2):  # the second time with its length
        text = _Text(data_at(text), texts).program([directory for _, directory in covers])
    return executable(text, b"".join(texts), more)


def packet(identities: Iterable[tuple[int, int, int]], request: bytes) -> bytes:
    """What it is told: inode, major and minor number of each placeholder, and what the stub is."""
    found = b"".join(
        number(inode, 8) + number(major, 4) + number(minor, 4) for inode, major, minor in identities
    )
    return found + request


def _r8(value: int) -> bytes:
    return b"\x41\xb8" + number(value, 4)  # mov r8d, value


def _r10(value: int) -> bytes:
    return b"\x41\xba" + number(value, 4)  # mov r10d, value


#: A result is kept in ebx or in r12d, and taken from there.
_KEEP, _KEPT = b"\x89\xc3", b"\x89\xdf"  # mov ebx, eax; mov edi, ebx
_HOLD, _HELD = b"\x41\x89\xc4", b"\x44\x89\xe7"  # mov r12d, eax; mov edi, r12d


class _Text:
    """The code, which knows where its data is."""

    def __init__(self, data: int, texts: Sequence[bytes]) -> None:
        self._places: dict[bytes, int] = {}
        #: Of the texts behind the common ones: the paths.
        self._paths: list[int] = []
        for index, text in enumerate(texts):
            if index < len(_TEXTS):
                self._places[text] = data
            else:
                self._paths.append(data)
            data += len(text)
        self._status = data
        self._picture = data + _STATX_SIZE

    def program(self, directories: Sequence[bool]) -> bytes:
        at = self._places
        code = Code()
        code += put(EDI, NAMESPACE) + put(ESI, _GET_USER_NAMESPACE) + call(_IOCTL) + OR_LEAVE
        code += _KEEP + _KEPT + put(ESI, _NEW_USER) + call(_SETNS) + OR_LEAVE
        code += _KEPT + call(_CLOSE)
        code += put(EDI, NAMESPACE) + put(ESI, _NEW_MOUNTS) + call(_SETNS) + OR_LEAVE
        code += put(EDI, NAMESPACE) + call(_CLOSE)
        for index, directory in enumerate(directories):
            if directory:
                code += self._tmpfs(_CLOSED) + self._kept_as(_FIRST_COVER + index)
        files = [index for index, directory in enumerate(directories) if not directory]
        if files:
            code += self._files(files)
        code += put(EDI, SEEN) + put(ESI, at[_SAID]) + put(EDX, 1) + call(_WRITE) + OR_LEAVE
        size = _IDENTITY * len(directories)
        code.label("wait")
        code += put(EDI, LINE) + put(ESI, self._picture) + put(EDX, size + LONGEST) + call(_READ)
        code += b"\x83\xf8" + number(256 - _EINTR, 1)  # cmp eax, -EINTR
        code.jump(code.EQUAL, "wait")
        code += b"\x31\xff" + b"\x85\xc0"  # xor edi, edi; test eax, eax
        code.jump(code.NOT_POSITIVE, "exit")
        code += b"\x41\x89\xc7"  # mov r15d, eax
        for index in range(len(directories)):
            self._cover(code, index)
        code += put(EDI, SEEN) + put(ESI, self._status) + put(EDX, 1) + call(_READ)
        code += b"\x83\xf8\x01"  # cmp eax, 1
        code.jump(code.NOT_EQUAL, "other")
        code += put(EDI, STUB) + put(ESI, self._picture + size)
        code += b"\x44\x89\xfa" + b"\x81\xea" + number(size, 4)  # mov edx, r15d; sub edx, size
        code += call(_WRITE) + OR_LEAVE + b"\x31\xff"
        code.label("exit")
        code += put(0, _EXIT) + b"\x0f\x05"
        code.label("other")
        code += put(EDI, 1)
        code.jump(code.ALWAYS, "exit")
        return code.bytes()

    def _tmpfs(self, mode: bytes) -> bytes:
        """Make a file system that is mounted nowhere, and hold it in r12d."""
        at = self._places
        code = put(EDI, at[_TMPFS]) + put(ESI, 1) + call(_FSOPEN) + OR_LEAVE + _KEEP
        for key, value in ((_SOURCE, _TMPFS), (_MODE, mode)):
            code += _KEPT + put(ESI, _SET_STRING) + put(EDX, at[key]) + _r10(at[value]) + _r8(0)
            code += call(_FSCONFIG) + OR_LEAVE
        code += _KEPT + put(ESI, _CREATE) + put(EDX, 0) + _r10(0) + _r8(0)
        code += call(_FSCONFIG) + OR_LEAVE
        code += _KEPT + put(ESI, 1) + put(EDX, _NO_SUID | _NO_DEV) + call(_FSMOUNT) + OR_LEAVE
        return code + _HOLD + _KEPT + call(_CLOSE)

    def _kept_as(self, fd: int) -> bytes:
        """Give what is held in r12d this number."""
        return _HELD + put(ESI, fd) + call(_DUP2) + OR_LEAVE + _HELD + call(_CLOSE)

    def _files(self, covers: Sequence[int]) -> bytes:
        """Make copies of a mount of an empty file, in a file system that is mounted meanwhile."""
        at = self._places
        nothing = at[_NOTHING]
        code = self._tmpfs(_OPEN)
        code += put(EDI, _HERE) + put(ESI, at[_ATTACH_POINT]) + put(EDX, _PATH_ONLY) + _r10(0)
        code += call(_OPENAT) + OR_LEAVE + _KEEP
        code += self._move(_HELD) + OR_LEAVE + _KEPT + call(_CLOSE)
        code += _HELD + put(ESI, at[_FILE]) + put(EDX, _NEW_FILE) + _r10(0o444)
        code += call(_OPENAT) + OR_LEAVE + _KEEP
        code += _KEPT + put(ESI, 0o444) + call(_FCHMOD) + OR_LEAVE
        code += _HELD + call(_CLOSE)
        for index in covers:
            code += _KEPT + put(ESI, nothing) + put(EDX, _CLONE_TREE) + call(_OPEN_TREE) + OR_LEAVE
            code += _HOLD + _HELD + put(ESI, nothing) + put(EDX, _EMPTY_PATH)
            code += _r10(at[_SEALED]) + _r8(len(_SEALED)) + call(_MOUNT_SETATTR) + OR_LEAVE
            code += self._kept_as(_FIRST_COVER + index)
        code += _KEPT + call(_CLOSE)
        return code + put(EDI, at[_ATTACH_POINT]) + put(ESI, _DETACH) + call(_UMOUNT) + OR_LEAVE

    def _move(self, cover: bytes) -> bytes:
        """Mount what ``cover`` puts into edi at the place in ebx."""
        nothing = self._places[_NOTHING]
        code = cover + put(ESI, nothing) + b"\x89\xda" + _r10(nothing)  # mov edx, ebx
        return code + _r8(_BOTH_EMPTY) + call(_MOVE_MOUNT)

    def _cover(self, code: Code, index: int) -> None:
        """Cover one name, if its placeholder is there."""
        cover = put(EDI, _FIRST_COVER + index)
        code += self._open(index)
        code += _KEPT + self._look(_WANT_INODE)
        for found, told in ((_STATX_INODE, 0), (_STATX_DEVICE, 8)):
            code += b"\x48\x8b\x04\x25" + number(self._status + found, 4)  # mov rax, [found]
            told += self._picture + _IDENTITY * index
            code += b"\x48\x3b\x04\x25" + number(told, 4)  # cmp rax, [told]
            code.jump(code.NOT_EQUAL, "other")
        code += self._move(cover) + OR_LEAVE
        code += _KEPT + call(_CLOSE)
        code += self._open(index)
        code += _KEPT + self._look(_WANT_MOUNT)
        code += b"\xf7\x04\x25" + number(self._status, 4) + number(_WANT_MOUNT, 4)  # test [mask]
        code.jump(code.EQUAL, "other")  # a kernel that does not tell
        code += b"\x4c\x8b\x34\x25" + number(self._status + _STATX_MOUNT, 4)  # mov r14, [mount]
        code += cover + self._look(_WANT_MOUNT)
        code += b"\x4c\x3b\x34\x25" + number(self._status + _STATX_MOUNT, 4)  # cmp r14, [mount]
        code.jump(code.NOT_EQUAL, "other")
        code += _KEPT + call(_CLOSE) + cover + call(_CLOSE)

    def _open(self, index: int) -> bytes:
        """Open what a path leads to, and keep it in ebx."""
        code = put(EDI, _HERE) + put(ESI, self._paths[index]) + put(EDX, self._places[_HOW])
        return code + _r10(len(_HOW)) + call(_OPENAT2) + OR_LEAVE + _KEEP

    def _look(self, wanted: int) -> bytes:
        """Ask for the status of the fd in edi."""
        code = put(ESI, self._places[_NOTHING]) + put(EDX, _EMPTY_PATH) + _r10(wanted)
        return code + _r8(self._status) + call(_STATX) + OR_LEAVE
