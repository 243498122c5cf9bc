"""The argument list of bubblewrap.  Pure.

A mount plan is a list of steps; descriptors are named by their number in the child.  All of it,
the command's environment included, is handed over by ``--args``, so that nothing of a request is
in bwrap's own environment or in the list of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Numbers of descriptors in the child.
ARGS_FD, SECCOMP_FD, INFO_FD, SYNC_FD, FIRST_FD = 3, 4, 5, 6, 7
#: bwrap itself refuses more than 9000 arguments.
MOST_ARGUMENTS = 8900
#: What of /proc belongs to the host and could be written by its root.
PROC_COVERS = (
    b"/proc/sys",
    b"/proc/sysrq-trigger",
    b"/proc/irq",
    b"/proc/bus",
    b"/proc/fs",
    b"/proc/acpi",
    b"/proc/scsi",
)


@dataclass(frozen=True, slots=True)
class Bind:
    """Mount what descriptor ``number`` is at ``path``; 0: the host's own path."""

    path: bytes
    number: int
    writable: bool


@dataclass(frozen=True, slots=True)
class Empty:
    """An empty directory of its own at ``path``; sealed later if something is to go into it."""

    path: bytes
    mode: int
    sealed: bool = True
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory inside an empty one."""

    path: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class EmptyFile:
    """An empty file mounted at ``path``, read from descriptor ``number`` (the null device)."""

    path: bytes
    number: int
    mode: int


@dataclass(frozen=True, slots=True)
class MountPoint:
    """An empty file inside an empty directory, for something to be mounted on."""

    path: bytes
    number: int


@dataclass(frozen=True, slots=True)
class Seal:
    """No more changes to this mount."""

    path: bytes


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link in an empty root."""

    path: bytes
    target: bytes


@dataclass(frozen=True, slots=True)
class Devices:
    """The harmless devices, terminals of its own and shared memory of its own."""

    path: bytes = b"/dev"


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of the new namespace, and no others."""

    path: bytes = b"/proc"


Step = Bind | Empty | Directory | EmptyFile | MountPoint | Seal | Link | Devices | Processes


def mount_arguments(steps: Iterable[Step]) -> list[bytes]:
    """The steps as bwrap reads them, in order."""
    out: list[bytes] = []
    for step in steps:
        match step:
            case Bind(path, 0, writable):
                out += [b"--bind" if writable else b"--ro-bind", path, path]
            case Bind(path, number, writable):
                out += [b"--bind-fd" if writable else b"--ro-bind-fd", b"%d" % number, path]
            case Empty(path, mode, sealed, writable):
                out += [b"--perms", b"%04o" % mode, b"--tmpfs", path]
                if sealed and not writable:
                    out += [b"--remount-ro", path]
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


def namespace_arguments(*, network: bool) -> list[bytes]:
    """What is cut off besides files."""
    out = [
        b"--unshare-user",  # named, because bwrap leaves it out for root
        b"--unshare-pid",
        b"--unshare-ipc",
        b"--unshare-uts",
        b"--unshare-cgroup-try",
        b"--die-with-parent",
        b"--new-session",
        b"--cap-drop",
        b"ALL",
    ]
    return out if network else [*out, b"--unshare-net"]


def environment_arguments(env: Mapping[bytes, bytes]) -> list[bytes]:
    """The command's environment and nothing else."""
    out = [b"--clearenv"]
    for name, value in env.items():
        out += [b"--setenv", name, value]
    return out
