from __future__ import annotations

import os
import socket
import struct

import pytest

from handrail.sandbox.syscalls import mutating_calls, seccomp_filter
from handrail.sandbox.syscalls.seccomp_filter import ARCHES, numbers

NOTIFY, ALLOW = 0x7FC00000, 0x7FFF0000


def run(code: bytes, arch: int, number: int, *arguments: int) -> int:
    """What the program answers: a small reading of the kernel's own machine."""
    data = struct.pack("=iIQ6Q", number, arch, 0, *(arguments + (0,) * (6 - len(arguments))))
    steps = list(struct.iter_unpack("=HBBI", code))
    at, value = 0, 0
    while True:
        op, hit, miss, k = steps[at]
        at += 1
        if op == 0x20:
            (value,) = struct.unpack_from("=I", data, k)
        elif op == 0x15:
            at += hit if value == k else miss
        elif op == 0x45:
            at += hit if value & k else miss
        elif op == 0x54:
            value &= k
        else:
            return k


@pytest.mark.parametrize("machine", list(ARCHES))
def test_changes_are_announced_and_nothing_else(machine: str) -> None:
    arch, _ = ARCHES[machine]
    code = seccomp_filter.announcing(machine, watch=True)
    calls = mutating_calls.calls_of(machine)
    for number, call in calls.items():
        assert numbers(machine)[call.name] == number
        flags = call.flags
        if flags is None:
            assert run(code, arch, number) == NOTIFY
            continue
        for given, expected in (
            (os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY, ALLOW),
            (os.O_WRONLY, NOTIFY),
            (os.O_RDWR | os.O_NONBLOCK, NOTIFY),
            (os.O_CREAT, NOTIFY),
            (os.O_TRUNC, NOTIFY),
        ):
            assert run(code, arch, number, *[0] * flags, given) == expected
    datagrams = {numbers(machine)["socketpair"]}  # see test_seccomp_filter.py
    for number in set(range(450)) - set(calls) - datagrams:
        assert run(code, arch, number, 0xFFFF, 0xFFFF, 0xFFFF) == ALLOW
    assert run(code, arch ^ 1, numbers(machine)["mkdirat"]) == ALLOW


@pytest.mark.parametrize(
    ("sort", "flags", "exists", "first"),
    [
        ("make", 0, True, True),
        ("make", 0, False, False),
        ("change", 0, True, False),
        ("change", 0, False, True),
        ("put", 0, True, False),
        ("put", 0, False, False),
        ("open", os.O_CREAT, True, True),
        ("open", os.O_CREAT, False, False),
        ("open", os.O_WRONLY, True, False),
        ("open", os.O_WRONLY, False, True),
        ("open", os.O_RDWR | os.O_CREAT, False, False),
    ],
)
def test_who_refuses_first(sort: str, flags: int, exists: bool, first: bool) -> None:
    assert mutating_calls.fails_first(sort, flags, exists) is first


def test_addresses_that_leave() -> None:
    def v4(host: str, port: int) -> bytes:
        return struct.pack("=H", 2) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)

    def v6(host: str, port: int) -> bytes:
        packed = socket.inet_pton(socket.AF_INET6, host)
        return struct.pack("=H", 10) + struct.pack(">HI", port, 0) + packed + bytes(4)

    text = mutating_calls.address_text
    assert text(v4("192.0.2.1", 443)) == "192.0.2.1:443"
    assert text(v6("2001:db8::1", 80)) == "[2001:db8::1]:80"
    for own in (v4("127.0.0.1", 1), v4("0.0.0.0", 1), v6("::1", 1), v6("::ffff:127.0.0.1", 1)):
        assert text(own) is None
    for other in (b"", b"\1\0/run/x", v6("2001:db8::1", 80)[:20]):
        assert text(other) is None
    server = v4("127.0.0.53", 53)
    assert mutating_calls.is_name_server(server)
    assert text(server) is None
    assert text(server, own_network=True) == "127.0.0.53:53"
    assert text(v6("::1", 53), own_network=True) == "[::1]:53"
    assert not mutating_calls.is_name_server(v4("127.0.0.53", 80))
    assert text(v4("127.0.0.53", 80), own_network=True) is None
