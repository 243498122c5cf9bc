"""The filter program, byte for byte.  Pure.

Classic BPF over ``struct seccomp_data {int nr; u32 arch; u64 ip; u64 args[6]}``.  The list is the
attack surface that a mount plan cannot close: other processes' memory, new namespaces, mounts,
io_uring (which would carry out system calls past this filter), key rings, modules, terminals that
type, socket families that are not bound to a network namespace, and set-id bits, which would let
another user of the machine run a program of the command with the rights of our user.
"""

from __future__ import annotations

import errno

from handrail.sandbox.syscalls import ARCHES

_LD_W_ABS = 0x20
JEQ, _JGE, JSET = 0x15, 0x35, 0x45
_AND = 0x54
_RET = 0x06

ALLOW = 0x7FFF0000
KILL = 0x80000000
ERRNO = 0x00050000
NOTIFY = 0x7FC00000

_NR, _ARCH = 0, 4
_ARGS = 16

_X32 = 0x40000000

#: Name, number on x86_64, number on aarch64, where some calls do not exist.
_TABLE = """
    acct 163 89   add_key 248 217   bpf 321 280   chmod 90 -   chown 92 -   chroot 161 51
    clone 56 220   clone3 435 435   connect 42 203   creat 85 -   delete_module 176 106
    fanotify_init 300 262   fchmod 91 52   fchmodat 268 53   fchmodat2 452 452   fchownat 260 54
    fcntl 72 25
    finit_module 313 273   fsconfig 431 431   fsmount 432 432   fsopen 430 430   fspick 433 433
    init_module 175 105   io_uring_enter 426 426   io_uring_register 427 427
    io_uring_setup 425 425   ioctl 16 29   ioperm 173 -   iopl 172 -   ioprio_set 251 30
    kcmp 312 272   kexec_file_load 320 294   kexec_load 246 104   keyctl 250 219   lchown 94 -
    link 86 -   linkat 265 37   migrate_pages 256 238   mkdir 83 -   mkdirat 258 34
    mknod 133 -   mknodat 259 33   mount 165 40   mount_setattr 442 442   move_mount 429 429
    move_pages 279 239   mq_open 240 180   mq_unlink 241 181   msgctl 71 187   msgget 68 186
    msgrcv 70 188   msgsnd 69 189   open 2 -   open_by_handle_at 304 265   open_tree 428 428
    open_tree_attr 467 467   openat 257 56   openat2 437 437   perf_event_open 298 241
    pidfd_getfd 438 438   pivot_root 155 41   prlimit64 302 261   process_madvise 440 440
    process_mrelease 448 448   process_vm_readv 310 270   process_vm_writev 311 271
    ptrace 101 117   quotactl 179 60   quotactl_fd 443 443   reboot 169 142   rename 82 -
    renameat 264 38   renameat2 316 276   request_key 249 218   rmdir 84 -
    sched_setaffinity 203 122   sched_setattr 314 274   sched_setparam 142 118
    sched_setscheduler 144 119   semctl 66 191   semget 64 190   semop 65 193
    semtimedop 220 192   sendmmsg 307 269   sendmsg 46 211   sendto 44 206   setns 308 268
    setpriority 141 140   shmat 30 196   shmctl 31 195   shmget 29 194   socket 41 198
    socketpair 53 199   swapoff 168 225   swapon 167 224   symlink 88 -   symlinkat 266 36
    syslog 103 116   truncate 76 45   umount2 166 39   unlink 87 -   unlinkat 263 35
    unshare 272 97   userfaultfd 323 282
"""

#: Refused with EPERM whatever the arguments.
REFUSED = (
    "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "io_uring_setup",
    "io_uring_enter", "io_uring_register", "mount", "umount2", "pivot_root", "chroot", "setns",
    "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
    "open_tree_attr", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key",
    "request_key", "open_by_handle_at", "fanotify_init", "quotactl", "quotactl_fd", "acct",
    "reboot", "swapon", "swapoff", "kexec_load", "kexec_file_load", "init_module",
    "finit_module", "delete_module", "syslog", "iopl", "ioperm",
)  # fmt: skip
#: Calls that open, with the arguments for flags and mode; the mode counts only if the call can
#: create a file.
_OPENING = (("openat", 2, 3), ("open", 1, 2))
#: O_CREAT, and the bit of O_TMPFILE that is not O_DIRECTORY.
_CREATES = 0o100 | 0o20000000
#: Calls that always set a mode, and the argument that has it.
SETTING_MODES = {
    "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2,
}  # fmt: skip
#: S_ISUID and S_ISGID.
SET_ID = 0o6000
#: They pass flags or a mode behind a pointer, where no filter can see them.
#: They answer ENOSYS, as an older kernel would, and libraries fall back to the older call.
_BEHIND_POINTERS = ("clone3", "openat2")
#: Calls that can connect without ``connect``, and their argument with the flag for it.
_SENDING = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
_FAST_OPEN = 0x20000000

#: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NEW_NAMESPACE = 0x7E020000
_NEW_TIME = 0x80  # for unshare only; in clone these bits are the signal
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
#: With a lease on a file that it may only read, or a delegation of a directory, a command would
#: keep programs outside from opening it, for as long as the kernel waits for it to give that back.
_SETLEASE, _SETDELEG = 1024, 1040
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
#: The kernel treats raw Unix sockets as datagram sockets.
_STREAM, _DATAGRAM, _RAW, _SEQPACKET = 1, 2, 3, 5
#: So many rules are tested one after the other.
_FEW = 3


#: What ``numbers`` has read: a start asks three times.
_numbers: dict[str, dict[str, int]] = {}


def numbers(arch: str) -> dict[str, int]:
    """The numbers by name; raises KeyError for an architecture that is not in the table."""
    known = _numbers.get(arch)
    if known is None:
        words = _TABLE.split()
        found = zip(words[::3], words[ARCHES[arch][1] :: 3], strict=True)
        known = {name: int(number) for name, number in found if number != "-"}
        _numbers[arch] = known
    return dict(known)


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
        # All machines of the table are little-endian; importing struct would cost start-up time.
        return b"".join(
            (code | hit << 16 | miss << 24 | value << 32).to_bytes(8, "little")
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


def _set_id_rules(calls: dict[str, int]) -> dict[int, Assembly]:
    """Refuse every mode with a set-user-id or set-group-id bit.

    ``mkdir`` needs no rule: the kernel drops these bits from its mode.
    """
    eperm = ERRNO | errno.EPERM
    rules = {}
    for name, flags_at, mode_at in _OPENING:
        if name in calls:
            block = rules[calls[name]] = Assembly()
            block.argument(flags_at)
            block.answer_unless(JSET, _CREATES, ALLOW)
            block.argument(mode_at)
            block.answer_if(JSET, SET_ID, eperm)
            block.answer(ALLOW)
    for name, mode_at in SETTING_MODES.items():
        if name in calls:
            rules[calls[name]] = _refuse_bits(mode_at, SET_ID)
    return rules


def _refuse_bits(argument: int, bits: int, error: int = errno.EPERM) -> Assembly:
    """Refuse a call that has one of these bits in an argument."""
    block = Assembly()
    block.argument(argument)
    block.answer_if(JSET, bits, ERRNO | error)
    block.answer(ALLOW)
    return block


def _always(action: int) -> Assembly:
    block = Assembly()
    block.answer(action)
    return block


def _sorted_out(rules: list[tuple[int, Assembly]]) -> Assembly:
    """Find the rule for a number by halves; without one the call is allowed.

    The kernel runs a new filter once for each number there is, to remember which are always
    allowed.  One test after the other took it 0.1 ms, at each start.
    """
    found = Assembly()
    if len(rules) > _FEW:
        middle = len(rules) // 2
        lower, upper = _sorted_out(rules[:middle]), _sorted_out(rules[middle:])
        found.code.append((_JGE, len(lower.code), 0, rules[middle][0]))
        found.code += lower.code + upper.code
        return found
    for number, block in rules:
        found.only_for(number, block)
    found.answer(ALLOW)
    return found


def program(arch: str, *, unix_sockets: bool) -> bytes:
    """Build the filter for an architecture; raises KeyError if its syscall numbers are unknown.

    ``unix_sockets``: whether single Unix sockets may be made, which needs a supervisor for the
    calls that ``announcing`` reports; pairs always may.  Either must be of a kind that cannot send
    elsewhere, as datagrams can.  A datagram pair is reported, and another kind given instead.
    """
    calls = numbers(arch)
    eperm, enosys = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
    rules = _set_id_rules(calls)
    rules |= {calls[name]: _always(eperm) for name in REFUSED if name in calls}
    rules |= {calls[name]: _always(enosys) for name in _BEHIND_POINTERS}
    rules[calls["clone"]] = _refuse_bits(0, _NEW_NAMESPACE)
    rules[calls["unshare"]] = _refuse_bits(0, _NEW_NAMESPACE | _NEW_TIME)
    for name, commands in {
        "ioctl": (_TIOCSTI, _TIOCLINUX),
        "fcntl": (_SETLEASE, _SETDELEG),
    }.items():
        block = rules[calls[name]] = Assembly()
        block.argument(1)
        for command in commands:
            block.answer_if(JEQ, command, eperm)
        block.answer(ALLOW)
    block = rules[calls["socket"]] = Assembly()
    block.argument(0)
    if unix_sockets:
        block.only_for(_UNIX, _connected_types(eperm))
    for family in (_INET, _INET6):
        block.answer_if(JEQ, family, ALLOW)
    block.answer_unless(JEQ, _NETLINK, eperm)
    block.argument(2)
    block.answer_if(JEQ, 0, ALLOW)
    block.answer(eperm)
    block = rules[calls["socketpair"]] = Assembly()
    block.argument(0)
    block.answer_unless(JEQ, _UNIX, eperm)
    announced = (_DATAGRAM, _RAW) if unix_sockets else ()
    block.code += _connected_types(eperm, *announced).code
    for name, flags_at in _SENDING.items():
        rules[calls[name]] = _refuse_bits(flags_at, _FAST_OPEN, errno.EOPNOTSUPP)
    main = Assembly()
    main.load(_ARCH)
    main.answer_unless(JEQ, ARCHES[arch][0], KILL)
    main.load(_NR)
    if arch == "x86_64":
        main.answer_if(_JGE, _X32, enosys)
    main.code += _sorted_out(sorted(rules.items())).code
    return main.bytes()


def connect_number(arch: str) -> int:
    """The syscall number of ``connect``."""
    return numbers(arch)["connect"]


def socketpair_number(arch: str) -> int:
    """The syscall number of ``socketpair``."""
    return numbers(arch)["socketpair"]


def announcing(arch: str, *, watch: bool) -> bytes:
    """Build the filter that reports ``connect`` and datagram pairs to the supervisor.

    ``watch``: also every attempt to change something.

    What the other filter refuses is refused without a report.
    """
    main = Assembly()
    main.load(_ARCH)
    main.answer_unless(JEQ, ARCHES[arch][0], ALLOW)
    main.load(_NR)
    if watch:
        from handrail.sandbox.syscalls import mutating_calls  # only when it is asked for

        mutating_calls.announce(main, arch)
    else:
        main.answer_if(JEQ, connect_number(arch), NOTIFY)
    main.only_for(socketpair_number(arch), _connected_types(NOTIFY))
    main.answer(ALLOW)
    return main.bytes()
