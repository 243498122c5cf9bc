"""A program of a few hundred bytes that makes sockets in a network namespace.  Pure.

It does what ``program.py`` does, in a twentieth of the time.  In C it would be::

    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // a sandboxed process may learn our pid
    if (setns(NETWORK, CLONE_NEWNET) != 0) {
        setns(ioctl(NETWORK, NS_GET_USERNS), CLONE_NEWUSER);
        setns(NETWORK, CLONE_NEWNET);
    }
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);  // each as its kind says
    socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds);               // of a pair both
    setsockopt(fds[0], IPPROTO_IP, IP_FREEBIND, &one, 4);      // lo may not be up yet
    setsockopt(fds[0], SOL_SOCKET, SO_REUSEADDR, &one, 4);
    bind(fds[0], &address, 16);
    listen(fds[0], BACKLOG);
    sendmsg(LINE, &message_with(fds), 0);
    exit(0);

It exits with the errno of what fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from handrail.keeper.elf_x86_64 import (
    EDI,
    EDX,
    ESI,
    LEAVE,
    OR_LEAVE,
    Code,
    call,
    data_at,
    executable,
    number,
    put,
    store,
)

_IOCTL, _SOCKET, _SENDMSG, _BIND, _LISTEN, _SETSOCKOPT = 16, 41, 46, 49, 50, 54
_SOCKETPAIR, _PRCTL, _SETNS = 53, 157, 308
_SET_DUMPABLE = 4
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_GET_USER_NAMESPACE = 0xB701
_INTERNET, _INTERNET_6, _NETLINK = 2, 10, 16
_UNIX, _STREAM, _DATAGRAM, _RAW, _PACKETS, _NONBLOCK = 1, 1, 2, 3, 5, 0o4000
_SOCK_DIAG = 4
_IP, _FREEBIND = 0, 15
_SOL_SOCKET, _REUSEADDR, _SCM_RIGHTS = 1, 2, 1
_BACKLOG = 1024
_HOST = "127.0.0.1"
#: Family, type and protocol of each kind.
_KINDS = {
    "tcp": (_INTERNET, _STREAM | _NONBLOCK, 0),
    "tcp6": (_INTERNET_6, _STREAM | _NONBLOCK, 0),
    "listen": (_INTERNET, _STREAM | _NONBLOCK, 0),
    "udp": (_INTERNET, _DATAGRAM | _NONBLOCK, 0),
    "diag": (_NETLINK, _RAW, _SOCK_DIAG),
    "pair": (_UNIX, _PACKETS, 0),
    "pair-nonblock": (_UNIX, _PACKETS | _NONBLOCK, 0),
}
#: What comes with the sockets.
WORD = b"s"
# Data: the message, its word, its vector, the number 1, its control part with the descriptors.
_MESSAGE, _WORD, _VECTOR, _ONE, _CONTROL = 0, 56, 64, 80, 88
_MESSAGE_SIZE = 56
_CONTROL_HEAD, _ADDRESS = 16, 16


def count(kinds: Sequence[str]) -> int:
    """How many sockets these kinds are."""
    return len(kinds) + sum(kind.startswith("pair") for kind in kinds)


def elf(line: int, network: int, kinds: Sequence[str]) -> bytes:
    """The program, for the fd of its socket and that of the namespace."""
    made = 4 * count(kinds)
    control = _CONTROL_HEAD + (made + 7) // 8 * 8
    text = b""
    for _ in range(2):  # the second time with its length
        at = data_at(text)
        text = _text(line, network, kinds, at, at + _CONTROL + control)
    vector, word = number(at + _VECTOR, 8), number(at + _WORD, 8)
    data = bytes(16) + vector + number(1, 8)
    data += number(at + _CONTROL, 8) + number(control, 8)
    data = data.ljust(_MESSAGE_SIZE, b"\0") + WORD.ljust(8, b"\0")
    data += word + number(len(WORD), 8) + number(1, 8)
    data += number(_CONTROL_HEAD + made, 8)
    data += number(_SOL_SOCKET, 4) + number(_SCM_RIGHTS, 4) + bytes(control - _CONTROL_HEAD)
    return executable(text, data + b"".join(map(_address, kinds)))


def _address(kind: str) -> bytes:
    """Where a socket is bound to, a ``struct sockaddr_in``; zeros: nowhere."""
    _, _, place = kind.partition(":")
    port, _, host = place.partition(":")
    if not port:
        return bytes(_ADDRESS)
    numbers = bytes(map(int, (host or _HOST).split(".")))
    head = number(_INTERNET, 2) + int(port).to_bytes(2, "big")
    return (head + numbers).ljust(_ADDRESS, b"\0")


def _text(line: int, network: int, kinds: Sequence[str], data: int, addresses: int) -> bytes:
    code = Code()
    code += put(EDI, _SET_DUMPABLE) + put(ESI, 0) + put(EDX, 0) + _r10(0) + _r8(0) + call(_PRCTL)
    join = put(EDI, network) + put(ESI, _NEW_NETWORK) + call(_SETNS)
    code += join
    code.jump(Code.EQUAL, "joined")
    code += put(EDI, network) + put(ESI, _GET_USER_NAMESPACE) + call(_IOCTL) + OR_LEAVE
    code += b"\x89\xc7" + put(ESI, _NEW_USER) + call(_SETNS) + OR_LEAVE  # mov edi, eax
    code += join + OR_LEAVE
    code.label("joined")
    made = data + _CONTROL + _CONTROL_HEAD
    for place, kind in enumerate(kinds):
        name, _, bound = kind.partition(":")
        family, style, protocol = _KINDS[name]
        code += put(EDI, family) + put(ESI, style) + put(EDX, protocol)
        if family == _UNIX:
            code += _r10(made) + call(_SOCKETPAIR) + OR_LEAVE
            made += 8
            continue
        code += call(_SOCKET) + OR_LEAVE + store(made)
        made += 4
        if not bound:
            continue
        code += b"\x89\xc3"  # mov ebx, eax
        code += _option(_IP, _FREEBIND, data + _ONE)
        if name == "listen":
            code += _option(_SOL_SOCKET, _REUSEADDR, data + _ONE)
        code += _same() + put(ESI, addresses + _ADDRESS * place) + put(EDX, _ADDRESS)
        code += call(_BIND) + OR_LEAVE
        if name == "listen":
            code += _same() + put(ESI, _BACKLOG) + call(_LISTEN) + OR_LEAVE
    code += put(EDI, line) + put(ESI, data + _MESSAGE) + put(EDX, 0) + call(_SENDMSG) + OR_LEAVE
    return code.bytes() + b"\x31\xc0" + LEAVE  # xor eax, eax


def _option(level: int, name: int, value: int) -> bytes:
    """Set an option of the socket in ebx."""
    where = put(ESI, level) + put(EDX, name) + _r10(value) + _r8(4)
    return _same() + where + call(_SETSOCKOPT) + OR_LEAVE


def _same() -> bytes:
    return b"\x89\xdf"  # mov edi, ebx


def _r10(value: int) -> bytes:
    return b"\x41\xba" + number(value, 4)


def _r8(value: int) -> bytes:
    return b"\x41\xb8" + number(value, 4)
