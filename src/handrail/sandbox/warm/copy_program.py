"""A program of a few kilobytes that makes a sandbox by copying the mounts of a template.  Pure.

The template is a mount namespace that bubblewrap has made (``template.py``).  Copying it takes the
kernel a tenth of the time in which bubblewrap makes one (``docs/decisions/0028``).  What a sandbox
has for itself alone is made anew in the copy: processes, network, terminals, ``/dev``, ``/proc``,
user namespace.

The *outer* process is the keeper's child, as bubblewrap's outer one is.  It has no rights and is in
no namespace of the sandbox, so that its end does not wait for them to be taken down.  In C::

    announce(connect, ANNOUNCED);  // as ``keeper/seccomp/stub.py``, if that is not done yet
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // if it ends with its parent
    maker = fork();
    wait4(maker, &status);
    if (status) exit(exit_code(status));
    exit(read(END, &code, 1) == 1 ? code : exit_code(wait4(-1)));

The *maker* makes the copy, covers missing names when the command comes, and is gone then::

    setns(ioctl(NAMESPACE, NS_GET_USERNS), CLONE_NEWUSER);
    setns(NAMESPACE, CLONE_NEWNS);
    unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
            | CLONE_NEWNET);
    bring_up("lo");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (path in mounted)  // a name that was exchanged since the template was looked at
        if (!(statx(path).stx_attributes & STATX_ATTR_MOUNT_ROOT)) exit(1);
    for (i = 0; i < covers; i++)
        cover[i] = directory[i] ? new_tmpfs("mode=0555") : copy_of(empty_file);
    first = clone(CLONE_PARENT);
    read(SET_UP, &namespace, 8);
    write(INFO, {first, namespace}, 16);
    if (covers) {
        write(READY, "w", 1);  // of a sandbox that waits
        do got = read(LINE, picture, SIZE); while (got == -EINTR);
        if (got <= 0) exit(1);  // the other end is gone: no command comes any more
        for (i = 0; i < covers; i++) {
            int place = openat2(AT_FDCWD, path[i], O_PATH, RESOLVE_NO_SYMLINKS);
            if (statx(place) is not picture.inode[i]) exit(1);
            move_mount(cover[i], "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
            // What the path leads to is the cover: the name was not moved away meanwhile.
            int seen = openat2(AT_FDCWD, path[i], O_PATH, RESOLVE_NO_SYMLINKS);
            if (statx(seen).mnt_id != statx(cover[i]).mnt_id) exit(1);
        }
        if (poll(&(struct pollfd){TO_STUB}, 1, 0) != 0) exit(1);  // it was killed
        if (read(READY, picture, 1) != 1) exit(1);
        sigprocmask(SIG_BLOCK, SIGPIPE);
        // Without success: it was killed just now, and its status is that of the command.
        write(TO_STUB, picture.request, got - sizeof(picture.inode));
    }
    exit(0);

The *first* process is that of the new PID namespace (``copy_inside.py``), and the last is the stub
(``keeper/waiting_stub.py``), which becomes the command.  All of them are this one
program.  Each exits with the errno of what fails.
READY is a socket with one byte: closed when that was read, and reset when it was not, so the server
sees which of the two happened.  The byte is read before the command begins: one that may have begun
is never started a second time.
"""

from __future__ import annotations

from handrail.keeper import waiting_stub
from handrail.keeper.elf_x86_64 import (
    EBX,
    OR_LEAVE,
    R12D,
    R15D,
    At,
    Code,
    Data,
    built,
    call,
    hold,
    number,
    store,
)
from handrail.keeper.seccomp.spawn import ITS_LINE
from handrail.keeper.seccomp.stub import announcing
from handrail.keeper.waiting_stub import IDENTITY, LONGEST
from handrail.sandbox.bwrap.arguments import (
    COPY_FD,
    INFO_FD,
    LINE_FD,
    NAMESPACE_FD,
    READY_FD,
    SYNC_FD,
)
from handrail.sandbox.light_dataclass import Frozen
from handrail.sandbox.warm import copy_inside
from handrail.sandbox.warm.copy_inside import (
    END,
    END_TOLD,
    FIRST_COVER,
    FROM_MAKER,
    SET_UP,
    SET_UP_TOLD,
    TO_STUB,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    #: A path in the sandbox, and whether a directory covers it or a file.
    Cover = tuple[bytes, bool]

#: Each is an open fd of it.
MOST_COVERS = 200
#: What it writes to READY when it waits.
WAITS = b"w"

_READ, _WRITE, _CLOSE, _POLL, _SIGNAL_MASK, _IOCTL, _SOCKET = 0, 1, 3, 7, 14, 16, 41
_CLONE, _WAIT4 = 56, 61
_FCHMOD, _PRCTL, _UMOUNT, _EXIT_GROUP, _OPENAT = 91, 157, 166, 231, 257
_UNSHARE, _DUP3, _PIPE2, _SETNS, _STATX = 272, 292, 293, 308, 332
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_CLOSE_RANGE, _OPENAT2, _MOUNT_SETATTR = 436, 437, 442
_NEW_MOUNTS, _NEW_USER, _NEW_NETWORK, _GET_USER_NAMESPACE = 0x20000, 0x10000000, 0x40000000, 0xB701
#: PIDs, IPC, host name, control groups.
_NEW_OTHERS = 0x20000000 | 0x08000000 | 0x04000000 | 0x02000000
_CLOSE_ON_EXEC, _SIGCHLD, _SIGKILL, _CLONE_PARENT = 0x80000, 17, 9, 0x8000
_ALL_FDS = 2**32 - 1
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_INTERNET, _DATAGRAM, _SET_FLAGS = 2, 2, 0x8914
#: ``struct ifreq``: the name, then the flags IFF_UP and IFF_RUNNING.
_LOOPBACK_UP = b"lo".ljust(16, b"\0") + b"\x41\0".ljust(24, b"\0")
_SET_STRING, _CREATE = 1, 6
_READ_ONLY, _NO_SUID, _NO_DEV = 1, 2, 4
_HERE, _EMPTY_PATH, _BOTH_EMPTY, _DETACH = -100, 0x1000, 0x44, 2
_CLONE_TREE = 1 | _CLOSE_ON_EXEC | _EMPTY_PATH
_PATH_ONLY, _NEW_FILE = 0x200000 | _CLOSE_ON_EXEC, 0x40 | 0x80 | _CLOSE_ON_EXEC
#: O_PATH and O_NOFOLLOW, no mode, RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS.
_HOW = number(_PATH_ONLY | 0x20000, 8) + number(0, 8) + number(0x2 | 0x4, 8)
_SEALED = number(_READ_ONLY | _NO_SUID | _NO_DEV, 8) + bytes(24)
_EINTR, _BLOCK = 4, 0
#: A set of signals.
_SIGPIPE = number(1 << 12, 8)
#: ``struct statx``, and what of it is asked for.
_STATX_ATTRIBUTES, _STATX_INODE, _STATX_DEVICE, _STATX_MOUNT = 8, 32, 136, 144
_WANT_INODE, _WANT_MOUNT = 0x100, 0x1000
_MOUNT_ROOT, _NO_FOLLOW = 0x2000, 0x100
#: Memory: a status and other results, then inodes and a request.
_SCRATCH = 256


class Copy(Frozen):
    """What a copy is to be."""

    covers: Sequence[Cover]
    #: Where something must be mounted: names may change until the copy is made.
    mounted: Sequence[bytes]
    #: Whether it has a network of its own, rather than the one in which the program is started.
    network: bool
    #: Whether it outlives the program that starts it.
    lasting: bool
    #: Whether it says that it waits: else its command is on the way.
    waits: bool
    #: The filter by which calls are announced; empty if there is none or it is installed before.
    announced: bytes
    inside: copy_inside.Inside


def elf(copy: Copy) -> bytes:
    """The program that makes such a copy."""
    memory = _SCRATCH + IDENTITY * len(copy.covers) + LONGEST
    return built(lambda data: _Text(copy, data).program(), memory, waiting_stub.memory())


class _Text:
    """The code of the outer process and of the maker."""

    def __init__(self, copy: Copy, data: Data) -> None:
        self._copy = copy
        self._data = data
        self._scratch = data.memory
        self._picture = data.memory + _SCRATCH
        self._code = Code()

    def program(self) -> bytes:
        code, copy = self._code, self._copy
        if copy.announced:
            code += announcing(self._data, copy.announced, ITS_LINE)
        if not copy.lasting:
            code += call(_PRCTL, _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) + OR_LEAVE
        code += call(_PRCTL, _PR_SET_NAME, self._data.text(b"handrail-copy"), 0, 0, 0)
        self._pipe(END, END_TOLD)
        code += call(_CLONE, _SIGCHLD, 0, 0, 0, 0) + OR_LEAVE
        code.jump(code.EQUAL, "maker")
        self._outer()
        code.label("maker")
        self._maker()
        code.label("first")
        copy_inside.write(
            code,
            self._data,
            copy.inside,
            self._scratch,
            covers=len(copy.covers),
            lasting=copy.lasting,
        )
        return code.bytes()

    def _outer(self) -> None:
        """Wait for the maker, then for the command."""
        code, status = self._code, self._scratch
        code += hold(EBX)
        code += call(_CLOSE_RANGE, 3, END - 1, 0) + call(_CLOSE_RANGE, END_TOLD, _ALL_FDS, 0)
        code.label("making")
        code += call(_WAIT4, EBX, status, 0, 0)
        code.jump_if_result(-_EINTR, "making")
        code += b"\x83\x3c\x25" + number(status, 4) + b"\0"  # cmp dword [status], 0
        code.jump(code.NOT_EQUAL, "dead")
        code.label("end")
        code += call(_READ, END, status, 1)
        code.jump_if_result(-_EINTR, "end")
        code.jump_unless_result(1, "lost")
        code += b"\x0f\xb6\x3c\x25" + number(status, 4)  # movzx edi, byte [status]
        code.label("exit")
        code += call(_EXIT_GROUP)
        code.label("lost")
        code += call(_WAIT4, -1, status, 0, 0)
        code.jump_if_result(-_EINTR, "lost")
        code.label("dead")
        code += copy_inside.exit_code(status) + b"\x89\xc7"  # mov edi, eax
        code.jump(code.ALWAYS, "exit")

    def _maker(self) -> None:
        """Make the copy, and cover missing names in it when the command comes."""
        code, copy, scratch = self._code, self._copy, self._scratch
        code += call(_CLOSE, END)
        self._join()
        for path in copy.mounted:
            where = self._data.text(path)
            code += call(_STATX, _HERE, where, _NO_FOLLOW, 0, scratch) + OR_LEAVE
            attributes = number(scratch + _STATX_ATTRIBUTES, 4)
            code += b"\xf7\x04\x25" + attributes + number(_MOUNT_ROOT, 4)  # test [attributes]
            code.jump(code.EQUAL, "other")
        for index, (_, directory) in enumerate(copy.covers):
            if directory:
                code += self._tmpfs(b"0555") + _kept_as(FIRST_COVER + index)
        files = [index for index, (_, directory) in enumerate(copy.covers) if not directory]
        if files:
            self._empty_files(files)
        self._pipe(SET_UP, SET_UP_TOLD)
        if copy.covers:
            self._pipe(FROM_MAKER, TO_STUB)
        code += call(_CLONE, _CLONE_PARENT | _SIGCHLD, 0, 0, 0, 0) + OR_LEAVE
        code.jump(code.EQUAL, "first")
        code += store(scratch)
        for fd in (SET_UP_TOLD, END_TOLD, SYNC_FD, COPY_FD):
            code += call(_CLOSE, fd)
        code += call(_CLOSE, FROM_MAKER if copy.covers else LINE_FD)
        code.label("set up")
        code += call(_READ, SET_UP, scratch + 8, 8)
        code.jump_if_result(-_EINTR, "set up")
        code.jump_unless_result(8, "other")
        code += call(_WRITE, INFO_FD, scratch, 16)
        if copy.covers:
            self._wait_and_cover()
        code += call(_EXIT_GROUP, 0)
        code.label("other")
        code += call(_EXIT_GROUP, 1)

    def _join(self) -> None:
        """Become a member of a copy of the template's mounts, and of other new namespaces."""
        code, copy = self._code, self._copy
        code += call(_IOCTL, NAMESPACE_FD, _GET_USER_NAMESPACE, 0) + OR_LEAVE + hold(EBX)
        code += call(_SETNS, EBX, _NEW_USER) + OR_LEAVE + call(_CLOSE, EBX)
        code += call(_SETNS, NAMESPACE_FD, _NEW_MOUNTS) + OR_LEAVE + call(_CLOSE, NAMESPACE_FD)
        flags = _NEW_MOUNTS | _NEW_OTHERS | (_NEW_NETWORK if copy.network else 0)
        code += call(_UNSHARE, flags) + OR_LEAVE
        if copy.network:
            code += call(_SOCKET, _INTERNET, _DATAGRAM, 0) + OR_LEAVE + hold(EBX)
            up = self._data.text(_LOOPBACK_UP)
            code += call(_IOCTL, EBX, _SET_FLAGS, up) + OR_LEAVE + call(_CLOSE, EBX)
        code += call(_PRCTL, _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) + OR_LEAVE

    def _pipe(self, reads: int, writes: int) -> None:
        """Make a pipe with these fds."""
        self._code += call(_PIPE2, self._scratch, _CLOSE_ON_EXEC) + OR_LEAVE
        for place, fd in ((self._scratch, reads), (self._scratch + 4, writes)):
            self._code += call(_DUP3, At(place), fd, _CLOSE_ON_EXEC) + OR_LEAVE
            self._code += call(_CLOSE, At(place))

    def _wait_and_cover(self) -> None:
        """Wait for the command, cover missing names, and tell the stub."""
        code, copy = self._code, self._copy
        if copy.waits:
            code += call(_WRITE, READY_FD, self._data.text(WAITS), 1) + OR_LEAVE
        size = IDENTITY * len(copy.covers)
        code.label("wait")
        code += call(_READ, LINE_FD, self._picture, size + LONGEST)
        code.jump_if_result(-_EINTR, "wait")
        code += hold(R15D) + b"\x85\xc0"  # test eax, eax
        code.jump(code.NOT_POSITIVE, "other")
        for index in range(len(copy.covers)):
            self._cover(index)
        code += b"\xb8" + number(TO_STUB, 4) + store(self._scratch)  # mov eax, TO_STUB
        code += b"\x31\xc0" + store(self._scratch + 4)  # xor eax, eax
        code += call(_POLL, self._scratch, 1, 0)
        code.jump_unless_result(0, "other")
        code += call(_READ, READY_FD, self._scratch + 8, 1)
        code.jump_unless_result(1, "other")
        code += b"\x41\x81\xef" + number(size, 4)  # sub r15d, size
        # The others tell the command's end, also if the stub is killed before it has begun.
        code += call(_SIGNAL_MASK, _BLOCK, self._data.text(_SIGPIPE), 0, 8) + OR_LEAVE
        code += call(_WRITE, TO_STUB, self._picture + size, R15D)

    def _tmpfs(self, mode: bytes) -> bytes:
        """Make a file system that is mounted nowhere, and hold it in r12d."""
        text = self._data.text
        code = call(_FSOPEN, text(b"tmpfs"), 1) + OR_LEAVE + hold(EBX)
        for key, value in ((b"source", b"tmpfs"), (b"mode", mode)):
            code += call(_FSCONFIG, EBX, _SET_STRING, text(key), text(value), 0) + OR_LEAVE
        code += call(_FSCONFIG, EBX, _CREATE, 0, 0, 0) + OR_LEAVE
        code += call(_FSMOUNT, EBX, 1, _NO_SUID | _NO_DEV) + OR_LEAVE + hold(R12D)
        return code + call(_CLOSE, EBX)

    def _empty_files(self, covers: Sequence[int]) -> None:
        """Make copies of a mount of an empty file, in a file system that is mounted meanwhile."""
        code, text = self._code, self._data.text
        nothing, place = text(b""), text(b"/proc")
        code += self._tmpfs(b"0755")
        code += call(_MOVE_MOUNT, R12D, nothing, _HERE, place, 4) + OR_LEAVE
        code += call(_OPENAT, R12D, text(b"f"), _NEW_FILE, 0o444) + OR_LEAVE + hold(EBX)
        code += call(_FCHMOD, EBX, 0o444) + OR_LEAVE + call(_CLOSE, R12D)
        for index in covers:
            code += call(_OPEN_TREE, EBX, nothing, _CLONE_TREE) + OR_LEAVE + hold(R12D)
            sealed = text(_SEALED)
            code += call(_MOUNT_SETATTR, R12D, nothing, _EMPTY_PATH, sealed, len(_SEALED))
            code += OR_LEAVE + _kept_as(FIRST_COVER + index)
        code += call(_CLOSE, EBX) + call(_UMOUNT, place, _DETACH) + OR_LEAVE

    def _cover(self, index: int) -> None:
        """Cover one name, if its placeholder is there."""
        code, cover, nothing = self._code, FIRST_COVER + index, self._data.text(b"")
        code += self._open(index) + self._look(EBX, _WANT_INODE)
        for found, told in ((_STATX_INODE, 0), (_STATX_DEVICE, 8)):
            code += b"\x48\x8b\x04\x25" + number(self._scratch + found, 4)  # mov rax, [found]
            told += self._picture + IDENTITY * index
            code += b"\x48\x3b\x04\x25" + number(told, 4)  # cmp rax, [told]
            code.jump(code.NOT_EQUAL, "other")
        code += call(_MOVE_MOUNT, cover, nothing, EBX, nothing, _BOTH_EMPTY) + OR_LEAVE
        code += call(_CLOSE, EBX)
        code += self._open(index) + self._look(EBX, _WANT_MOUNT)
        code += b"\xf7\x04\x25" + number(self._scratch, 4) + number(_WANT_MOUNT, 4)  # test [mask]
        code.jump(code.EQUAL, "other")  # a kernel that does not tell
        code += b"\x4c\x8b\x34\x25" + number(self._scratch + _STATX_MOUNT, 4)  # mov r14, [mount]
        code += self._look(cover, _WANT_MOUNT)
        code += b"\x4c\x3b\x34\x25" + number(self._scratch + _STATX_MOUNT, 4)  # cmp r14, [mount]
        code.jump(code.NOT_EQUAL, "other")
        code += call(_CLOSE, EBX) + call(_CLOSE, cover)

    def _open(self, index: int) -> bytes:
        """Open what a path leads to, and hold it in ebx."""
        path, how = self._data.text(self._copy.covers[index][0]), self._data.text(_HOW)
        return call(_OPENAT2, _HERE, path, how, len(_HOW)) + OR_LEAVE + hold(EBX)

    def _look(self, fd: int, wanted: int) -> bytes:
        """Ask for the status of an fd."""
        nothing = self._data.text(b"")
        return call(_STATX, fd, nothing, _EMPTY_PATH, wanted, self._scratch) + OR_LEAVE


def _kept_as(fd: int) -> bytes:
    """Give what is held in r12d this number."""
    return call(_DUP3, R12D, fd, _CLOSE_ON_EXEC) + OR_LEAVE + call(_CLOSE, R12D)
