"""A command and a plan make the bwrap command that runs it sandboxed.

bwrap is started with an environment of its own, in the root directory, by an absolute path; what
the command has of its own is in the arguments it reads from a descriptor.
"""

from __future__ import annotations

import _socket  # socket itself takes a while to import
import os

from handrail.keeper import seccomp_spawn
from handrail.sandbox import private_tmp
from handrail.sandbox.bwrap.arguments import (
    APART_FD,
    ARGS_FD,
    BEFORE_FD,
    INFO_FD,
    MOST_ARGUMENTS,
    READY_FD,
    READY_FILE,
    SECCOMP_FD,
    SYNC_FD,
    environment_arguments,
    namespace_arguments,
)
from handrail.sandbox.bwrap.instance import RunningSandbox
from handrail.sandbox.bwrap.instances import Instances, memory
from handrail.sandbox.plan.plan import Plan
from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.probe import Bubblewrap, receives_mounts
from handrail.sandbox.profile import Access
from handrail.sandbox.sandboxed_command import BUBBLEWRAP, SandboxedCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.sandboxed_command import AnyCommand
    from handrail.sandbox.syscalls.denial_recorder import DenialRecorder

#: All that bwrap itself gets to see.
_ENV = {b"PATH": b"/usr/bin:/bin"}
_SETSID = (b"/usr/bin/setsid", b"/bin/setsid")
#: What ``spreads`` has found.
_spreading: list[bool] = []


def wrap(
    command: AnyCommand,
    plan: Plan,
    bwrap: Bubblewrap,
    upkeep: Instances,
    watcher: DenialRecorder | None = None,
    *,
    lasting: bool = False,
) -> SandboxedCommand:
    """The bwrap command that runs a command under a plan.

    ``lasting``: it outlives the program that starts it.  With a ``watcher`` everything it tries to
    change is announced.  Raises Refused, or Stale when the plan has to be made anew.
    """
    argv, env, tty = command.argv, command.env, command.tty
    if plan.shown:
        env = private_tmp.environment(env, writable_roots(plan))
    unix_sockets = plan.profile.sockets and bwrap.connects
    arguments = [
        *namespace_arguments(network=plan.profile.network, lasting=lasting),
        *plan.arguments,
        b"--file",
        b"%d" % READY_FD,
        READY_FILE,
        *environment_arguments(env),
        b"--chdir",
        command.cwd,
        b"--seccomp",
        b"%d" % SECCOMP_FD,
        b"--info-fd",
        b"%d" % INFO_FD,
    ]
    if len(arguments) > MOST_ARGUMENTS:
        raise Refused(
            f"mounts and environment make {len(arguments)} arguments and bubblewrap takes"
            f" {MOST_ARGUMENTS}; set fewer variables"
        )
    arg0 = command.arg0
    if arg0 is not None and arg0 != argv[0]:
        if bwrap.argv0:
            arguments += [b"--argv0", arg0]
        else:
            # -p: whatever BASH_ENV names is not read.
            argv = (b"/bin/bash", b"-p", b"-c", b'exec -a "$0" -- "$@"', arg0, *argv)
    if tty:
        # The terminal becomes the command's own, in a session of its own.
        argv = (_setsid(), b"-c", *argv)
    lease = plan.registry.acquire(plan.masks) if plan.masks else None
    closing: list[int] = []
    passed = list(plan.passed)
    try:
        if lease is not None:
            arguments += [b"--sync-fd", b"%d" % SYNC_FD]
            passed.append((SYNC_FD, lease.fd))
        closing.append(upkeep.filter("refuse", unix_sockets))
        passed.append((SECCOMP_FD, closing[-1]))
        if unix_sockets or watcher is not None:
            closing.append(upkeep.filter("announce", watcher is not None))
            passed.append((seccomp_spawn.PROGRAM, closing[-1]))
        closing.append(memory(b"\0".join(arguments) + b"\0"))
        passed.append((ARGS_FD, closing[-1]))
        program: tuple[bytes, ...] = (os.fsencode(bwrap.path),)
        if plan.beforehand:
            from handrail.sandbox.bwrap import premount  # few have that many

            masks = lease.made if lease is not None and plan.masks_beforehand else {}
            places = ((premount.READ, *made, mask.path) for mask, made in masks.items())
            closing.append(memory(plan.beforehand + premount.request(places)))
            passed.append((BEFORE_FD, closing[-1]))
            program = (*premount.words(BEFORE_FD, lasting=lasting), *program)
        elif bwrap.apart and spreads():
            closing.append(upkeep.filter("apart", True))
            passed.append((APART_FD, closing[-1]))
            program = (b"/proc/self/fd/%d" % APART_FD, *program)
        with upkeep.lock:
            info, ready = _lines(closing, passed)
            # Without sockets: the file helper, or a command that is as harmless.
            running = RunningSandbox(
                info,
                tuple(closing),
                lease,
                tty,
                ready,
                watcher,
                upkeep,
                trusted=not plan.profile.sockets,
            )
    except BaseException:
        for fd in closing:
            os.close(fd)
        if lease is not None:
            lease.release()
        raise
    words = (*program, b"--args", b"%d" % ARGS_FD, b"--", *argv)
    return SandboxedCommand(words, b"/", _ENV, tuple(passed), BUBBLEWRAP, running)


def writable_roots(plan: Plan) -> list[bytes]:
    """The directories of the host in which a command may write."""
    return [
        path
        for path, access in plan.rules.items()
        if access is Access.WRITE and plan.shown.host_path(path) == path
    ]


def _lines(closing: list[int], passed: list[tuple[int, int]]) -> tuple[int, int]:
    """Where bwrap tells of its first process, and where it is seen that the sandbox stands."""
    ours, theirs = _socket.socketpair()
    closing.append(theirs.detach())
    passed.append((READY_FD, closing[-1]))
    ours.send(b"\n")
    ours.shutdown(_socket.SHUT_WR)
    info, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    closing.append(said)
    passed.append((INFO_FD, said))
    return info, ours.detach()


def _setsid() -> bytes:
    for place in _SETSID:
        if os.path.exists(place):
            return place
    return b"setsid"


def spreads() -> bool:
    """Whether later mounts of this machine would show up inside; looked at once."""
    if not _spreading:
        _spreading.append(receives_mounts())
    return _spreading[0]
