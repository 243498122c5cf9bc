"""A program of a few hundred bytes that installs a filter and executes another program.  Pure.

It gives up core files, puts itself under a filter that announces its calls, sends the listener
through a socket and becomes the program that its arguments name.  That has to happen in the child;
a forked interpreter takes two milliseconds for it, this a quarter of one.

For a child with control groups it enters these first, through files that are open already, and
tells through the line what went wrong (``limits/group_spawn.py``); the filter is then optional.

In C it would be::

    for (int door = line + 1; door <= line + doors; door++)  // with groups only
        if (write(door, "0", 1) < 0 || close(door)) fail();
    setrlimit(RLIMIT_CORE, &(struct rlimit){1, 1});
    getrlimit(RLIMIT_LOCKS, &locks);  // with a tag only, and a lower hard limit keeps the old one
    locks.rlim_cur = tag;
    setrlimit(RLIMIT_LOCKS, &locks);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int listener = seccomp(SECCOMP_SET_MODE_FILTER, NEW_LISTENER | WAIT_KILLABLE_RECV, &program);
    if (listener < 0) listener = seccomp(SECCOMP_SET_MODE_FILTER, NEW_LISTENER, &program);
    if (listener < 0 || sendmsg(line, &message_with(listener), 0) < 0) exit(errno);
    close(listener);
    close(line);
    execve(argv[0], argv, environ);
    exit(errno);

With groups the end is::

    fcntl(line, F_SETFD, FD_CLOEXEC);
    execve(argv[0], argv + 1, environ);
    fail();  // write(line, &errno, 4); exit(127);

It is here as bytes for x86_64, because there need be no compiler where this runs; other machines
fork (``fork.py``).
"""

from __future__ import annotations

from handrail.keeper import RLIMIT_LOCKS, TAG_BYTES
from handrail.keeper.elf_x86_64 import (
    EBX,
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
    store,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.keeper.elf_x86_64 import Data

_PRCTL, _SECCOMP, _SENDMSG, _CLOSE, _EXECVE = 157, 317, 46, 3, 59
_GETRLIMIT, _SETRLIMIT = 97, 160
_WRITE, _FCNTL, _EXIT = 1, 72, 60
_F_SETFD, _FD_CLOEXEC = 2, 1
_NO_NEW_PRIVS, _SET_FILTER = 38, 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_SOL_SOCKET, _SCM_RIGHTS = 1, 1

#: What a dump of memory is handed to runs outside, as root on many systems.  For a limit of 0 the
#: kernel starts such a program all the same; 1 is its word for neither that nor a file.
CORE_KIND, CORE_BYTES = 4, 1
#: What comes with the listener.
WORD = b"l"


def elf(code: bytes, line: int, tag: int = 0, doors: int = 0) -> bytes:
    """The program, for a filter, the fd of its socket, and the tag of its family or 0.

    The tag is the last eight bytes.  ``doors``: so many files by which it enters groups are open,
    the first behind the socket; then the program to execute comes before its arguments, and there
    may be no filter.
    """
    # Data: the filter's descriptor, the message, its word, what is written to a door, an error,
    # the message's control part, two limits, the filter.
    program, message, word, zero, failure, vector, control = 0, 16, 72, 73, 76, 80, 96
    core, locks, filter_at = 120, 136, 152
    text = b""
    for _ in range(2):  # the second time with its length
        at = data_at(text)
        fail = _telling(line, at + failure) if doors else LEAVE
        check = b"\x79" + number(len(fail), 1) + fail  # jns over it
        tagging = _tagging(at + locks, at + filter_at + len(code)) if tag else b""
        text = _entering(line + 1, doors, at + zero, check)
        if code:
            text += _filtering(at + program, at + core, tagging) + check
            text += _sending(at + message, at + control + 16, line) + check
            text += b"\x89\xdf" + call(_CLOSE)  # mov edi, ebx
        text += call(_FCNTL, line, _F_SETFD, _FD_CLOEXEC) if doors else call(_CLOSE, line)
        text += _becoming(1 if doors else 0) + fail
    data = bytearray(filter_at)
    data[program : program + 2] = number(len(code) // 8, 2)
    data[program + 8 : program + 16] = number(at + filter_at, 8)
    data[message + 16 : message + 24] = number(at + vector, 8)
    data[message + 24 : message + 32] = number(1, 8)
    data[message + 32 : message + 40] = number(at + control, 8)
    data[message + 40 : message + 48] = number(24, 8)
    data[word : word + 1] = WORD
    data[zero : zero + 1] = b"0"
    data[vector : vector + 8] = number(at + word, 8)
    data[vector + 8 : vector + 16] = number(len(WORD), 8)
    data[control : control + 8] = number(20, 8)
    data[control + 8 : control + 12] = number(_SOL_SOCKET, 4)
    data[control + 12 : control + 16] = number(_SCM_RIGHTS, 4)
    data[core : core + 16] = number(CORE_BYTES, 8) * 2
    data += code
    if tag:
        data += number(tag, TAG_BYTES)
    return executable(text, bytes(data))


def announcing(data: Data, code: bytes, line: int) -> bytes:
    """The part of it that is about the filter, for a program that does so itself and goes on."""
    text = data.text
    program = text(number(len(code) // 8, 8) + number(text(code), 8))
    vector = text(number(text(WORD), 8) + number(len(WORD), 8))
    rights = number(20, 8) + number(_SOL_SOCKET, 4) + number(_SCM_RIGHTS, 4)
    control = text(rights + bytes(8))
    parts = number(vector, 8) + number(1, 8) + number(control, 8) + number(24, 8)
    message = text(bytes(16) + parts + bytes(8))
    filtering = _filtering(program, text(number(CORE_BYTES, 8) * 2), b"") + OR_LEAVE
    sending = _sending(message, control + len(rights), line) + OR_LEAVE
    return filtering + sending + call(_CLOSE, EBX) + call(_CLOSE, line)


def _tagging(limit: int, tag: int) -> bytes:
    """Set the soft limit by which descendants are found (``handrail.keeper.RLIMIT_LOCKS``).

    Both are addresses.
    """
    kind = put(EDI, RLIMIT_LOCKS) + put(ESI, limit)
    soft = b"\x48\x8b\x04\x25" + number(tag, 4)  # mov rax, [tag]
    soft += b"\x48\x89\x04\x25" + number(limit, 4)  # mov [limit], rax
    return kind + call(_GETRLIMIT) + soft + kind + call(_SETRLIMIT)


def _telling(line: int, failure: int) -> bytes:
    """Send the error of the last call and exit."""
    said = b"\xf7\xd8" + store(failure)  # neg eax
    return said + call(_WRITE, line, failure, 4) + call(_EXIT, 127)


def _entering(first: int, doors: int, zero: int, check: bytes) -> bytes:
    """Enter a group by each of these files: 0 means the process that writes it."""
    fds = range(first, first + doors)
    return b"".join(call(_WRITE, fd, zero, 1) + check + call(_CLOSE, fd) for fd in fds)


def _filtering(program: int, core: int, tagging: bytes) -> bytes:
    """Give up core files and privileges, and install the filter."""
    filtering = put(EDI, _SET_FILTER) + put(EDX, program)
    both, one = (
        filtering + put(ESI, flags) + call(_SECCOMP)
        for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER)
    )
    start = put(EDI, CORE_KIND) + put(ESI, core) + call(_SETRLIMIT) + tagging
    start += put(EDI, _NO_NEW_PRIVS) + put(ESI, 1)
    start += b"\x31\xd2" + b"\x4d\x31\xd2" + b"\x4d\x31\xc0"  # xor edx, edx; r10; r8
    start += call(_PRCTL)
    return start + both + b"\x79" + number(len(one), 1) + one  # jns over the second try


def _sending(message: int, descriptor: int, line: int) -> bytes:
    """Send the listener, and keep its number in ebx."""
    sending = store(descriptor) + b"\x89\xc3"  # mov ebx, eax
    return sending + put(EDI, line) + put(ESI, message) + b"\x31\xd2" + call(_SENDMSG)


def _becoming(skipped: int) -> bytes:
    """Execute the first argument, with those behind so many."""
    becoming = b"\x48\x8b\x7c\x24\x08"  # mov rdi, [rsp+8]: argv[0]
    becoming += b"\x48\x8d\x74\x24" + number(8 + 8 * skipped, 1)  # lea rsi, [rsp+8]: argv
    becoming += b"\x48\x8b\x04\x24"  # mov rax, [rsp]: argc
    becoming += b"\x48\x8d\x54\xc4\x10"  # lea rdx, [rsp+rax*8+16]: environ
    return becoming + call(_EXECVE)
