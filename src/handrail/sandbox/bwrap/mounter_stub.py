"""A program of some hundred bytes that makes many mounts beside bwrap.  Pure.

bwrap reads the whole mount table for each mount of its own, so it must not see these.  The program
forks.  The parent becomes bwrap; the child, the *mounter*, makes the mounts in a mount namespace of
its own meanwhile.  When bwrap has made its own it waits; the mounter enters its namespace, lays a
copy of each writable tree with all that is mounted in it onto bwrap's mount of that tree, and lets
bwrap go on.  In C it would be::

    unshare(CLONE_NEWNS | CLONE_NEWUSER);             // CLONE_NEWUSER for ordinary users
    write_file("/proc/self/setgroups", "deny");       // these as well
    write_file("/proc/self/uid_map", "UID UID 1");
    write_file("/proc/self/gid_map", "GID GID 1");
    mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &private);
    mount_setattr(AT_FDCWD, "/dev", 0, &read_only);   // for root, as private_mounts_stub does
    prctl(PR_SET_PDEATHSIG, SIGKILL);                 // unless it outlives its parent
    children = open("/proc/thread-self/children", O_RDONLY);
    if (fork() > 0) {
        close(TOLD), close(HOLD), close(PROGRAM);     // the mounter's ends
        execve(argv[1], argv + 1, environ);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(BWRAP_TOLD), close(BWRAP_HOLD);
    unshare(CLONE_NEWNS);
    proc = open("/proc", O_PATH);
    directory = ..., file = ...;                      // empty ones in a tmpfs, for what is covered
    for (place in places) {
        fd = opened(place);                           // no link on the way, and the right inode
        tree = open_tree(source of place, CLONE | RECURSIVE);
        mount_setattr(tree, RECURSIVE, ...);          // read-only, unless it is only pinned
        move_mount(tree, fd);
    }
    for (root in roots)
        root.tree = ...;                              // so too, with nosuid and nodev
    if (read(TOLD) != 0) exit(1);                     // bwrap has ended
    setns(openat(proc, "<the other child of our parent>/ns/mnt"), CLONE_NEWNS);
    for (root in roots)
        move_mount(root.tree, opened("/newroot" + root));
    read(HOLD);                                       // else bwrap is told that we have failed
    exit(0);

Whatever fails ends the mounter, and bwrap with it, before there is a command.

It is here as bytes for x86_64; on other machines ``premount_program.py`` makes the mounts before
bwrap starts.
"""

from __future__ import annotations

import os
import struct

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
from handrail.sandbox.bwrap.arguments import (
    BEFORE_FD,
    MOUNTED_FD,
    MOUNTER_GO_FD,
    MOUNTER_TOLD_FD,
    MOUNTS_FD,
)
from handrail.sandbox.bwrap.premount import EMPTY_DIRECTORY, EMPTY_FILE, IF_THERE, PIN
from handrail.sandbox.bwrap.private_mounts_stub import (
    SEAL,
    become,
    id_files,
    seal_devices,
    write_files,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from handrail.sandbox.bwrap.premount import Place


_READ, _WRITE, _CLOSE, _FSTAT, _GETPID, _FORK, _PRCTL = 0, 1, 3, 5, 39, 57, 157
_EXIT_GROUP, _OPENAT, _MKDIRAT, _UNSHARE, _SETNS = 231, 257, 258, 272, 308
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_OPENAT2, _MOUNT_SETATTR = 437, 442
_PDEATHSIG, _SIGKILL = 1, 9
_NEW_NAMESPACE, _NEW_USER = 0x20000, 0x10000000
_HERE, _AT_EMPTY_PATH, _AT_RECURSIVE = 0xFFFFFF9C, 0x1000, 0x8000
_CLONE_TREE = 1 | os.O_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE
_BOTH_EMPTY = 0x44  # paths of both ends: the fds themselves
_CMD_CREATE = 6
_ENOENT = 2
_PATH_ONLY = os.O_PATH | os.O_CLOEXEC
_READ_ONLY, _NO_SUID, _NO_DEV, _PRIVATE, _NO_SYMLINKS = 1, 2, 4, 1 << 18, 4
#: Where bwrap has its new root until it is the only one.
_NEW_ROOT = b"/newroot"

#: A place: the address of the fd that is mounted, the address of the attributes, whether it may be
#: gone (of a root: its tree), device, inode, the size of all of it; then its path.
_PLACE = struct.Struct("<6Q")
_MAY_BE_GONE, _DEVICE, _INODE, _SIZE, _NAME = 16, 24, 32, 40, 48

_WORDS = {
    "root": b"/\0",
    "nothing": b"\0",
    "proc": b"/proc\0",
    "children": b"/proc/thread-self/children\0",
    "tmpfs": b"tmpfs\0",
    "directory name": b"directory\0",
    "file name": b"file\0",
    "sentence": b" cannot be protected: it was exchanged, or nothing can be mounted there\n",
    "devices": SEAL[0],
    "read-only": SEAL[1],
    "private": struct.pack("<4Q", 0, 0, _PRIVATE, 0),
    "pinned": struct.pack("<4Q", _NO_SUID | _NO_DEV, 0, 0, 0),
    "sealed": struct.pack("<4Q", _READ_ONLY | _NO_SUID | _NO_DEV, 0, 0, 0),
    "how": struct.pack("<3Q", _PATH_ONLY | os.O_NOFOLLOW, 0, _NO_SYMLINKS),
    # Variables.
    "place": bytes(8),
    "directory": bytes(8),
    "file": bytes(8),
    "tree": bytes(8),
    "proc fd": bytes(8),
    "children fd": bytes(8),
    "roots": bytes(8),
    "places": bytes(8),
    "status": bytes(144),
    "listed": bytes(4096),
}


class Stub:
    """The program for one user; ``lasting``: bwrap outlives the process that starts it."""

    def __init__(self, uid: int, gid: int, *, lasting: bool) -> None:
        self._files = [] if uid == 0 else id_files(uid, gid)
        self._lasting = lasting
        self._text = b""
        self._at: dict[str, int] = {}
        for _ in range(2):  # the second time with its length
            place = data_at(self._text)
            for name, word in _WORDS.items():
                self._at[name] = place
                place += (len(word) + 7) // 8 * 8
            self._file_places = []
            for file in self._files:
                self._file_places.append(place)
                place += len(file)
            self._roots = (place + 7) // 8 * 8
            self._text = self._code()

    def elf(self, roots: bytes, places: bytes) -> bytes:
        """The program for these ``records``."""
        words = {**_WORDS, "roots": number(self._roots, 8)}
        words["places"] = number(self._roots + len(roots), 8)
        data = b"".join(word.ljust((len(word) + 7) // 8 * 8, b"\0") for word in words.values())
        data += b"".join(self._files)
        data = data.ljust(self._roots - data_at(self._text), b"\0")
        return executable(self._text, data + roots + places)

    def records(self, places: Iterable[Place], *, roots: bool = False) -> bytes:
        """Places as the program reads them; the last ones need an ``END`` behind them."""
        # A place that is pinned has the attributes of the root it is in.
        pin = (self._at["place"], self._at["pinned"] if roots else 0)
        what = {
            EMPTY_DIRECTORY: (self._at["directory"], self._at["sealed"]),
            EMPTY_FILE: (self._at["file"], self._at["sealed"]),
        }
        seal = (self._at["place"], self._at["sealed"])
        out = []
        for action, device, inode, path in places:
            if action == PIN:
                source, gone = pin, 0
            else:
                plain = action.removesuffix(IF_THERE)
                source, gone = what.get(plain, pin if plain == PIN else seal), plain != action
            name = _NEW_ROOT + path + b"\0"
            name += bytes(-len(name) % 8)
            out.append(_PLACE.pack(*source, gone, device, inode, _NAME + len(name)) + name)
        return b"".join(out)

    # --- code -----------------------------------------------------------------------------

    def _code(self) -> bytes:
        code = Code()
        self._begin(code)
        code += put(EDI, MOUNTS_FD) + call(_CLOSE) + put(EDI, MOUNTED_FD) + call(_CLOSE)
        code += put(EDI, _NEW_NAMESPACE) + call(_UNSHARE)
        code += self._point("proc")
        code.jump(code.NEGATIVE, "failed")
        code += put(EDI, _HERE) + put(ESI, self._at["proc"]) + put(EDX, _PATH_ONLY)
        code += call(_OPENAT) + self._store("proc fd")
        code.jump(code.NEGATIVE, "failed")
        self._make_empty(code)
        # Whatever fails from here on names the path.
        self._each(code, "places", self._mount)
        self._each(code, "roots", self._copy)
        # Until bwrap has taken its byte and closed its end.
        code += put(EDI, MOUNTER_TOLD_FD) + self._listed_to(1) + call(_READ)
        code.jump(code.NOT_EQUAL, "exit")
        self._enter(code)
        self._each(code, "roots", self._attach)
        code += put(EDI, MOUNTER_GO_FD) + self._listed_to(1) + call(_READ)
        code += b"\x31\xff" + call(_EXIT_GROUP)  # xor edi, edi
        self._open(code)
        self._fail(code)
        return code.bytes()

    def _begin(self, code: Code) -> None:
        user = _NEW_USER if self._files else 0
        code += put(EDI, _NEW_NAMESPACE | user) + call(_UNSHARE) + OR_LEAVE
        code += write_files(self._files, self._file_places)
        code += put(EDI, _HERE) + put(ESI, self._at["root"]) + put(EDX, _AT_RECURSIVE)
        code += _r10(self._at["private"]) + _r8(32) + call(_MOUNT_SETATTR) + OR_LEAVE
        if not self._files:
            code += seal_devices(self._at["devices"], self._at["read-only"])
        die = put(EDI, _PDEATHSIG) + put(ESI, _SIGKILL) + put(EDX, 0) + _r10(0) + _r8(0)
        die += call(_PRCTL)
        if not self._lasting:
            # Set here, since gaining privileges clears it.  bwrap sets it too, but later.
            code += die
        code += put(EDI, _HERE) + put(ESI, self._at["children"]) + put(EDX, os.O_CLOEXEC)
        code += call(_OPENAT) + OR_LEAVE + self._store("children fd")
        code += call(_FORK) + OR_LEAVE
        code.jump(code.EQUAL, "mounter")
        code += put(EDI, MOUNTER_TOLD_FD) + call(_CLOSE) + put(EDI, MOUNTER_GO_FD) + call(_CLOSE)
        code += become(BEFORE_FD)
        code.label("mounter")
        code += die

    def _make_empty(self, code: Code) -> None:
        """Make an empty directory and an empty file without any permissions."""
        code += put(EDI, self._at["tmpfs"]) + put(ESI, 1) + call(_FSOPEN)
        code.jump(code.NEGATIVE, "failed")
        code += b"\x89\xc3\x89\xdf" + put(ESI, _CMD_CREATE) + put(EDX, 0) + _r10(0) + _r8(0)
        code += call(_FSCONFIG)  # mov ebx, eax; mov edi, ebx before it
        code.jump(code.NEGATIVE, "failed")
        code += b"\x89\xdf" + put(ESI, 1) + put(EDX, 0) + call(_FSMOUNT)
        code.jump(code.NEGATIVE, "failed")
        # Attached, so that parts of it can be mounted elsewhere; it goes with the namespace.
        code += b"\x89\xc3\x89\xdf" + self._move(self._load(EDX, "proc fd"))
        code.jump(code.NEGATIVE, "failed")
        code += b"\x89\xdf" + put(ESI, self._at["directory name"]) + put(EDX, 0) + call(_MKDIRAT)
        code.jump(code.NEGATIVE, "failed")
        code += b"\x89\xdf" + put(ESI, self._at["file name"])
        code += put(EDX, os.O_CREAT | os.O_CLOEXEC) + _r10(0) + call(_OPENAT)
        code.jump(code.NEGATIVE, "failed")
        for kind in ("directory", "file"):
            code += b"\x89\xdf" + put(ESI, self._at[f"{kind} name"]) + put(EDX, _PATH_ONLY)
            code += call(_OPENAT) + self._store(kind)
            code.jump(code.NEGATIVE, "failed")

    def _each(self, code: Code, which: str, what: Callable[[Code, str], None]) -> None:
        """Do something with each record, which r12 points to; r14: its path in bwrap."""
        code += b"\x4c\x8b\x24\x25" + number(self._at[which], 4)  # mov r12, [which]
        name = f"{which} {what.__name__}"
        code.label(name)
        code += b"\x49\x83\x7c\x24" + bytes((_SIZE, 0))  # cmp qword [r12+size], 0
        code.jump(code.EQUAL, f"{name} end")
        code += b"\x4d\x8d\x74\x24" + bytes((_NAME,))  # lea r14, [r12+name]
        what(code, f"{name} next")
        code.label(f"{name} next")
        code += b"\x4d\x03\x64\x24" + bytes((_SIZE,))  # add r12, [r12+size]
        code.jump(code.ALWAYS, name)
        code.label(f"{name} end")

    def _mount(self, code: Code, following: str) -> None:
        code += self._outside()
        code.jump(_CALL, "open")
        code.jump(_NOT_NEGATIVE, f"{following} there")
        code += b"\x83\xf8" + number(256 - _ENOENT, 1)  # cmp eax, -ENOENT
        code.jump(code.NOT_EQUAL, "failed")
        code += b"\x49\x83\x7c\x24" + bytes((_MAY_BE_GONE, 0))
        code.jump(code.EQUAL, "failed")
        code.jump(code.ALWAYS, following)
        code.label(f"{following} there")
        code += self._store("place") + self._clone_source()
        code.jump(code.NEGATIVE, "failed")
        code += b"\x49\x83\x7c\x24\x08\0"  # cmp qword [r12+8], 0
        code.jump(code.EQUAL, f"{following} set")
        code += self._set_attributes()
        code.jump(code.NEGATIVE, "failed")
        code.label(f"{following} set")
        code += b"\x89\xef" + self._move(b"\x89\xda")  # mov edi, ebp; mov edx, ebx
        code.jump(code.NEGATIVE, "failed")
        code += b"\x89\xef" + call(_CLOSE) + b"\x89\xdf" + call(_CLOSE)

    def _copy(self, code: Code, following: str) -> None:
        code += self._outside()
        code.jump(_CALL, "open")
        code.jump(code.NEGATIVE, "failed")
        code += self._store("place") + self._clone_source()
        code.jump(code.NEGATIVE, "failed")
        code += b"\x41\x89\x44\x24" + bytes((_MAY_BE_GONE,))  # mov [r12+16], eax
        code += self._set_attributes()
        code.jump(code.NEGATIVE, "failed")
        code += b"\x89\xdf" + call(_CLOSE)

    def _attach(self, code: Code, following: str) -> None:
        code.jump(_CALL, "open")
        code.jump(code.NEGATIVE, "failed")
        code += b"\x41\x8b\x7c\x24" + bytes((_MAY_BE_GONE,))  # mov edi, [r12+16]
        code += self._move(b"\x89\xda")
        code.jump(code.NEGATIVE, "failed")

    def _enter(self, code: Code) -> None:
        """Enter the mount namespace of the other child of our parent."""
        code += self._point("proc")
        code += call(_GETPID) + b"\x89\xc5"  # mov ebp, eax
        code += self._load(EDI, "children fd") + self._listed_to(4000) + call(_READ)
        code.jump(code.NOT_POSITIVE, "failed")
        code += b"\x41\xbd" + number(self._at["listed"], 4)  # mov r13d, listed
        code.label("child")
        code += b"\x4d\x89\xec" + b"\x31\xc0"  # mov r12, r13; xor eax, eax
        code.label("digit")
        code += b"\x41\x0f\xb6\x4d\0" + b"\x83\xe9\x30" + b"\x83\xf9\x0a"  # ecx = [r13] - '0'
        code.jump(_NOT_BELOW, "read")
        code += b"\x6b\xc0\x0a" + b"\x01\xc8" + b"\x49\xff\xc5"  # eax = eax * 10 + ecx; r13++
        code.jump(code.ALWAYS, "digit")
        code.label("read")
        code += b"\x4d\x39\xe5"  # cmp r13, r12
        code.jump(code.EQUAL, "failed")
        code += b"\x39\xe8"  # cmp eax, ebp
        code.jump(code.NOT_EQUAL, "found")
        code += b"\x49\xff\xc5"
        code.jump(code.ALWAYS, "child")
        code.label("found")
        code += b"\x48\xb8/ns/mnt\0" + b"\x49\x89\x45\0"  # mov rax, "/ns/mnt"; mov [r13], rax
        code += self._load(EDI, "proc fd") + b"\x4c\x89\xe6" + put(EDX, os.O_CLOEXEC)
        code += call(_OPENAT)  # mov rsi, r12 before it
        code.jump(code.NEGATIVE, "failed")
        code += b"\x89\xc7" + put(ESI, _NEW_NAMESPACE) + call(_SETNS)
        code.jump(code.NEGATIVE, "failed")

    def _open(self, code: Code) -> None:
        """Open the path in r14 into ebx and eax, or have the error in eax.

        What is not the inode of the record ends everything.
        """
        code.label("open")
        code += put(EDI, _HERE) + b"\x4c\x89\xf6"  # mov rsi, r14
        code += put(EDX, self._at["how"]) + _r10(24) + call(_OPENAT2)
        code.jump(code.NEGATIVE, "opened")
        code += b"\x89\xc3\x89\xdf" + put(ESI, self._at["status"]) + call(_FSTAT)
        code.jump(code.NEGATIVE, "failed")
        for offset, wanted in ((0, _DEVICE), (8, _INODE)):
            code += b"\x48\x8b\x04\x25" + number(self._at["status"] + offset, 4)
            code += b"\x49\x3b\x44\x24" + bytes((wanted,))  # cmp rax, [r12+wanted]
            code.jump(code.NOT_EQUAL, "failed")
        code += b"\x89\xd8\x85\xc0"  # mov eax, ebx; test eax, eax
        code.label("opened")
        code += b"\xc3"

    def _fail(self, code: Code) -> None:
        """Say which path it was, and exit."""
        code.label("failed")
        code += b"\x31\xd2"  # xor edx, edx
        code.label("length")
        code += b"\x41\x80\x3c\x16\0"  # cmp byte [r14+rdx], 0
        code.jump(code.EQUAL, "measured")
        code += b"\xff\xc2"  # inc edx
        code.jump(code.ALWAYS, "length")
        code.label("measured")
        code += put(EDI, 2) + b"\x4c\x89\xf6" + call(_WRITE)
        code += put(EDI, 2) + put(ESI, self._at["sentence"])
        code += put(EDX, len(_WORDS["sentence"])) + call(_WRITE)
        code.label("exit")
        code += put(EDI, 1) + call(_EXIT_GROUP)

    # --- pieces ---------------------------------------------------------------------------

    def _point(self, name: str) -> bytes:
        """Have r14 point to a word, for ``failed``; leaves the flags."""
        return b"\x41\xbe" + number(self._at[name], 4)  # mov r14d, name

    def _outside(self) -> bytes:
        """The path outside bwrap."""
        return b"\x49\x83\xc6" + bytes((len(_NEW_ROOT),))  # add r14, 8

    def _store(self, name: str) -> bytes:
        return b"\x89\x04\x25" + number(self._at[name], 4)  # mov [name], eax

    def _load(self, register: int, name: str) -> bytes:
        return b"\x8b" + bytes((register << 3 | 4, 0x25)) + number(self._at[name], 4)

    def _listed_to(self, most: int) -> bytes:
        return put(ESI, self._at["listed"]) + put(EDX, most)

    def _clone_source(self) -> bytes:
        """Into ebp and eax."""
        text = b"\x49\x8b\x04\x24" + b"\x8b\x38"  # mov rax, [r12]; mov edi, [rax]
        text += put(ESI, self._at["nothing"]) + put(EDX, _CLONE_TREE) + call(_OPEN_TREE)
        return text + b"\x89\xc5"  # mov ebp, eax

    def _set_attributes(self) -> bytes:
        """Of the tree in ebp, as the record says."""
        text = b"\x89\xef" + put(ESI, self._at["nothing"])
        text += put(EDX, _AT_EMPTY_PATH | _AT_RECURSIVE)
        text += b"\x4d\x8b\x54\x24\x08" + _r8(32)  # mov r10, [r12+8]
        return text + call(_MOUNT_SETATTR)

    def _move(self, to: bytes) -> bytes:
        """Mount the tree in edi onto what ``to`` loads into edx."""
        text = put(ESI, self._at["nothing"]) + to + _r10(self._at["nothing"]) + _r8(_BOTH_EMPTY)
        return text + call(_MOVE_MOUNT)


#: Behind the last record.
END = bytes(_PLACE.size)

_CALL, _NOT_NEGATIVE, _NOT_BELOW = b"\xe8", b"\x0f\x89", b"\x0f\x83"


def _r10(value: int) -> bytes:
    return b"\x41\xba" + number(value, 4)


def _r8(value: int) -> bytes:
    return b"\x41\xb8" + number(value, 4)
