"""The filter program, byte for byte.  Pure.

Classic BPF over ``struct seccomp_data {int nr; u32 arch; u64 ip; u64 args[6]}``.  The list is the
attack surface that a mount plan cannot close: other processes' memory, new namespaces, mounts,
io_uring (which would carry out system calls past this filter), key rings, modules, terminals that
type, socket families that are not bound to a network namespace, and set-id bits, which would let
another user of the machine run a program of the command with the rights of our user.
"""

from __future__ import annotations

import errno
import sys

_LD_W_ABS = 0x20
JEQ, _JGE, _JSET = 0x15, 0x35, 0x45
_AND = 0x54
_RET = 0x06

ALLOW = 0x7FFF0000
KILL = 0x80000000
ERRNO = 0x00050000
NOTIFY = 0x7FC00000

_NR, _ARCH = 0, 4
_ARGS = 16

#: AUDIT_ARCH_* and the column of the table below.
ARCHES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_X32 = 0x40000000

#: Refused with EPERM whatever the arguments: name -> numbers on x86_64 and aarch64, None: none.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
}
#: Calls that open, with the arguments for flags and mode; the mode counts only if the call can
#: create a file.  Tested first: no call is more frequent.
_OPENING: tuple[tuple[tuple[int | None, int | None], int, int], ...] = (
    ((257, 56), 2, 3),  # openat
    ((2, None), 1, 2),  # open
)
#: O_CREAT, and the bit of O_TMPFILE that is not O_DIRECTORY.
_CREATES = 0o100 | 0o20000000
#: Calls that always set a mode: name -> numbers, and the argument that has it.
SETTING_MODES: dict[str, tuple[tuple[int | None, int | None], int]] = {
    "chmod": ((90, None), 1),
    "fchmod": ((91, 52), 1),
    "fchmodat": ((268, 53), 2),
    "fchmodat2": ((452, 452), 2),
    "creat": ((85, None), 1),
    "mknod": ((133, None), 1),
    "mknodat": ((259, 33), 2),
}
#: S_ISUID and S_ISGID.
SET_ID = 0o6000
#: clone3 and openat2 pass flags or a mode behind a pointer, where no filter can see them.
#: They answer ENOSYS, as an older kernel would, and libraries fall back to the older call.
_BEHIND_POINTERS = ((435, 435), (437, 437))
_CLONE = (56, 220)
_UNSHARE = (272, 97)
_IOCTL = (16, 29)
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_CONNECT = (42, 203)
#: Calls that can connect without ``connect``, and their argument with the flag for it.
_SENDING = (((44, 206), 3), ((46, 211), 2), ((307, 269), 3))
_FAST_OPEN = 0x20000000

#: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NEW_NAMESPACE = 0x7E020000
_NEW_TIME = 0x80  # for unshare only; in clone these bits are the signal
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
#: The kernel treats raw Unix sockets as datagram sockets.
_STREAM, _DATAGRAM, _RAW, _SEQPACKET = 1, 2, 3, 5


class Assembly:
    """Instructions with jumps that are computed once their target is known."""

    def __init__(self) -> None:
        self.code: list[tuple[int, int, int, int]] = []

    def load(self, offset: int) -> None:
        self.code.append((_LD_W_ABS, 0, 0, offset))

    def number(self) -> None:
        """Load the syscall number."""
        self.load(_NR)

    def argument(self, index: int) -> None:
        # Only the low half: the kernel takes an int and ignores the upper half.
        self.load(_ARGS + 8 * index)

    def answer(self, action: int) -> None:
        self.code.append((_RET, 0, 0, action))

    def answer_if(self, test: int, value: int, action: int) -> None:
        self.code.append((test, 0, 1, value))
        self.answer(action)

    def answer_unless(self, test: int, value: int, action: int) -> None:
        self.code.append((test, 1, 0, value))
        self.answer(action)

    def only_for(self, number: int, block: Assembly) -> None:
        """The block runs for this syscall (or argument) only, and has to return a verdict."""
        self.code.append((JEQ, 0, len(block.code), number))
        self.code += block.code

    def bytes(self) -> bytes:
        order = sys.byteorder  # importing struct would cost start-up time
        return b"".join(
            code.to_bytes(2, order) + bytes((hit, miss)) + value.to_bytes(4, order)
            for code, hit, miss, value in self.code
        )


def _connected_types(otherwise: int, *more: int) -> Assembly:
    """Allow stream and seqpacket sockets: without ``connect`` they reach no other socket."""
    block = Assembly()
    block.argument(1)
    block.code.append((_AND, 0, 0, 0xF))  # without SOCK_NONBLOCK and SOCK_CLOEXEC
    for kind in (_STREAM, _SEQPACKET, *more):
        block.answer_if(JEQ, kind, ALLOW)
    block.answer(otherwise)
    return block


def _refuse_set_id(main: Assembly, column: int) -> None:
    """Refuse every mode with a set-user-id or set-group-id bit.

    ``mkdir`` needs no rule: the kernel drops these bits from its mode.
    """
    eperm = ERRNO | errno.EPERM
    for numbers, flags_at, mode_at in _OPENING:
        number = numbers[column]
        if number is not None:
            block = Assembly()
            block.argument(flags_at)
            block.answer_unless(_JSET, _CREATES, ALLOW)
            block.argument(mode_at)
            block.answer_if(_JSET, SET_ID, eperm)
            block.answer(ALLOW)
            main.only_for(number, block)
    for numbers, mode_at in SETTING_MODES.values():
        number = numbers[column]
        if number is not None:
            block = Assembly()
            block.argument(mode_at)
            block.answer_if(_JSET, SET_ID, eperm)
            block.answer(ALLOW)
            main.only_for(number, block)


def program(arch: str, *, unix_sockets: bool) -> bytes:
    """Build the filter for an architecture; raises KeyError if its syscall numbers are unknown.

    ``unix_sockets``: whether single Unix sockets may be made, which needs a supervisor for the
    calls that ``announcing`` reports; pairs always may.  Either must be of a kind that cannot send
    elsewhere, as datagrams can.  A datagram pair is reported, and another kind given instead.
    """
    audit, column = ARCHES[arch]
    eperm, enosys = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
    main = Assembly()
    main.load(_ARCH)
    main.answer_unless(JEQ, audit, KILL)
    main.load(_NR)
    if arch == "x86_64":
        main.answer_if(_JGE, _X32, enosys)
    _refuse_set_id(main, column)
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            main.answer_if(JEQ, number, eperm)
    for both in _BEHIND_POINTERS:
        main.answer_if(JEQ, both[column], enosys)
    for call, flags in ((_CLONE, _NEW_NAMESPACE), (_UNSHARE, _NEW_NAMESPACE | _NEW_TIME)):
        block = Assembly()
        block.argument(0)
        block.answer_if(_JSET, flags, eperm)
        block.answer(ALLOW)
        main.only_for(call[column], block)
    block = Assembly()
    block.argument(1)
    block.answer_if(JEQ, _TIOCSTI, eperm)
    block.answer_if(JEQ, _TIOCLINUX, eperm)
    block.answer(ALLOW)
    main.only_for(_IOCTL[column], block)
    block = Assembly()
    block.argument(0)
    if unix_sockets:
        block.only_for(_UNIX, _connected_types(eperm))
    for family in (_INET, _INET6):
        block.answer_if(JEQ, family, ALLOW)
    block.answer_unless(JEQ, _NETLINK, eperm)
    block.argument(2)
    block.answer_if(JEQ, 0, ALLOW)
    block.answer(eperm)
    main.only_for(_SOCKET[column], block)
    block = Assembly()
    block.argument(0)
    block.answer_unless(JEQ, _UNIX, eperm)
    announced = (_DATAGRAM, _RAW) if unix_sockets else ()
    block.code += _connected_types(eperm, *announced).code
    main.only_for(_SOCKETPAIR[column], block)
    for call, flags_at in _SENDING:
        block = Assembly()
        block.argument(flags_at)
        block.answer_if(_JSET, _FAST_OPEN, ERRNO | errno.EOPNOTSUPP)
        block.answer(ALLOW)
        main.only_for(call[column], block)
    main.answer(ALLOW)
    return main.bytes()


def connect_number(arch: str) -> int:
    """The syscall number of ``connect``."""
    return _CONNECT[ARCHES[arch][1]]


def socketpair_number(arch: str) -> int:
    """The syscall number of ``socketpair``."""
    return _SOCKETPAIR[ARCHES[arch][1]]


def _announced_pairs(arch: str) -> Assembly:
    """Match the pairs that ``program`` lets pass only because they are reported."""
    part = Assembly()
    part.only_for(socketpair_number(arch), _connected_types(NOTIFY))
    return part


def announcing(arch: str, *, watch: bool) -> bytes:
    """Build the filter that reports ``connect`` and datagram pairs to the supervisor.

    ``watch``: also every attempt to change something.

    What the other filter refuses is refused without a report.
    """
    if watch:
        from handrail.sandbox.syscalls import mutating_calls  # rarely needed

        return mutating_calls.filter_code(arch, _announced_pairs(arch).bytes())
    main = Assembly()
    main.load(_ARCH)
    main.answer_unless(JEQ, ARCHES[arch][0], ALLOW)
    main.load(_NR)
    main.answer_if(JEQ, connect_number(arch), NOTIFY)
    main.code += _announced_pairs(arch).code
    main.answer(ALLOW)
    return main.bytes()
