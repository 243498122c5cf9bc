"""A command and a plan make the bwrap command that runs it sandboxed.

bwrap is started with an environment of its own, in the root directory, by an absolute path; what
the command has of its own is in the arguments it reads from a descriptor.
"""

from __future__ import annotations

import _socket  # socket itself takes a while to import
import os
import stat

from handrail import memory_file
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox import private_tmp
from handrail.sandbox.bwrap.arguments import (
    APART_FD,
    ARGS_FD,
    BEFORE_FD,
    FIRST_FD,
    INFO_FD,
    JOIN_FD,
    MOST_ARGUMENTS,
    MOST_WORDS,
    NETWORK_FD,
    READY_FD,
    SECCOMP_FD,
    STUB_FD,
    SYNC_FD,
    EmptyFile,
    resolver_text,
    sandbox_arguments,
    template_arguments,
)
from handrail.sandbox.bwrap.instance import RunningSandbox, others_at_work
from handrail.sandbox.bwrap.instances import Instances
from handrail.sandbox.plan.plan import Plan
from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.probe import Bubblewrap, receives_mounts
from handrail.sandbox.profile import Access
from handrail.sandbox.sandboxed_command import BUBBLEWRAP, SandboxedCommand
from handrail.start_errors import SandboxUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from handrail.sandbox.loopback import Joining
    from handrail.sandbox.sandboxed_command import AnyCommand
    from handrail.sandbox.syscalls.denial_recorder import DenialRecorder

#: All that bwrap itself gets to see.
_ENV = {b"PATH": b"/usr/bin:/bin"}
_SETSID = (b"/usr/bin/setsid", b"/bin/setsid")
_RESOLV_CONF = b"/etc/resolv.conf"


class PassedFds:
    """The fds of a command by their numbers in it, and which are closed once it has its copies."""

    def __init__(self, passed: Iterable[tuple[int, int]] = ()) -> None:
        self.passed = list(passed)
        self.closing: list[int] = []

    def give(self, number: int, fd: int) -> None:
        """Pass an fd that is closed then."""
        self.closing.append(fd)
        self.passed.append((number, fd))

    def close(self) -> None:
        """Close those: no command is started."""
        for fd in self.closing:
            os.close(fd)


def wrap(
    command: AnyCommand,
    plan: Plan,
    bwrap: Bubblewrap,
    upkeep: Instances,
    watcher: DenialRecorder | None = None,
    *,
    lasting: bool = False,
    joining: Joining | None = None,
    stub: int = -1,
    guarded: bool = False,
) -> SandboxedCommand:
    """The bwrap command that runs a command under a plan.

    ``lasting``: it outlives the program that starts it.  ``guarded``: the command does not start
    before ``RunningSandbox.let_start``.  With a ``watcher`` everything it tries to
    change is announced.  ``joining``: instead of a network of its own it has one that is there.
    ``stub``: the program that waits in it, if it is to be a template (``warm/template.py``);
    nothing of ``command`` counts then, and missing names are not covered.  Raises Refused, or
    Stale when the plan has to be made anew.
    """
    argv, env, tty = command.argv, environment(command, plan), command.tty
    cwd, arg0 = command.cwd, command.arg0
    if stub >= 0:
        argv, env, cwd, arg0 = (b"/proc/self/fd/%d" % STUB_FD,), {}, b"/", None
    unix_sockets = plan.profile.sockets and bwrap.connects
    managed = plan.profile.managed
    if managed and not unix_sockets:
        raise SandboxUnavailable(
            "this machine cannot report syscalls, which a managed network needs; run `handrail"
            " doctor` to see why"
        )
    resolver = _resolver_file(plan) if managed else None
    if joining is not None and plan.profile.network and not managed:
        raise ValueError("a command with the network of the host joins no other")
    named = None if arg0 == argv[0] else arg0
    beside = bool(plan.roots_beforehand) and _mounter(bwrap)
    arguments = sandbox_arguments(
        plan.arguments if stub < 0 else template_arguments(plan.uncovered()),
        env,
        cwd,
        network=joining is not None or (plan.profile.network and not managed),
        lasting=lasting,
        resolver=resolver,
        ready=stub < 0,
        arg0=named if bwrap.argv0 else None,
        sync=bool(plan.masks) and stub < 0,
        mounter=beside,
    )
    if len(arguments) > MOST_ARGUMENTS:
        raise Refused(
            f"mounts and environment make {len(arguments)} arguments and bubblewrap takes"
            f" {MOST_ARGUMENTS}; set fewer variables"
        )
    if named is not None and not bwrap.argv0:
        # -p: whatever BASH_ENV names is not read.
        argv = (b"/bin/bash", b"-p", b"-c", b'exec -a "$0" -- "$@"', named, *argv)
    if tty and stub < 0:
        # The terminal becomes the command's own, in a session of its own.
        argv = (_setsid(), b"-c", *argv)
    most = MOST_WORDS - len(arguments)
    if len(argv) > most:
        raise SandboxUnavailable(
            f"the command has {len(argv)} words, and bubblewrap takes {most} of them with this"
            " profile; give the others by stdin, as to xargs, or in a file"
        )
    lease = plan.registry.acquire(plan.masks) if plan.masks and stub < 0 else None
    fds = PassedFds(plan.passed)
    if stub >= 0 and plan.masks:
        # What bwrap does not read would be the command's.
        covered = {mask.path for mask in plan.masks}
        steps = [step for step in plan.steps if isinstance(step, EmptyFile)]
        unread = {step.number for step in steps if step.path in covered}
        fds.passed = [(number, fd) for number, fd in plan.passed if number not in unread]
    try:
        if lease is not None:
            fds.passed.append((SYNC_FD, lease.fd))
        if resolver is not None:
            if joining is None:
                fd = upkeep.filter("resolver", False)
            else:
                fd = memory_file.of("handrail-sandbox", resolver_text(joining.address))
            fds.give(int(resolver[0]), fd)
        fds.give(SECCOMP_FD, upkeep.filter("refuse", unix_sockets))
        if (unix_sockets or watcher is not None) and stub < 0:
            fds.give(seccomp_spawn.PROGRAM, upkeep.filter("announce", watcher is not None))
        if stub >= 0:
            fds.passed.append((STUB_FD, stub))
        text = b"\0".join(arguments) + b"\0"
        fds.give(ARGS_FD, memory_file.of("handrail-sandbox", text))
        program: tuple[bytes, ...] = (os.fsencode(bwrap.path),)
        if plan.beforehand:
            from handrail.sandbox.bwrap import mounter, premount  # few have that many

            masks = lease.made if lease is not None and plan.masks_beforehand else {}
            places = ((premount.READ, *made, mask.path) for mask, made in masks.items())
            if beside:
                text = mounter.program(plan, places, lasting=lasting)
                before: tuple[bytes, ...] = (b"/proc/self/fd/%d" % BEFORE_FD,)
            else:
                text = plan.beforehand + premount.request(places)
                before = premount.words(BEFORE_FD, lasting=lasting)
            fds.give(BEFORE_FD, memory_file.of("handrail-sandbox", text))
            program = (*before, *program)
        elif bwrap.apart and _needs_own_mounts(plan) and joining is None:
            fds.give(APART_FD, upkeep.filter("apart", True))
            program = (b"/proc/self/fd/%d" % APART_FD, *program)
        if joining is not None:
            apart = bwrap.apart and not plan.beforehand and _needs_own_mounts(plan)
            program = (*joined(joining, upkeep, fds, apart=apart), *program)
        with upkeep.lock:
            if beside:
                for number, fd in mounter.lines():
                    fds.give(number, fd)
            info, ready = lines(fds, held=guarded)
            # Without sockets: the file helper, or a command that is as harmless.
            running = RunningSandbox(
                info,
                tuple(fds.closing),
                lease,
                tty,
                ready,
                watcher,
                upkeep,
                trusted=not plan.profile.sockets or stub >= 0,
            )
    except BaseException:
        fds.close()
        if lease is not None:
            lease.release()
        raise
    words = (*program, b"--args", b"%d" % ARGS_FD, b"--", *argv)
    made = SandboxedCommand(words, b"/", _ENV, tuple(fds.passed), BUBBLEWRAP, running)
    return made if joining is None else made._replace(joining=joining)


def _mounter(bwrap: Bubblewrap) -> bool:
    """Whether mounts can be made beside bwrap, which is much faster where they are many."""
    from handrail.sandbox.bwrap import mounter  # few have that many

    return mounter.works(os.fsencode(bwrap.path))


def joined(
    joining: Joining, upkeep: Instances, fds: PassedFds, *, apart: bool
) -> tuple[bytes, ...]:
    """The words before bwrap's that have it run in a network which is there already."""
    fds.give(NETWORK_FD, joining.network.copied())  # its owner may close its own meanwhile
    if not seccomp_spawn.startable():
        from handrail.sandbox import loopback  # machines for which we have no stubs

        how = b"user" if joining.user else b"alone"
        return (*loopback.program_words(), b"join", b"%d" % NETWORK_FD, how)
    fds.give(JOIN_FD, upkeep.filter("join user" if joining.user else "join", apart))
    return (b"/proc/self/fd/%d" % JOIN_FD,)


def environment(command: AnyCommand, plan: Plan) -> Mapping[bytes, bytes]:
    """The variables of a command under a plan."""
    if plan.shown:
        return private_tmp.environment(command.env, writable_roots(plan))
    return command.env


def _resolver_file(plan: Plan) -> tuple[bytes, bytes] | None:
    """Where the resolver's configuration is covered, behind the number of its descriptor.

    None where the command does not see it, for the C library then asks 127.0.0.1 as well, or where
    another command could lead bubblewrap elsewhere.
    """
    path = _RESOLV_CONF
    if not _is_plain(path):  # a link, on most machines with systemd
        path = os.path.realpath(path)
        if not os.path.isfile(path):
            return None
    access = plan.access(path)
    if access is Access.DENY or plan.shown.host_path(path) != path:
        return None
    if access is Access.WRITE and others_at_work():
        return None
    return b"%d" % (FIRST_FD + len(plan.passed)), path


def _is_plain(path: bytes) -> bool:
    """Whether a path of two names leads through no link, to a file."""
    try:
        above, here = os.lstat(os.path.dirname(path)), os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(above.st_mode) and stat.S_ISREG(here.st_mode)


def writable_roots(plan: Plan) -> list[bytes]:
    """The directories of the host in which a command may write."""
    return [
        path
        for path, access in plan.rules.items()
        if access is Access.WRITE and plan.shown.host_path(path) == path
    ]


def seen(*, held: bool = False) -> tuple[int, int]:
    """Two ends: ours is closed when the other is, after its byte was read, or reset before.

    ``held``: its reader waits for more, until it is let go (``RunningSandbox.let_start``).  While
    we have not taken the byte that is sent here, our end is an error for it, so that it ends with
    us.
    """
    ours, theirs = _socket.socketpair()
    ours.send(b"\n")
    if held:
        theirs.send(b"\n")
    else:
        ours.shutdown(_socket.SHUT_WR)
    return ours.detach(), theirs.detach()


def lines(fds: PassedFds, *, held: bool = False) -> tuple[int, int]:
    """Where bwrap tells of its first process, and where it is seen that the sandbox stands."""
    ready, theirs = seen(held=held)
    fds.give(READY_FD, theirs)
    try:
        info, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        os.close(ready)
        raise
    fds.give(INFO_FD, said)
    return info, ready


def _setsid() -> bytes:
    for place in _SETSID:
        if os.path.exists(place):
            return place
    return b"setsid"


def _needs_own_mounts(plan: Plan) -> bool:
    """Whether later mounts would show up inside, or the command would own the machine's devices."""
    return receives_mounts(plan.mount_table) or os.stat(os.devnull).st_uid == os.geteuid()
