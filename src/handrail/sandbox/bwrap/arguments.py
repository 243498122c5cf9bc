"""The argument list of bubblewrap.  Pure.

``sandbox_arguments`` makes the whole list.  A mount plan is a list of steps; fds are named by their
number in the child.  All arguments, the command's environment included, go through ``--args``, so
that nothing of a request is in bwrap's own environment or in the process list.
"""

from __future__ import annotations

from handrail.sandbox.light_dataclass import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


#: Fd numbers in the child.
ARGS_FD, SECCOMP_FD, INFO_FD, SYNC_FD, READY_FD, BEFORE_FD = 3, 4, 5, 6, 7, 8
#: The namespace of a shared network, and the program that joins it.
NETWORK_FD, JOIN_FD = 9, 10
#: Of a sandbox that waits: its line and its stub.
LINE_FD, STUB_FD = 11, 12
#: Where bwrap tells that its mounts are made, and waits for the mounter; the mounter's ends.
MOUNTS_FD, MOUNTED_FD, MOUNTER_TOLD_FD, MOUNTER_GO_FD = 13, 14, 15, 16
FIRST_FD = 17
#: The program that is started before bwrap: one of two.
APART_FD = BEFORE_FD
#: Of a sandbox that is a copy of a template: the template's mounts, and the program that copies.
NAMESPACE_FD, COPY_FD = ARGS_FD, BEFORE_FD
#: The host's devices that every sandbox has.
DEVICE_NODES = (
    b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom", b"/dev/tty",
)  # fmt: skip
#: Where a template has the host's terminals, and an empty directory: copies mount their own /dev
#: over its.
HOST_TERMINALS, CLOSED = b"/dev/pts", b"/dev/shm"
#: Copying this file is the last thing bwrap does before it starts the command.
READY_FILE = b"/dev/.ready"
#: bwrap itself refuses more than 9000 arguments, its own name and three of ours included.
MOST_WORDS = 9000 - 4
#: Of those, how many may be the sandbox's own.
MOST_ARGUMENTS = 8900
#: Parts of the host's /proc that its root could write: the settings stay readable,
PROC_READABLE = (b"/proc/sys", b"/proc/sysrq-trigger")
#: of the others nothing is left.  An empty directory is also by far the cheaper mount.
PROC_HIDDEN = (b"/proc/irq", b"/proc/bus", b"/proc/fs", b"/proc/acpi", b"/proc/scsi")
#: bwrap's own process in the sandbox: a write to its memory could let it outlive bwrap.
FIRST_PROCESS = b"/proc/1"
#: What every sandbox covers of its own /proc.
PROC_COVERED = frozenset((FIRST_PROCESS, *PROC_READABLE, *PROC_HIDDEN))


class Bind(Frozen):
    """Mount what fd ``number`` refers to at ``path``; 0: the host's own path."""

    path: bytes
    number: int
    writable: bool


class Empty(Frozen):
    """An empty directory of its own at ``path``.

    Its mode closes it.  The command may change the mode and then has a directory that only it can
    see: no reason to pay for a second mount that makes it read-only.
    """

    path: bytes
    mode: int


class Directory(Frozen):
    """A directory in an empty one."""

    path: bytes
    mode: int


class EmptyFile(Frozen):
    """An empty file mounted at ``path``, read from fd ``number`` (the null device)."""

    path: bytes
    number: int
    mode: int


class MountPoint(Frozen):
    """An empty file in an empty directory, for something to be mounted on."""

    path: bytes
    number: int


class Seal(Frozen):
    """Make this mount read-only."""

    path: bytes


class Link(Frozen):
    """A symbolic link in an empty root."""

    path: bytes
    target: bytes


class Devices(Frozen):
    """The harmless devices, with terminals and shared memory of its own."""

    path: bytes = b"/dev"


class Processes(Frozen):
    """A /proc with the processes of the new PID namespace only."""

    path: bytes = b"/proc"


Step = Bind | Empty | Directory | EmptyFile | MountPoint | Seal | Link | Devices | Processes


def sandbox_arguments(
    mounts: Sequence[bytes],
    env: Mapping[bytes, bytes],
    cwd: bytes,
    *,
    network: bool,
    lasting: bool,
    resolver: tuple[bytes, bytes] | None,
    ready: bool,
    arg0: bytes | None,
    sync: bool,
    mounter: bool,
) -> list[bytes]:
    """All that bwrap is told of a sandbox, in order; the command comes after it.

    ``network``: the one of the program that starts bwrap.  ``resolver``: the resolver's
    configuration, as the number of its fd and its path.  ``ready``: bwrap says when the sandbox
    stands.  ``sync``: bwrap holds the lock on placeholders.  ``mounter``: when all mounts are
    made it waits for those of ``mounter_stub``.
    """
    out = namespace_arguments(network=network, lasting=lasting)
    out += mounts
    if mounter:
        out += waiting(MOUNTS_FD, MOUNTED_FD)
    if resolver is not None:
        out += [b"--perms", b"0444", b"--ro-bind-data", *resolver]
    if ready:
        out += [b"--file", b"%d" % READY_FD, READY_FILE]
    out += environment_arguments(env)
    out += [b"--chdir", cwd, b"--seccomp", b"%d" % SECCOMP_FD, b"--info-fd", b"%d" % INFO_FD]
    if arg0 is not None:
        out += [b"--argv0", arg0]
    if sync:
        out += [b"--sync-fd", b"%d" % SYNC_FD]
    return out


def waiting(told: int, hold: int) -> list[bytes]:
    """Have bwrap close one socket, and wait until the other is closed."""
    return [b"--file", b"%d" % told, READY_FILE, b"--file", b"%d" % hold, READY_FILE]


def resolver_text(address: str) -> bytes:
    """The resolver's configuration in a managed network; what listens there knows no names."""
    return f"nameserver {address}\noptions timeout:1 attempts:1\n".encode()


def mount_arguments(steps: Iterable[Step]) -> list[bytes]:
    """The steps as bwrap arguments, in order."""
    out: list[bytes] = []
    for step in steps:
        match step:
            case Bind(path, 0, writable):
                out += [b"--bind" if writable else b"--ro-bind", path, path]
            case Bind(path, number, writable):
                out += [b"--bind-fd" if writable else b"--ro-bind-fd", b"%d" % number, path]
            case Empty(path, mode):
                out += [b"--perms", b"%04o" % mode, b"--tmpfs", path]
            case Directory(path, mode):
                out += [b"--perms", b"%04o" % mode, b"--dir", path]
            case EmptyFile(path, number, mode):
                out += [b"--perms", b"%04o" % mode, b"--ro-bind-data", b"%d" % number, path]
            case MountPoint(path, number):
                out += [b"--perms", b"0444", b"--file", b"%d" % number, path]
            case Seal(path):
                out += [b"--remount-ro", path]
            case Link(path, target):
                out += [b"--symlink", target, path]
            case Devices(path):
                out += [b"--dev", path]
            case Processes(path):
                out += [b"--proc", path]
    return out


def template_steps(steps: Iterable[Step]) -> list[Step]:
    """The steps for a sandbox whose mounts are copied (``warm/copy_program.py``).

    What is empty is read-only: the copies share it.  They cover parts of their own /proc.
    """
    found = [step for step in steps if step.path not in PROC_COVERED]
    found.append(Empty(CLOSED, 0o555))
    empty = {step.path for step in found if isinstance(step, Empty)}
    sealed = {step.path for step in found if isinstance(step, Seal)}
    return [*found, *map(Seal, sorted(empty - sealed))]


def template_arguments(steps: Iterable[Step]) -> list[bytes]:
    """Those steps as bwrap arguments, and the host's terminals."""
    return [*mount_arguments(template_steps(steps)), b"--dev-bind", HOST_TERMINALS, HOST_TERMINALS]


def namespace_arguments(*, network: bool, lasting: bool = False) -> list[bytes]:
    """The options that unshare namespaces; ``lasting``: the sandbox outlives its parent."""
    out = [
        b"--unshare-user",  # explicit, because bwrap leaves it out for root
        b"--unshare-pid",
        b"--unshare-ipc",
        b"--unshare-uts",
        b"--unshare-cgroup-try",
        b"--new-session",
        b"--cap-drop",
        b"ALL",
    ]
    if not lasting:
        out.append(b"--die-with-parent")
    return out if network else [*out, b"--unshare-net"]


def environment_arguments(env: Mapping[bytes, bytes]) -> list[bytes]:
    """The command's environment and nothing else."""
    out = [b"--clearenv"]
    for name, value in env.items():
        out += [b"--setenv", name, value]
    return out
