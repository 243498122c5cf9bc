"""The filter program, run by a small interpreter of classic BPF."""

from __future__ import annotations

import errno
import struct

import pytest

from handrail.sandbox.syscalls import seccomp_filter
from handrail.sandbox.syscalls.seccomp_filter import ALLOW, ERRNO, KILL, numbers

EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
X86, ARM = 0xC000003E, 0xC00000B7


def answer(program: bytes, arch: int, number: int, *args: int) -> int:
    """What the kernel would do with this system call."""
    return answer_and_steps(program, arch, number, *args)[0]


def answer_and_steps(program: bytes, arch: int, number: int, *args: int) -> tuple[int, int]:
    """The same, and how many instructions it takes."""
    values = [*args, *([0] * (6 - len(args)))]
    data = struct.pack("<IIQ6Q", number, arch, 0, *values)
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator, at, steps = 0, 0, 0
    while True:
        op, yes, no, value = code[at]
        at += 1
        steps += 1
        match op:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, value)[0]
            case 0x54:
                accumulator &= value
            case 0x06:
                return int(value), steps
            case 0x15 | 0x35 | 0x45:
                holds = {
                    0x15: accumulator == value,
                    0x35: accumulator >= value,
                    0x45: bool(accumulator & value),
                }[op]
                at += yes if holds else no
            case _:
                raise AssertionError(f"unknown instruction {op:#x}")


@pytest.fixture(params=[True, False], ids=["unix", "no-unix"])
def x86(request: pytest.FixtureRequest) -> bytes:
    return seccomp_filter.program("x86_64", unix_sockets=request.param)


def test_another_architecture_is_killed(x86: bytes) -> None:
    assert answer(x86, 0x40000003, 1) == KILL
    assert answer(x86, ARM, 1) == KILL
    assert answer(seccomp_filter.program("aarch64", unix_sockets=True), X86, 1) == KILL


def test_x32_numbers_do_not_exist(x86: bytes) -> None:
    assert answer(x86, X86, 0x40000000 | 41, 1, 1, 0) == ENOSYS


@pytest.mark.parametrize(("arch", "audit"), [("x86_64", X86), ("aarch64", ARM)])
def test_what_is_refused_is_refused_on_both_machines(arch: str, audit: int) -> None:
    program = seccomp_filter.program(arch, unix_sockets=True)
    for name, number in numbers(arch).items():
        if name in seccomp_filter.REFUSED:
            assert answer(program, audit, number) == EPERM, name
    assert {*numbers("x86_64")} > {*seccomp_filter.REFUSED}
    assert {*seccomp_filter.REFUSED} - {*numbers("aarch64")} == {"iopl", "ioperm"}
    assert answer(program, audit, 435) == ENOSYS


def test_the_kernel_finds_the_rule_of_any_number_in_a_few_steps(x86: bytes) -> None:
    """It runs a new filter once for each number."""
    assert max(answer_and_steps(x86, X86, number)[1] for number in range(512)) <= 20


def test_ordinary_calls_are_allowed(x86: bytes) -> None:
    for number in (0, 1, 2, 9, 39, 42, 57, 59, 61, 257, 262, 293, 319):
        assert answer(x86, X86, number) == ALLOW


def test_no_new_namespace_by_clone_or_unshare(x86: bytes) -> None:
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(x86, X86, 56, flag | 17) == EPERM
        assert answer(x86, X86, 272, flag) == EPERM
    assert answer(x86, X86, 272, 0x80) == EPERM
    assert answer(x86, X86, 272, 0x400) == ALLOW
    assert answer(x86, X86, 56, 0x01200011) == ALLOW
    assert answer(x86, X86, 56, 0x3D0F00) == ALLOW  # a thread


def test_a_terminal_does_not_type_whatever_the_upper_bits_say(x86: bytes) -> None:
    for request in (0x5412, 0x541C):
        assert answer(x86, X86, 16, 0, request) == EPERM
        assert answer(x86, X86, 16, 0, request | 1 << 32) == EPERM
    assert answer(x86, X86, 16, 0, 0x540E) == ALLOW  # TIOCSCTTY
    assert answer(x86, X86, 16, 0, 0x5413) == ALLOW  # TIOCGWINSZ


@pytest.mark.parametrize(("arch", "audit", "number"), [("x86_64", X86, 72), ("aarch64", ARM, 25)])
def test_no_lease_keeps_others_from_opening_a_file(arch: str, audit: int, number: int) -> None:
    program = seccomp_filter.program(arch, unix_sockets=True)
    for command in (1024, 1040):  # F_SETLEASE, F_SETDELEG
        assert answer(program, audit, number, 3, command, 1) == EPERM
        assert answer(program, audit, number, 3, command | 1 << 32, 1) == EPERM
    for command in (0, 1, 2, 3, 4, 6, 1025, 1026, 1030, 1031, 1033):
        assert answer(program, audit, number, 3, command, 1) == ALLOW


def test_socket_families() -> None:
    with_unix = seccomp_filter.program("x86_64", unix_sockets=True)
    without = seccomp_filter.program("x86_64", unix_sockets=False)
    for program in (with_unix, without):
        for family in (2, 10):
            assert answer(program, X86, 41, family, 1, 0) == ALLOW
        for family in (3, 4, 17, 29, 31, 38, 40, 44):
            assert answer(program, X86, 41, family, 1, 0) == EPERM
        assert answer(program, X86, 41, 16, 3, 0) == ALLOW
        assert answer(program, X86, 41, 16, 3, 9) == EPERM
        assert answer(program, X86, 53, 1, 1 | 0o2000000, 0) == ALLOW
        assert answer(program, X86, 53, 1, 5, 0) == ALLOW
        assert answer(program, X86, 53, 30, 1, 0) == EPERM
    assert answer(with_unix, X86, 41, 1, 1 | 0o2000000, 0) == ALLOW
    assert answer(with_unix, X86, 41, 1, 5, 0) == ALLOW
    assert answer(without, X86, 41, 1, 1, 0) == EPERM


def test_unix_datagrams_would_need_no_connect(x86: bytes) -> None:
    for kind in (2, 3, 2 | 0o2000000, 2 | 1 << 32):  # the kernel takes raw for datagrams
        assert answer(x86, X86, 41, 1, kind, 0) == EPERM
    assert answer(x86, X86, 41, 2, 2, 0) == ALLOW


@pytest.mark.parametrize(("arch", "audit", "number"), [("x86_64", X86, 53), ("aarch64", ARM, 199)])
@pytest.mark.parametrize("watch", [False, True])
def test_no_pair_but_connected_ones_is_made_by_the_command_itself(
    arch: str, audit: int, number: int, watch: bool
) -> None:
    without = seccomp_filter.program(arch, unix_sockets=False)
    with_unix = seccomp_filter.program(arch, unix_sockets=True)
    announcing = seccomp_filter.announcing(arch, watch=watch)
    for kind in range(16):
        for flags in (0, 0o2000000, 0o4000, 1 << 32, 0xFFFFFFF0):
            alone = answer(without, audit, number, 1, kind | flags, 0)
            assert alone == (ALLOW if kind in (1, 5) else EPERM)
            # The kernel takes the strictest of both: an error before an announcement.
            held = answer(with_unix, audit, number, 1, kind | flags, 0)
            told = answer(announcing, audit, number, 1, kind | flags, 0)
            assert held == (ALLOW if kind in (1, 2, 3, 5) else EPERM)
            assert told == (ALLOW if kind in (1, 5) else seccomp_filter.NOTIFY)


@pytest.mark.parametrize(("arch", "audit", "connect"), [("x86_64", X86, 42), ("aarch64", ARM, 203)])
def test_connect_is_announced_and_nothing_else(arch: str, audit: int, connect: int) -> None:
    program = seccomp_filter.announcing(arch, watch=False)
    assert answer(program, audit, connect) == seccomp_filter.NOTIFY
    for number in set(range(470)) - {connect}:
        assert answer(program, audit, number, 1, 1, 1) == ALLOW


@pytest.mark.parametrize(
    ("arch", "audit", "calls"),
    [("x86_64", X86, {44: 3, 46: 2, 307: 3}), ("aarch64", ARM, {206: 3, 211: 2, 269: 3})],
)
def test_nothing_is_connected_by_sending(arch: str, audit: int, calls: dict[int, int]) -> None:
    program = seccomp_filter.program(arch, unix_sockets=True)
    for number, place in calls.items():
        arguments = [1] * 6
        for flags, expected in (
            (0x4000, ALLOW),
            (0x20000000, ERRNO | errno.EOPNOTSUPP),
            (0x20004000, ERRNO | errno.EOPNOTSUPP),
        ):
            arguments[place] = flags
            assert answer(program, audit, number, *arguments) == expected


@pytest.mark.parametrize(("arch", "audit"), [("x86_64", X86), ("aarch64", ARM)])
@pytest.mark.parametrize("unix_sockets", [True, False])
def test_no_call_sets_a_set_id_bit(arch: str, audit: int, unix_sockets: bool) -> None:
    program = seccomp_filter.program(arch, unix_sockets=unix_sockets)
    for name, mode_at in seccomp_filter.SETTING_MODES.items():
        number = numbers(arch).get(name)
        if number is None:
            continue
        for mode in (0o4755, 0o2755, 0o6777, 0o104644, 0xFFFF0000_00000800):
            arguments = [0] * mode_at + [mode]
            assert answer(program, audit, number, *arguments) == EPERM, name
        for mode in (0, 0o755, 0o1777, 0o100644):
            arguments = [0o6000] * mode_at + [mode]
            assert answer(program, audit, number, *arguments) == ALLOW, name
    assert answer(program, audit, 437) == ENOSYS


@pytest.mark.parametrize(
    ("arch", "audit", "number", "at"),
    [("x86_64", X86, 257, 2), ("x86_64", X86, 2, 1), ("aarch64", ARM, 56, 2)],
)
def test_the_mode_of_an_open_counts_when_something_is_created(
    arch: str, audit: int, number: int, at: int
) -> None:
    program = seccomp_filter.program(arch, unix_sockets=True)
    for flags in (0o101, 0o102, 0o20200002, 0o20040002, 0o2000000 | 0o100):
        assert answer(program, audit, number, *[0] * at, flags, 0o4755) == EPERM
        assert answer(program, audit, number, *[0] * at, flags, 0o2000) == EPERM
        assert answer(program, audit, number, *[0] * at, flags, 0o1777) == ALLOW
    # Without a file that is made, the last argument is whatever was in the register.
    assert answer(program, audit, number, *[0] * at, 0o2000000, 0o6777) == ALLOW
