"""A program of some hundred bytes that a sandboxed file helper begins with.  Pure.

It passes the mounts of its sandbox to the server (``mount_view.py``) and becomes the helper, whose
interpreter takes longer to start than the whole sandbox.  In C it would be::

    fds[0] = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    fds[1] = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (sendmsg(SOCKET, "\\n" with fds, 0) < 0)
        sendmsg(SOCKET, "\\n", 0);
    close(STUB);
    execve(argv[1], argv + 1, envp);

and it exits with the errno of what fails.
"""

from __future__ import annotations

from handrail.keeper.elf_x86_64 import (
    EDI,
    EDX,
    ESI,
    LEAVE,
    Code,
    call,
    data_at,
    executable,
    number,
    put,
)
from handrail.sandboxed_files.frames import GREETING

MACHINES = ("x86_64",)

_OPEN, _CLOSE, _SENDMSG, _EXECVE = 2, 3, 46, 59
_PATH_ONLY, _READ_ONLY = 0o10000000 | 0o200000 | 0o2000000, 0o2000000
_SOL_SOCKET, _SCM_RIGHTS = 1, 1
_ROOT, _NAMESPACE = b"/\0", b"/proc/self/ns/mnt\0"
#: Where in the header its message has the length of its control data.
_CONTROL_LENGTH = 40
_FDS = 16


def elf(socket: int, stub: int) -> bytes:
    """The program for these descriptors: of the socket, and of itself."""
    text = data = b""
    for _ in range(2):  # the second time with its length
        text, data = _parts(data_at(text), socket, stub)
    return executable(text, data)


def _parts(at: int, socket: int, stub: int) -> tuple[bytes, bytes]:
    """Code, and data that will be at this address."""
    control = number(_FDS + 8, 8) + number(_SOL_SOCKET, 4) + number(_SCM_RIGHTS, 4) + bytes(8)
    content = at + len(control)
    vector = number(content, 8) + number(len(GREETING), 8)
    vector_at = content + 8
    message = bytes(16) + number(vector_at, 8) + number(1, 8)
    message += number(at, 8) + number(len(control), 8) + bytes(8)
    message_at = vector_at + len(vector)
    root = message_at + len(message)
    data = control + GREETING.ljust(8, b"\0") + vector + message + _ROOT + _NAMESPACE

    code = Code()
    code += put(EDI, root) + put(ESI, _PATH_ONLY) + call(_OPEN)
    code += b"\x89\x04\x25" + number(at + _FDS, 4)  # mov [fds], eax
    code += put(EDI, root + len(_ROOT)) + put(ESI, _READ_ONLY) + call(_OPEN)
    code += b"\x89\x04\x25" + number(at + _FDS + 4, 4)  # mov [fds + 4], eax
    send = put(EDI, socket) + put(ESI, message_at) + put(EDX, 0) + call(_SENDMSG)
    code += send
    code.jump(code.NEGATIVE, "alone")
    code.label("become")
    code += put(EDI, stub) + call(_CLOSE)
    code += b"\x48\x8b\x7c\x24\x10" + b"\x48\x8d\x74\x24\x10"  # rdi: argv[1]; rsi: argv + 1
    code += b"\x48\x8b\x04\x24" + b"\x48\x8d\x54\xc4\x10"  # rax: argc; rdx: envp
    code += call(_EXECVE) + LEAVE
    code.label("alone")
    code += b"\x48\xc7\x04\x25" + number(message_at + _CONTROL_LENGTH, 4) + bytes(4)  # no fds
    code += send
    code.jump(code.ALWAYS, "become")
    return code.bytes(), data
