"""A program of some hundred bytes that runs before another.  Pure.

It gives up core files, puts itself under a filter that announces its calls, sends the listener
through a socket and becomes the program that its arguments name.  That has to happen in the child; a forked interpreter
takes two milliseconds for it, this a quarter of one.

In C it would be::

    setrlimit(RLIMIT_CORE, &(struct rlimit){1, 1});
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int listener = seccomp(SECCOMP_SET_MODE_FILTER, NEW_LISTENER | WAIT_KILLABLE_RECV, &program);
    if (listener < 0) listener = seccomp(SECCOMP_SET_MODE_FILTER, NEW_LISTENER, &program);
    if (listener < 0 || sendmsg(line, &message_with(listener), 0) < 0) exit(errno);
    close(listener);
    close(line);
    execve(argv[0], argv, environ);
    exit(errno);

It is here as bytes for x86_64, because there need be no compiler where this runs; other machines
fork (``fork.py``).
"""

from __future__ import annotations

MACHINES = ("x86_64",)

_PRCTL, _SECCOMP, _SENDMSG, _CLOSE, _EXECVE, _EXIT, _SETRLIMIT = 157, 317, 46, 3, 59, 60, 160
_NO_NEW_PRIVS, _SET_FILTER = 38, 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_SOL_SOCKET, _SCM_RIGHTS = 1, 1

#: What a dump of memory is handed to runs outside, as root on many systems.  For a limit of 0 the
#: kernel starts such a program all the same; 1 is its word for neither that nor a file.
CORE_KIND, CORE_BYTES = 4, 1
#: What comes with the listener.
WORD = b"l"

_TEXT_AT, _DATA_AT = 0x400000, 0x600000
_HEADERS = 64 + 2 * 56
_EAX, _EDX, _ESI, _EDI = 0, 2, 6, 7


def _number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def _set(register: int, value: int) -> bytes:
    """mov register, value"""
    return bytes((0xB8 + register,)) + _number(value, 4)


def _call(number: int) -> bytes:
    """The system call; what it returns is tested for being negative."""
    return _set(_EAX, number) + b"\x0f\x05" + b"\x85\xc0"  # syscall; test eax, eax


def _close() -> bytes:
    return _call(_CLOSE)


def elf(code: bytes, line: int) -> bytes:
    """The program, for a filter and the number under which it finds its socket."""
    # Data: the filter's descriptor, the message, its word, its control part, a limit, the filter.
    program, message, word, vector, control, core, filter_at = 0, 16, 72, 80, 96, 120, 136
    base = _DATA_AT + _HEADERS  # where data begins, once the length of the text is known
    text = b""
    for _ in range(2):  # the second time with that length
        at = base + len(text)
        text = _text(at + program, at + message, at + control + 16, at + core, line)
    data = bytearray(filter_at)
    data[program : program + 2] = _number(len(code) // 8, 2)
    data[program + 8 : program + 16] = _number(at + filter_at, 8)
    data[message + 16 : message + 24] = _number(at + vector, 8)
    data[message + 24 : message + 32] = _number(1, 8)
    data[message + 32 : message + 40] = _number(at + control, 8)
    data[message + 40 : message + 48] = _number(24, 8)
    data[word : word + 1] = WORD
    data[vector : vector + 8] = _number(at + word, 8)
    data[vector + 8 : vector + 16] = _number(len(WORD), 8)
    data[control : control + 8] = _number(20, 8)
    data[control + 8 : control + 12] = _number(_SOL_SOCKET, 4)
    data[control + 12 : control + 16] = _number(_SCM_RIGHTS, 4)
    data[core : core + 16] = _number(CORE_BYTES, 8) * 2
    data += code
    end = _HEADERS + len(text)
    return _head(end, end + len(data)) + text + bytes(data)


def _text(program: int, message: int, descriptor: int, core: int, line: int) -> bytes:
    leave = b"\xf7\xd8" + b"\x89\xc7" + _set(_EAX, _EXIT) + b"\x0f\x05"  # neg eax; mov edi, eax
    filtering = _set(_EDI, _SET_FILTER) + _set(_EDX, program)
    both, one = (
        filtering + _set(_ESI, flags) + _call(_SECCOMP)
        for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER)
    )
    start = _set(_EDI, CORE_KIND) + _set(_ESI, core) + _call(_SETRLIMIT)
    start += _set(_EDI, _NO_NEW_PRIVS) + _set(_ESI, 1)
    start += b"\x31\xd2" + b"\x4d\x31\xd2" + b"\x4d\x31\xc0"  # xor edx, edx; r10; r8
    start += _call(_PRCTL)
    filtered = both + b"\x79" + _number(len(one), 1) + one  # jns over the second try
    sending = b"\x89\x04\x25" + _number(descriptor, 4)  # mov [descriptor], eax
    sending += b"\x89\xc3"  # mov ebx, eax
    sending += _set(_EDI, line) + _set(_ESI, message) + b"\x31\xd2" + _call(_SENDMSG)
    closing = b"\x89\xdf" + _close() + _set(_EDI, line) + _close()  # mov edi, ebx
    becoming = b"\x48\x8b\x7c\x24\x08"  # mov rdi, [rsp+8]: argv[0]
    becoming += b"\x48\x8d\x74\x24\x08"  # lea rsi, [rsp+8]: argv
    becoming += b"\x48\x8b\x04\x24"  # mov rax, [rsp]: argc
    becoming += b"\x48\x8d\x54\xc4\x10"  # lea rdx, [rsp+rax*8+16]: environ
    becoming += _call(_EXECVE)
    out = b"\x79" + _number(len(leave), 1) + leave  # jns over the way out
    return start + filtered + out + sending + out + closing + becoming + leave


def _head(text_end: int, data_end: int) -> bytes:
    """An executable of two parts: what is run, and what is read and written."""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    kind = _number(2, 2) + _number(62, 2) + _number(1, 4)  # EXEC, x86_64
    sizes = _number(0, 4) + b"".join(_number(n, 2) for n in (64, 56, 2, 0, 0, 0))
    entry = _number(_TEXT_AT + _HEADERS, 8) + _number(64, 8) + _number(0, 8)
    parts = b""
    for flags, start, end, at in (
        (5, 0, text_end, _TEXT_AT),
        (6, text_end, data_end, _DATA_AT + text_end),
    ):
        size = _number(end - start, 8)
        parts += _number(1, 4) + _number(flags, 4) + _number(start, 8) + _number(at, 8) * 2
        parts += size + size + _number(0x1000, 8)
    return ident + kind + entry + sizes + parts
