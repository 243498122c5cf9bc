"""The first process of a sandbox that is a copy of a template, as machine code.  Pure.

It makes what the copy has for itself, gives up all rights, starts the stub, and reaps.  Part of
``copy_program.py``, from which it is forked.  In C it would be::

    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // if it ends with its parent
    closed = open_tree("/dev/shm", OPEN_TREE_CLONE);
    for (node in DEVICE_NODES) {
        device[node] = open_tree(node, OPEN_TREE_CLONE);
        mount_setattr(device[node], "", AT_EMPTY_PATH, MOUNT_ATTR_RDONLY);
    }
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755");
    for (node in DEVICE_NODES) { mknod(node, S_IFREG | 0444); move_mount(device[node], node); }
    for (link in LINKS) symlink(link.target, link.path);
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,...");
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    self = open("/proc/1", O_PATH);
    namespace = stat("/proc/1/ns/pid").st_ino;
    move_mount(closed, "/proc/1");
    for (path in readable) bind_read_only(path, path);
    for (path in hidden) mount("/proc/1", path, NULL, MS_BIND, NULL);
    unshare(CLONE_NEWUSER);
    write_file_at(self, "setgroups", "deny");
    write_file_at(self, "uid_map", "UID 0 1");
    write_file_at(self, "gid_map", "GID 0 1");
    for (cap = 0; prctl(PR_CAPBSET_DROP, cap) == 0; cap++);
    drop_capabilities();
    prctl(PR_SET_NO_NEW_PRIVS, 1);
    seccomp(SECCOMP_SET_MODE_FILTER, 0, &filter);
    if ((command = fork()) == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // as above
        close_all_but(0, 1, 2, READY, LINE);
        stub();  // keeper/waiting_stub.py
    }
    write(SET_UP_TOLD, &namespace, 8);
    while ((pid = wait4(-1, &status)) > 0)
        if (pid == command) { code = exit_code(status); kill(-1, SIGKILL); }
    write(END_TOLD, &code, 1);
    exit(code);

That is how bubblewrap does it, and with the same results, but that what the command has left is
ended and waited for: the kernel, which ends it with this process, would not count its use.

The template's /dev and /proc stay below the new ones, as the host's do: without rights in the user
namespace that owns them no process gets there.  Unmounting them would wait for the other
processors, up to some milliseconds.
"""

from __future__ import annotations

from handrail.keeper import waiting_stub
from handrail.keeper.elf_x86_64 import (
    EBX,
    OR_LEAVE,
    R12D,
    R13D,
    R14D,
    At,
    call,
    hold,
    number,
    store,
)
from handrail.sandbox.bwrap.arguments import (
    CLOSED,
    COPY_FD,
    DEVICE_NODES,
    FIRST_PROCESS,
    HOST_TERMINALS,
    INFO_FD,
    LINE_FD,
    READY_FD,
)
from handrail.sandbox.light_dataclass import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from handrail.keeper.elf_x86_64 import Code, Data

#: Pipes: on which the outer process hears of the end, the maker that the sandbox stands, and the
#: stub of its command, if names are covered before.
END, END_TOLD, SET_UP, SET_UP_TOLD, FROM_MAKER, TO_STUB = 20, 21, 22, 23, 24, 25
#: The fds of covers.
FIRST_COVER = 32

_WRITE, _CLOSE, _FSTAT, _CLONE, _WAIT4, _KILL, _MKDIR = 1, 3, 5, 56, 61, 62, 83
_SYMLINK, _UMASK, _SETSID, _CAPSET, _MKNOD, _PRCTL, _MOUNT = (
    88, 95, 112, 126, 133, 157, 165,
)  # fmt: skip
_EXIT_GROUP, _OPENAT, _UNSHARE, _DUP3, _SECCOMP, _STATX = 231, 257, 272, 292, 317, 332
_OPEN_TREE, _MOVE_MOUNT, _CLOSE_RANGE, _MOUNT_SETATTR = 428, 429, 436, 442
_HERE, _EMPTY_SOURCE, _EMPTY_PATH = -100, 4, 0x1000
_CLOSE_ON_EXEC = 0x80000
_CLONE_TREE = 1 | _CLOSE_ON_EXEC
_DIRECTORY_PATH = 0x200000 | 0x10000 | _CLOSE_ON_EXEC
_FOR_WRITING = 1 | _CLOSE_ON_EXEC
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_NEW_USER, _SIGCHLD, _SIGKILL = 0x10000000, 17, 9
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 15, 24, 38
_SET_FILTER, _PLAIN_FILE, _EINTR, _EINVAL = 1, 0o100000, 4, 22
_WANT_INODE, _STATX_INODE, _STAT_DEVICE = 0x100, 32, 40
_ALL_FDS = 2**32 - 1
_NO_CAPABILITIES = number(0x20080522, 4) + bytes(4 + 24)

_CONSOLE = b"/dev/console"
#: ``struct mount_attr`` with MOUNT_ATTR_RDONLY: root owns the devices and could change modes.
_SEALED = number(1, 8) + bytes(24)
_LINKS = (
    (b"/proc/self/fd/0", b"/dev/stdin"),
    (b"/proc/self/fd/1", b"/dev/stdout"),
    (b"/proc/self/fd/2", b"/dev/stderr"),
    (b"/proc/self/fd", b"/dev/fd"),
    (b"/proc/kcore", b"/dev/core"),
    (b"pts/ptmx", b"/dev/ptmx"),
)
_TERMINALS = b"newinstance,ptmxmode=0666,mode=620"
#: Where in the scratch memory the fds of devices are; 16 bytes before are for results.
_DEVICES = 16


class Inside(Frozen):
    """What the first process has to know."""

    uid: int
    gid: int
    #: The filter that refuses system calls.
    refusing: bytes
    #: Parts of /proc that are read-only, and those that are hidden.
    readable: Sequence[bytes]
    hidden: Sequence[bytes]
    #: Whether its standard streams are a terminal.
    terminal: bool


def exit_code(status: int) -> bytes:
    """Put what a shell would say of the wait status at an address into eax."""
    code = b"\x8b\x04\x25" + number(status, 4)  # mov eax, [status]
    code += (
        b"\x89\xc1" + b"\xc1\xe9\x08" + b"\x0f\xb6\xc9"
    )  # mov ecx, eax; shr ecx, 8; movzx ecx,cl
    code += b"\x83\xe0\x7f"  # and eax, 127
    code += b"\x8d\x90\x80\0\0\0"  # lea edx, [rax + 128]
    code += b"\x85\xc0" + b"\x0f\x44\xd1"  # test eax, eax; cmove edx, ecx
    return code + b"\x89\xd0"  # mov eax, edx


def write(
    code: Code, data: Data, inside: Inside, scratch: int, *, covers: int, lasting: bool
) -> None:
    """Write the code of the first process.  ``scratch``: memory for results."""
    for fd in (SET_UP, INFO_FD, COPY_FD):
        code += call(_CLOSE, fd)
    if covers:
        # The stub hears of its command by the maker.
        code += call(_DUP3, FROM_MAKER, LINE_FD, 0) + OR_LEAVE
        for fd in (READY_FD, FROM_MAKER, TO_STUB):
            code += call(_CLOSE, fd)
        code += call(_CLOSE_RANGE, FIRST_COVER, FIRST_COVER + covers - 1, 0) + OR_LEAVE
    code += call(_SETSID) + OR_LEAVE
    if not lasting:
        code += call(_PRCTL, _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) + OR_LEAVE
    code += call(_UMASK, 0) + hold(R12D)
    code += call(_OPEN_TREE, _HERE, data.text(CLOSED), _CLONE_TREE) + OR_LEAVE + hold(R13D)
    _make_devices(code, data, scratch, terminal=inside.terminal)
    _make_processes(code, data, inside, scratch)
    code += call(_UMASK, R12D)
    _give_up_rights(code, data, inside)
    code += call(_CLONE, _SIGCHLD, 0, 0, 0, 0) + OR_LEAVE
    code.jump(code.EQUAL, "second")
    code += hold(EBX)
    for fd in (LINE_FD, READY_FD):
        code += call(_CLOSE, fd)
    code += call(_WRITE, SET_UP_TOLD, scratch + 8, 8) + call(_CLOSE, SET_UP_TOLD)
    code.label("reap")
    code += call(_WAIT4, -1, scratch, 0, 0)
    code += b"\x39\xd8"  # cmp eax, ebx
    code.jump(code.EQUAL, "ended")
    code.jump_if_result(-_EINTR, "reap")
    code += b"\x85\xc0"  # test eax, eax
    code.jump(code.NOT_NEGATIVE, "reap")
    code += call(_WRITE, END_TOLD, scratch + 8, 1)
    code += call(_EXIT_GROUP, R13D)
    code.label("ended")
    code += exit_code(scratch) + hold(R13D) + store(scratch + 8)
    code += call(_KILL, -1, _SIGKILL)
    code.jump(code.ALWAYS, "reap")
    code.label("second")
    if not lasting:
        code += call(_PRCTL, _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) + OR_LEAVE
    for low, high in ((3, READY_FD - 1), (READY_FD + 1, LINE_FD - 1), (LINE_FD + 1, _ALL_FDS)):
        code += call(_CLOSE_RANGE, low, high, 0) + OR_LEAVE
    code += call(_PRCTL, _PR_SET_NAME, data.text(b"handrail-stub"), 0, 0, 0)
    code += waiting_stub.text(data.text(waiting_stub.errors()), READY_FD, LINE_FD)


def _make_devices(code: Code, data: Data, scratch: int, *, terminal: bool) -> None:
    """A /dev as bubblewrap makes it, with the same devices and terminals of its own."""
    text, places = data.text, list(DEVICE_NODES)
    for index, place in enumerate(places):
        code += call(_OPEN_TREE, _HERE, text(place), _CLONE_TREE) + OR_LEAVE
        code += store(scratch + _DEVICES + 4 * index)
        device = At(scratch + _DEVICES + 4 * index)
        sealed = text(_SEALED)
        code += call(_MOUNT_SETATTR, device, text(b""), _EMPTY_PATH, sealed, len(_SEALED))
        code += OR_LEAVE
    if terminal:
        _find_terminal(code, data, scratch)
        code += store(scratch + _DEVICES + 4 * len(places))
        places.append(_CONSOLE)
    tmpfs, mode = text(b"tmpfs"), text(b"mode=0755")
    code += call(_MOUNT, tmpfs, text(b"/dev"), tmpfs, _NO_SUID | _NO_DEV, mode) + OR_LEAVE
    for index, place in enumerate(places):
        device = At(scratch + _DEVICES + 4 * index)
        code += call(_MKNOD, text(place), _PLAIN_FILE | 0o444, 0) + OR_LEAVE
        code += call(_MOVE_MOUNT, device, text(b""), _HERE, text(place), _EMPTY_SOURCE) + OR_LEAVE
        code += call(_CLOSE, device)
    for target, path in _LINKS:
        code += call(_SYMLINK, text(target), text(path)) + OR_LEAVE
    for path in (b"/dev/shm", b"/dev/pts"):
        code += call(_MKDIR, text(path), 0o755) + OR_LEAVE
    kind, flags = text(b"devpts"), _NO_SUID | _NO_EXEC
    code += call(_MOUNT, kind, text(b"/dev/pts"), kind, flags, text(_TERMINALS)) + OR_LEAVE


def _find_terminal(code: Code, data: Data, scratch: int) -> None:
    """Copy the mount of the terminal that is stdin: by its number, from the host's terminals."""
    status, digits = scratch + 64, scratch + 240
    code += call(_OPENAT, _HERE, data.text(HOST_TERMINALS), _DIRECTORY_PATH, 0) + OR_LEAVE
    code += hold(R14D) + call(_FSTAT, 0, status) + OR_LEAVE
    code += b"\x8b\x04\x25" + number(status + _STAT_DEVICE, 4)  # mov eax, [device]
    # The minor number: the lowest byte, and what is beyond the twentieth bit.
    code += b"\x0f\xb6\xc8" + b"\xc1\xe8\x0c"  # movzx ecx, al; shr eax, 12
    code += b"\x25" + number(0xFFF00, 4) + b"\x09\xc8"  # and eax, 0xfff00; or eax, ecx
    code += b"\xb9" + number(10, 4) + b"\xbf" + number(digits, 4)  # mov ecx, 10; mov edi, digits
    code += b"\xc6\x07\0"  # mov byte [rdi], 0
    code.label("digit")
    code += b"\x31\xd2" + b"\xf7\xf1" + b"\x80\xc2\x30"  # xor edx, edx; div ecx; add dl, '0'
    code += b"\xff\xcf" + b"\x88\x17" + b"\x85\xc0"  # dec edi; mov [rdi], dl; test eax, eax
    code.jump(code.NOT_EQUAL, "digit")
    code += b"\x89\xfe"  # mov esi, edi
    code += b"\x44\x89\xf7" + b"\xba" + number(_CLONE_TREE, 4)  # mov edi, r14d; mov edx, flags
    code += call(_OPEN_TREE) + OR_LEAVE + hold(EBX) + call(_CLOSE, R14D) + b"\x89\xd8"


def _make_processes(code: Code, data: Data, inside: Inside, scratch: int) -> None:
    """A /proc of the new PID namespace, with r13d, an empty directory, in place of this process.

    r14d holds the directory that is covered by that.
    """
    text, proc, closed = data.text, data.text(b"proc"), data.text(FIRST_PROCESS)
    flags = _NO_SUID | _NO_DEV | _NO_EXEC
    code += call(_MOUNT, proc, text(b"/proc"), proc, flags, 0) + OR_LEAVE
    code += call(_OPENAT, _HERE, closed, _DIRECTORY_PATH, 0) + OR_LEAVE + hold(R14D)
    code += call(_STATX, R14D, text(b"ns/pid"), 0, _WANT_INODE, scratch) + OR_LEAVE
    code += b"\x48\x8b\x04\x25" + number(scratch + _STATX_INODE, 4)  # mov rax, [inode]
    code += b"\x48\x89\x04\x25" + number(scratch + 8, 4)  # mov [scratch + 8], rax
    code += call(_MOVE_MOUNT, R13D, text(b""), _HERE, closed, _EMPTY_SOURCE) + OR_LEAVE
    code += call(_CLOSE, R13D)
    for path in inside.readable:
        place = text(path)
        code += call(_MOUNT, place, place, 0, _BIND, 0) + OR_LEAVE
        code += call(_MOUNT, 0, place, 0, _REMOUNT | _BIND | _READ_ONLY | flags, 0) + OR_LEAVE
    for path in inside.hidden:
        code += call(_MOUNT, closed, text(path), 0, _BIND, 0) + OR_LEAVE


def _give_up_rights(code: Code, data: Data, inside: Inside) -> None:
    """A user namespace of its own, no capabilities, and the filter."""
    text = data.text
    code += call(_UNSHARE, _NEW_USER) + OR_LEAVE
    # The template's user namespace has one user and one group, both with the number 0.
    uid, gid = b"%d 0 1" % inside.uid, b"%d 0 1" % inside.gid
    for name, what in ((b"setgroups", b"deny"), (b"uid_map", uid), (b"gid_map", gid)):
        code += call(_OPENAT, R14D, text(name), _FOR_WRITING, 0) + OR_LEAVE + hold(EBX)
        code += call(_WRITE, EBX, text(what), len(what)) + OR_LEAVE + call(_CLOSE, EBX)
    code += call(_CLOSE, R14D)
    code += b"\x45\x31\xe4"  # xor r12d, r12d
    code.label("capability")
    code += call(_PRCTL, _PR_CAPBSET_DROP, R12D, 0, 0, 0)
    code += b"\x41\xff\xc4" + b"\x85\xc0"  # inc r12d; test eax, eax
    code.jump(code.EQUAL, "capability")
    # There is none of that number; anything else is an error.
    code.jump_if_result(-_EINVAL, "none left")
    code += call(_EXIT_GROUP, 1)
    code.label("none left")
    nothing = text(_NO_CAPABILITIES)
    code += call(_CAPSET, nothing, nothing + 8) + OR_LEAVE
    code += call(_PRCTL, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) + OR_LEAVE
    refusing = text(inside.refusing)
    program = text(number(len(inside.refusing) // 8, 8) + number(refusing, 8))
    code += call(_SECCOMP, _SET_FILTER, 0, program) + OR_LEAVE
