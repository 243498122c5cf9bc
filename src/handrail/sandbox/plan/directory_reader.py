"""Reading thousands of directories by programs of some hundred bytes, several at once.

Nearly all of that is time of the kernel, which Python can have on one processor only, and with a
lock taken back after each call.  Each program reads a share, while this one takes in what they have
found.  In C it would be::

    char *path = in, *end = in + read(0, in, sizeof in);
    for (; path < end; path += strlen(path) + 1) {
        if (there is much) write(1, out, ...), sched_yield();    // to those that serve clients
        record = {.error = 0};
        fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | ...);
        fstat(fd, &record.status);
        if (leaves && record.status.st_nlink == 2)
            record.count = newfstatat(fd, ".git", ...) == 0;     // it has no directories in it
        else
            while (getdents64(fd, ...) > 0)
                record.names += kind and name of each;           // but . and ..
        close(fd);
    }
    write(1, out, ...);

It decides nothing and knows no tree: whatever it cannot read, and whatever is odd, is read by
``directory`` itself, as everything is on machines other than x86_64.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct

from handrail import memory_file
from handrail.keeper.elf_x86_64 import EDI, EDX, ESI, Code, call, data_at, executable, number, put
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox.plan import listing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    #: Bytes of names, error, count of names, nothing; device, inode, links, mode, user and ctime.
    Record = tuple[int, int, int, int, int, int, int, int, int, int, int]

#: How many run at once.
_MOST_PROGRAMS = 4
#: The directories of one program.
_SHARE = 8192
#: Room of a pipe, in which a program can be ahead.
_AHEAD = 1 << 20
_AT_ONCE = 1 << 16

_READ, _WRITE, _OPEN, _CLOSE, _FSTAT, _EXIT = 0, 1, 2, 3, 5, 60
_SCHED_YIELD, _GETDENTS64, _NEWFSTATAT = 24, 217, 262
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FOLLOW = 0x100
_TOO_MUCH = 27
_IN, _OUT, _LISTED, _OTHER = 1 << 22, 1 << 20, 1 << 16, 144
#: It writes when it has so much.
_MUCH = 1 << 15
#: Enough for the head of a record and all names of one call.
_ROOM = _LISTED + 256

#: A ``Record``; from the device on they are of ``struct stat``.
_RECORD = struct.Struct("<IiIi QQQII 72x qq 24x")

_ENV: dict[bytes, bytes] = {}
#: By whether leaves are read.
_programs: dict[bool, bytes] = {}


def usable() -> bool:
    """Whether such programs can be started here."""
    return seccomp_spawn.startable()


def read(paths: Sequence[bytes], *, leaves: bool) -> Iterator[tuple[bytes, Record, bytes]]:
    """Read directories: what was found of each, and its names, each behind its kind and with a zero
    at its end.  Those that cannot be read are left out.

    ``leaves``: the names in directories with two links are not asked for; ``count`` says whether
    there is a ``.git``.
    """
    programs = min(_MOST_PROGRAMS, len(os.sched_getaffinity(0)))
    while paths:
        share = min(_SHARE, -(-len(paths) // programs))
        running: list[_Program] = []
        try:
            # All before any is busy: this thread has the interpreter until they have started.
            for at in range(0, min(len(paths), share * programs), share):
                running.append(_Program(paths[at : at + share], _program(leaves)))
            yield from _taken(running)
        finally:
            for one in running:
                one.close()
        paths = paths[share * programs :]


def _taken(running: list[_Program]) -> Iterator[tuple[bytes, Record, bytes]]:
    """What programs find, as it comes."""
    waiting = select.poll()
    by_fd = {one.fd: one for one in running if one.fd >= 0}
    for fd in by_fd:
        waiting.register(fd, select.POLLIN)
    while by_fd:
        for fd, _ in waiting.poll():
            data = os.read(fd, _AT_ONCE)
            if data:
                yield from by_fd[fd].records(data)
            else:
                waiting.unregister(fd)
                del by_fd[fd]


class _Program:
    """One that reads some directories; it is not started where that is not possible."""

    def __init__(self, paths: Sequence[bytes], program: bytes) -> None:
        self._paths = iter(paths)
        self._rest = b""
        self._pid = 0
        #: What it finds can be read there.
        self.fd = -1
        asked = b"\0".join(paths) + b"\0"
        if len(asked) <= _IN:
            try:
                self._start(program, asked)
            except OSError:
                self.close()  # no process, no memory: they are read one by one

    def _start(self, program: bytes, asked: bytes) -> None:
        self.fd, told = os.pipe2(os.O_CLOEXEC)
        files = [told]
        try:
            fcntl.fcntl(told, fcntl.F_SETPIPE_SZ, _AHEAD)
        except OSError:
            pass  # there are many already
        try:
            files.append(seccomp_spawn.executable("handrail-reader", program))
            files.append(memory_file.of("handrail-paths", asked))
            for fd in files[:3]:
                # Beyond both numbers, so that none is overwritten before it is copied.
                files.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 8))
            told, which, given = files[3:]
            actions = [(os.POSIX_SPAWN_DUP2, given, 0), (os.POSIX_SPAWN_DUP2, told, 1)]
            path = b"/proc/self/fd/%d" % which
            self._pid = os.posix_spawn(path, (path,), _ENV, file_actions=actions, setsigmask=())
        finally:
            for fd in files:
                os.close(fd)

    def records(self, data: bytes) -> Iterator[tuple[bytes, Record, bytes]]:
        """The directories of which all is known with this part of what it writes."""
        if self._rest:
            data = self._rest + data
        unpack, head = _RECORD.unpack_from, _RECORD.size
        at, size = 0, len(data)
        while at + head <= size:
            record: Record = unpack(data, at)
            begin = at + head
            if begin + record[0] > size:
                break
            at = begin + record[0]
            path = next(self._paths, b"")
            if not record[1]:
                yield path, record, data[begin:at]
        self._rest = data[at:]

    def close(self) -> None:
        """End it, if it has not ended."""
        if self.fd >= 0:
            os.close(self.fd)  # it cannot write any more
            self.fd = -1
        if self._pid:
            try:
                os.waitpid(self._pid, 0)
            except OSError:
                pass  # reaped by another part of the program
            self._pid = 0


def _program(leaves: bool) -> bytes:
    found = _programs.get(leaves)
    if found is None:
        text = b""
        for _ in range(2):  # the second time with its length
            text = _text(data_at(text), leaves)
        found = executable(text, b".git\0", _OTHER + _LISTED + _IN + _OUT)
        _programs[leaves] = found
    return found


def _text(git: int, leaves: bool) -> bytes:
    """The code.

    r12 is the path, r13 the end of all, rbx where to write, r14 the record, r15 the fd.  r8 is one
    of the names that were listed, r9 the end of those.
    """
    other = git + 5
    listed = other + _OTHER
    given = listed + _LISTED
    out = given + _IN
    status = number(16, 1)
    code = Code()
    code += put(EDI, 0) + put(ESI, given) + put(EDX, _IN) + call(_READ)
    code.jump(code.NOT_POSITIVE, "fail")
    code += b"\x41\xbc" + number(given, 4)  # mov r12d, given
    code += b"\x4c\x63\xe8"  # movsxd r13, eax
    code += b"\x4d\x01\xe5"  # add r13, r12
    code += b"\xbb" + number(out, 4)  # mov ebx, out

    code.label("next")
    code += b"\x4d\x39\xec"  # cmp r12, r13
    code.jump(code.BELOW, "one")
    _flush(code, out, "last")
    code += b"\x31\xff" + put(0, _EXIT) + b"\x0f\x05"  # exit(0)
    code.label("fail")
    code += put(EDI, 1) + put(0, _EXIT) + b"\x0f\x05"

    code.label("one")
    code += b"\x48\x81\xfb" + number(out + _MUCH, 4)  # cmp rbx, much
    code.jump(code.BELOW, "room")
    _flush(code, out, "full")
    code += call(_SCHED_YIELD)
    code.label("room")
    code += b"\x49\x89\xde"  # mov r14, rbx
    code += b"\x48\x81\xc3" + number(_RECORD.size, 4)  # add rbx, size
    code += b"\x31\xc0" + b"\x49\x89\x06" + b"\x49\x89\x46\x08"  # xor eax; mov [r14], rax; +8
    code += b"\x4c\x89\xe7" + put(ESI, _FLAGS) + b"\x31\xd2" + call(_OPEN)  # mov rdi, r12
    code.jump(code.NEGATIVE, "error")
    code += b"\x41\x89\xc7"  # mov r15d, eax
    code += b"\x44\x89\xff" + b"\x49\x8d\x76" + status + call(_FSTAT)  # edi = r15d; rsi = r14+16
    code.jump(code.NEGATIVE, "unread")
    if leaves:
        code += b"\x49\x83\x7e" + number(16 + 16, 1) + b"\x02"  # cmp qword [r14+links], 2
        code.jump(code.NOT_EQUAL, "list")
        code += b"\x44\x89\xff" + put(ESI, git) + put(EDX, other)
        code += b"\x41\xba" + number(_NO_FOLLOW, 4) + call(_NEWFSTATAT)  # mov r10d, flags
        code.jump(code.NOT_EQUAL, "close")
        code += b"\x41\xff\x46\x08"  # inc dword [r14+8]
        code.jump(code.ALWAYS, "close")

    code.label("list")
    code += b"\x44\x89\xff" + put(ESI, listed) + put(EDX, _LISTED) + call(_GETDENTS64)
    code.jump(code.NEGATIVE, "unread")
    code.jump(code.EQUAL, "close")
    code += b"\x41\xb8" + number(listed, 4)  # mov r8d, listed
    code += b"\x4c\x63\xc8" + b"\x4d\x01\xc1"  # movsxd r9, eax; add r9, r8
    code.label("name")
    code += b"\x41\x8b\x40\x13"  # mov eax, [r8+19]
    code += b"\x66\x3d\x2e\x00"  # cmp ax, "."
    code.jump(code.EQUAL, "skip")
    code += b"\x25\xff\xff\xff\x00" + b"\x3d\x2e\x2e\x00\x00"  # and eax, 0xffffff; cmp eax, ".."
    code.jump(code.EQUAL, "skip")
    code += b"\x41\x8a\x40\x12" + b"\x0c" + number(listing.KIND, 1)  # mov al, [r8+18]; or al, kind
    code += b"\x88\x03"  # mov [rbx], al
    code += b"\x48\x8d\x7b\x01" + b"\x49\x8d\x70\x13"  # lea rdi, [rbx+1]; lea rsi, [r8+19]
    code.label("byte")
    code += b"\xac\xaa" + b"\x84\xc0"  # lodsb; stosb; test al, al
    code.jump(code.NOT_EQUAL, "byte")
    code += b"\x48\x89\xfb"  # mov rbx, rdi
    code += b"\x41\xff\x46\x08"  # inc dword [r14+8]
    code.label("skip")
    code += b"\x41\x0f\xb7\x40\x10" + b"\x49\x01\xc0"  # movzx eax, word [r8+16]; add r8, rax
    code += b"\x4d\x39\xc8"  # cmp r8, r9
    code.jump(code.BELOW, "name")
    code += b"\x48\x81\xfb" + number(out + _OUT - _ROOM, 4)  # cmp rbx, end
    code.jump(code.BELOW, "list")
    code += put(0, 2**32 - _TOO_MUCH)

    code.label("unread")  # eax: the error
    code += b"\xf7\xd8" + b"\x41\x89\x46\x04"  # neg eax; mov [r14+4], eax
    code += b"\x49\x8d\x9e" + number(_RECORD.size, 4)  # lea rbx, [r14+size]
    code.label("close")
    code += b"\x44\x89\xff" + call(_CLOSE)
    code.jump(code.ALWAYS, "done")
    code.label("error")
    code += b"\xf7\xd8" + b"\x41\x89\x46\x04"
    code.label("done")
    code += b"\x48\x89\xd8" + b"\x4c\x29\xf0"  # mov rax, rbx; sub rax, r14
    code += b"\x2d" + number(_RECORD.size, 4) + b"\x41\x89\x06"  # sub eax, size; mov [r14], eax
    code.label("path")
    code += b"\x49\xff\xc4" + b"\x41\x80\x7c\x24\xff\x00"  # inc r12; cmp byte [r12-1], 0
    code.jump(code.NOT_EQUAL, "path")
    code.jump(code.ALWAYS, "next")
    return code.bytes()


def _flush(code: Code, out: int, name: str) -> None:
    """Write what there is."""
    code += b"\x41\xb8" + number(out, 4)  # mov r8d, out
    code.label(f"{name} write")
    code += b"\x48\x89\xda" + b"\x4c\x29\xc2"  # mov rdx, rbx; sub rdx, r8
    code.jump(code.EQUAL, f"{name} written")
    code += put(EDI, 1) + b"\x4c\x89\xc6" + call(_WRITE)  # mov rsi, r8
    code.jump(code.NOT_POSITIVE, "fail")
    code += b"\x49\x01\xc0"  # add r8, rax
    code.jump(code.ALWAYS, f"{name} write")
    code.label(f"{name} written")
    code += b"\xbb" + number(out, 4)  # mov ebx, out
