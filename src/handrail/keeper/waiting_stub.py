"""A program of a few hundred bytes that waits for a command and becomes it, and its request.  Pure.

It is the first program of a sandbox that was made ahead (``docs/decisions/0028``).  It says that it
waits, reads one packet from its line, and executes the command in it.  The packet is a picture of
its own memory: the program has a fixed address, so every pointer is right when it arrives, and
nothing has to be taken apart in the sandbox.

In C it would be::

    read(READY, picture, 1);
    close(READY);
    for (total = 0; total < sizeof(head) || total < head.length; total += got) {
        do got = read(LINE, picture + total, SIZE - total); while (got == -EINTR);
        if (got <= 0) exit(1);  // the other end is gone: no command comes any more
    }
    close(LINE);
    close(PROGRAM);
    for (limit *l = limits; l->kind != -1; l++)
        if (prlimit(0, l->kind, &l->value, NULL) < 0) fail(errno);
    if (terminal && (setsid() < 0 || ioctl(0, TIOCSCTTY, 0) < 0)) fail(errno);
    if (chdir(directory) < 0) { message = no_directory; status = status_missing = 1; fail(errno); }
    for (char **p = programs; *p; p++) {
        execve(*p, argv, environment);
        if (errno == ENOEXEC) { script[1] = *p; execve("/bin/sh", script, environment); }
        if (errno == EACCES) refused = true;
        else if (errno is none of ENOENT, ENOTDIR, ENODEV, ESTALE, ETIMEDOUT) fail(errno);
    }
    fail(refused ? EACCES : errno);

where ``fail`` writes a message with the text of the error to stderr and exits, with a status of
its own for ENOENT.  That is how bwrap and the C library's ``execvp`` do it, word for word.

The line is a socket that keeps packets whole, or a pipe where names are covered before
(``sandbox/warm/copy_program.py``).  The kernel gives a user with many pipes only small ones, and
then a packet comes in several pieces.

It is here as bytes for x86_64, because there need be no compiler where this runs; on other machines
no sandbox is made ahead.
"""

from __future__ import annotations

import os
import struct

from handrail.keeper.elf_x86_64 import (
    EDI,
    EDX,
    ESI,
    Code,
    call,
    data_at,
    executable,
    number,
    put,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MACHINES = ("x86_64",)

#: The longest request: one packet, well under the default socket buffer.
LONGEST = 60_000
#: Inode and device of one placeholder, as ``statx`` has them.
IDENTITY = 16

_READ, _WRITE, _CLOSE, _IOCTL, _EXECVE, _CHDIR = 0, 1, 3, 16, 59, 80
_SETSID, _EXIT_GROUP, _PRLIMIT = 112, 231, 302
_TIOCSCTTY = 0x540E
_EINTR, _ENOENT, _ENOEXEC, _EACCES, _ENODEV, _ENOTDIR, _ETIMEDOUT, _ESTALE = (
    4, 2, 8, 13, 19, 20, 110, 116,
)  # fmt: skip
#: After these the next directory of PATH is tried.
_NOT_THERE = (_ENOENT, _ENOTDIR, _ENODEV, _ESTALE, _ETIMEDOUT)
_ERRORS, _ERROR_SIZE = 134, 64
_SHELL = b"/bin/sh"
#: What the C library searches where there is no PATH.
_PATH = b"/bin:/usr/bin"
_PATH_MAX = 4096

#: The head of the picture: pointers to limits, directory, programs, argv, environment, script;
#: two messages with their lengths; two exit statuses, whether there is a terminal, and the length
#: of the whole packet.
_HEAD = struct.Struct("<6Q 4Q 4Q")
_LIMITS, _DIRECTORY, _PROGRAMS, _ARGV, _ENVIRONMENT, _SCRIPT = range(0, 48, 8)
_NO_PROGRAM, _NO_DIRECTORY = 48, 64
_STATUS, _STATUS_MISSING, _TERMINAL, _LENGTH = 80, 88, 96, 104
_LAST_LIMIT = 0xFFFFFFFFFFFFFFFF


def elf(ready: int, line: int, itself: int) -> bytes:
    """The program, by the fds it has: where it is seen that it waits, its line, the program."""
    return executable(_built(ready, line, itself), errors(), more=LONGEST)


def text(errors_at: int, ready: int, line: int) -> bytes:
    """Its code as a part of another program, which has ``errors`` there and ``memory``."""
    return _text(errors_at, _picture_at(), ready, line, None)


def memory() -> tuple[int, int]:
    """Address and size of the memory into which it reads its request."""
    return _picture_at(), LONGEST


def _built(ready: int, line: int, itself: int) -> bytes:
    code = b""
    for _ in range(2):  # the second time with its length
        errors_at = data_at(code)
        code = _text(errors_at, errors_at + _ERRORS * _ERROR_SIZE, ready, line, itself)
    return code


def errors() -> bytes:
    """The text of each error with its length, of one size each: what it says when it fails."""
    found = (os.strerror(error).encode()[: _ERROR_SIZE - 2] + b"\n" for error in range(_ERRORS))
    return b"".join(bytes((len(one),)) + one.ljust(_ERROR_SIZE - 1, b"\0") for one in found)


def _picture_at() -> int:
    """The address of the picture, behind the errors; of all programs the same."""
    if not _known:
        _known.append(data_at(_built(0, 0, 0)) + _ERRORS * _ERROR_SIZE)
    return _known[0]


def _text(errors_at: int, picture: int, ready: int, line: int, itself: int | None) -> bytes:
    def at(offset: int) -> bytes:
        return number(picture + offset, 4)

    code = Code()
    code += put(EDI, ready) + put(ESI, picture) + put(EDX, 1) + call(_READ)
    code += put(EDI, ready) + call(_CLOSE)
    code += b"\x45\x31\xf6"  # xor r14d, r14d
    code.label("wait")
    code += put(EDI, line) + b"\x41\x8d\xb6" + at(0)  # lea esi, [r14 + picture]
    code += put(EDX, LONGEST) + b"\x44\x29\xf2" + call(_READ)  # sub edx, r14d
    code += b"\x83\xf8" + number(256 - _EINTR, 1)  # cmp eax, -EINTR
    code.jump(code.EQUAL, "wait")
    code += put(EDI, 1) + b"\x85\xc0"  # test eax, eax
    code.jump(code.NOT_POSITIVE, "exit")
    code += b"\x41\x01\xc6"  # add r14d, eax
    code += b"\x41\x81\xfe" + number(_HEAD.size, 4)  # cmp r14d, the head's size
    code.jump(code.BELOW, "wait")
    code += b"\x44\x3b\x34\x25" + at(_LENGTH)  # cmp r14d, [length]
    code.jump(code.BELOW, "wait")
    code += put(EDI, line) + call(_CLOSE)
    if itself is not None:
        code += put(EDI, itself) + call(_CLOSE)
    code += b"\x4c\x8b\x24\x25" + at(_LIMITS)  # mov r12, [limits]
    code.label("limit")
    code += b"\x49\x8b\x34\x24" + b"\x83\xfe\xff"  # mov rsi, [r12]; cmp esi, -1
    code.jump(code.EQUAL, "limited")
    code += b"\x31\xff" + b"\x49\x8d\x54\x24\x08" + b"\x4d\x31\xd2"  # edi=0; rdx=r12+8; r10=0
    code += call(_PRLIMIT)
    code.jump(code.NEGATIVE, "failed")
    code += b"\x49\x83\xc4\x18"  # add r12, 24
    code.jump(code.ALWAYS, "limit")
    code.label("limited")
    code += b"\x83\x3c\x25" + at(_TERMINAL) + b"\0"  # cmp dword [terminal], 0
    code.jump(code.EQUAL, "directory")
    code += call(_SETSID)
    code.jump(code.NEGATIVE, "failed")
    code += put(EDI, 0) + put(ESI, _TIOCSCTTY) + put(EDX, 0) + call(_IOCTL)
    code.jump(code.NEGATIVE, "failed")
    code.label("directory")
    code += b"\x48\x8b\x3c\x25" + at(_DIRECTORY) + call(_CHDIR)  # mov rdi, [directory]
    code.jump(code.NEGATIVE, "no directory")
    code += b"\x4c\x8b\x24\x25" + at(_PROGRAMS)  # mov r12, [programs]
    code += b"\x45\x31\xed" + b"\xbb" + number(_ENOENT, 4)  # xor r13d, r13d; mov ebx, ENOENT
    code.label("program")
    code += b"\x49\x8b\x3c\x24" + b"\x48\x85\xff"  # mov rdi, [r12]; test rdi, rdi
    code.jump(code.EQUAL, "none left")
    code += b"\x48\x8b\x34\x25" + at(_ARGV) + b"\x48\x8b\x14\x25" + at(_ENVIRONMENT)
    code += call(_EXECVE) + b"\x83\xf8" + number(256 - _ENOEXEC, 1)  # cmp eax, -ENOEXEC
    code.jump(code.NOT_EQUAL, "not executed")
    code += b"\x48\x8b\x34\x25" + at(_SCRIPT) + b"\x49\x8b\x04\x24"  # mov rsi,[script]; rax,[r12]
    code += b"\x48\x89\x46\x08" + b"\x48\x8b\x3e"  # mov [rsi+8], rax; mov rdi, [rsi]
    code += b"\x48\x8b\x14\x25" + at(_ENVIRONMENT) + call(_EXECVE)
    code.label("not executed")
    code += b"\xf7\xd8" + b"\x89\xc3" + b"\x49\x83\xc4\x08"  # neg eax; mov ebx, eax; add r12, 8
    code += b"\x83\xfb" + number(_EACCES, 1)  # cmp ebx, EACCES
    code.jump(code.NOT_EQUAL, "not there")
    code += b"\x41\x89\xdd"  # mov r13d, ebx
    code.jump(code.ALWAYS, "program")
    code.label("not there")
    for error in _NOT_THERE:
        code += b"\x83\xfb" + number(error, 1)
        code.jump(code.EQUAL, "program")
    code.jump(code.ALWAYS, "say")
    code.label("none left")
    code += b"\x45\x85\xed"  # test r13d, r13d
    code.jump(code.EQUAL, "say")
    code += b"\x44\x89\xeb"  # mov ebx, r13d
    code.jump(code.ALWAYS, "say")
    code.label("no directory")
    code += b"\x89\xc3"  # mov ebx, eax
    for offset in (0, 8):  # its message in the place of the other
        code += b"\x48\x8b\x04\x25" + at(_NO_DIRECTORY + offset)
        code += b"\x48\x89\x04\x25" + at(_NO_PROGRAM + offset)
    for status in (_STATUS, _STATUS_MISSING):
        code += b"\x48\xc7\x04\x25" + at(status) + number(1, 4)  # mov qword [status], 1
    code += b"\x89\xd8"  # mov eax, ebx
    code.label("failed")
    code += b"\xf7\xd8" + b"\x89\xc3"  # neg eax; mov ebx, eax
    code.label("say")
    code += put(EDI, 2) + b"\x48\x8b\x34\x25" + at(_NO_PROGRAM)
    code += b"\x48\x8b\x14\x25" + at(_NO_PROGRAM + 8) + call(_WRITE)
    code += b"\x89\xd8" + b"\x3d" + number(_ERRORS, 4)  # mov eax, ebx; cmp eax, ERRORS
    code.jump(code.BELOW, "known")
    code += b"\x31\xc0"
    code.label("known")
    code += (
        b"\xc1\xe0\x06" + b"\x8d\xb0" + number(errors_at + 1, 4)
    )  # shl eax, 6; lea esi, [rax+..]
    code += b"\x0f\xb6\x90" + number(errors_at, 4)  # movzx edx, byte [rax+errors]
    code += put(EDI, 2) + call(_WRITE)
    code += b"\x8b\x3c\x25" + at(_STATUS) + b"\x83\xfb" + number(_ENOENT, 1)
    code.jump(code.NOT_EQUAL, "exit")
    code += b"\x8b\x3c\x25" + at(_STATUS_MISSING)
    code.label("exit")
    code += call(_EXIT_GROUP)
    return code.bytes()


#: The address of the picture, once it was asked for.
_known: list[int] = []


def request(
    argv: Sequence[bytes],
    env: Mapping[bytes, bytes],
    directory: bytes,
    limits: Mapping[int, tuple[int, int]],
    *,
    terminal: bool,
) -> bytes:
    """The packet that makes the program become this command; it may be too long (``LONGEST``)."""
    variables = {**env, b"PWD": directory}  # as bwrap has it
    program = argv[0]
    if terminal:
        no_program, missing, other = b"setsid: failed to execute %b: " % program, 127, 126
    else:
        no_program, missing, other = b"bwrap: execvp %b: " % program, 1, 1
    no_directory = b"bwrap: Can't chdir to %b: " % directory
    programs = _programs(program, variables)
    kinds = [part for kind, value in limits.items() for part in (kind, *value)]
    words = len(kinds) + 1 + len(programs) + 1 + len(argv) + 1 + len(variables) + 1 + len(argv) + 2
    base = _picture_at() + _HEAD.size
    texts = _Texts(base + 8 * words)
    arrays: list[int] = [*kinds, _LAST_LIMIT]
    programs_at = base + 8 * len(arrays)
    arrays += [*map(texts.add, programs), 0]
    argv_at = base + 8 * len(arrays)
    arrays += [*map(texts.add, argv), 0]
    environment_at = base + 8 * len(arrays)
    arrays += [*(texts.add(b"%b=%b" % one) for one in variables.items()), 0]
    script_at = base + 8 * len(arrays)
    first = (argv_at - base) // 8
    arrays += [texts.add(_SHELL), 0, *arrays[first + 1 : first + len(argv)], 0]
    pointers = (
        base,
        texts.add(directory),
        programs_at,
        argv_at,
        environment_at,
        script_at,
        texts.add(no_program),
        len(no_program),
        texts.add(no_directory),
        len(no_directory),
    )
    body = struct.pack(f"<{len(arrays)}Q", *(one & _LAST_LIMIT for one in arrays))
    body += b"\0".join(texts.texts) + b"\0"
    return _HEAD.pack(*pointers, other, missing, terminal, _HEAD.size + len(body)) + body


def with_covers(covers: Sequence[int], packet: bytes) -> bytes:
    """The packet for a sandbox whose missing names are covered before: inode and device of each."""
    found = b"".join(
        number(inode, 8) + number(os.major(device), 4) + number(os.minor(device), 4)
        for inode, device in zip(covers[::2], covers[1::2], strict=True)
    )
    return found + packet


class _Texts:
    """Strings behind the arrays, each with its address."""

    __slots__ = ("_next", "texts")

    def __init__(self, begin: int) -> None:
        self._next = begin
        self.texts: list[bytes] = []

    def add(self, text: bytes) -> int:
        place = self._next
        self.texts.append(text)
        self._next += len(text) + 1
        return place


def _programs(program: bytes, env: Mapping[bytes, bytes]) -> list[bytes]:
    """Where a program may be, in the order in which the C library looks."""
    if b"/" in program:
        return [program]
    places = env.get(b"PATH", _PATH).split(b":")
    # It leaves out what cannot be a path, where the kernel would refuse with another error.
    return [
        b"%b/%b" % (place, program) if place else program
        for place in places
        if len(place) < _PATH_MAX
    ]
