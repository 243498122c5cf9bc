"""Running something in a sandbox without a server, for tests of the sandbox itself."""

from __future__ import annotations

import fcntl
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from handrail.keeper import fork
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox.bwrap.command import wrap
from handrail.sandbox.bwrap.instances import Instances
from handrail.sandbox.denial import Denial
from handrail.sandbox.plan.placeholders import PlaceholderRegistry
from handrail.sandbox.plan.plan import Planner
from handrail.sandbox.probe import bubblewrap
from handrail.sandbox.profile import Profile
from handrail.sandbox.sandboxed_command import Command, SandboxedCommand
from handrail.sandbox.syscalls.denial_recorder import watch_plan

ENV = {b"PATH": b"/usr/bin:/bin", b"LANG": b"C.UTF-8"}


class Held:
    """A planner with a registry of its own."""

    def __init__(self, directory: str) -> None:
        self.registry = PlaceholderRegistry(directory)
        self.bwrap = bubblewrap()
        self.planner = Planner(self.registry, fresh_proc=self.bwrap.fresh_proc)
        self.upkeep = Instances()
        self.denials: list[Denial] = []

    def wrap(
        self, profile: Profile, argv: list[str], cwd: bytes = b"/", *, watch: bool = False
    ) -> SandboxedCommand:
        words = tuple(map(os.fsencode, argv))
        plan = self.planner.plan(profile)
        watcher = watch_plan(plan) if watch else None
        return wrap(Command(words, cwd, ENV), plan, self.bwrap, self.upkeep, watcher)

    def run(
        self, profile: Profile, argv: list[str], cwd: bytes = b"/", *, watch: bool = False
    ) -> tuple[int, bytes]:
        """Exit code and all that was said; ``denials`` has what is known to have been refused."""
        held = self.wrap(profile, argv, cwd, watch=watch)
        with tempfile.TemporaryFile() as output:
            pid = spawn(held, output.fileno())
            held.running.sent()
            _, status = os.waitpid(pid, 0)
            held.running.wait()
            self.denials = held.running.denials
            return os.waitstatus_to_exitcode(status), os.pread(output.fileno(), 1 << 20, 0)

    def close(self) -> None:
        self.upkeep.close(0)
        self.planner.close()
        self.registry.close()


def spawn(held: SandboxedCommand, output: int) -> int:
    """Start it with somebody who answers its calls; the pid."""
    passed = dict(held.passed)
    code = passed.pop(seccomp_spawn.PROGRAM, -1)
    copies = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 400) for number, fd in passed.items()}
    actions: list[tuple[int, ...] | tuple[int, int, bytes, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, b"/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
        *((os.POSIX_SPAWN_DUP2, fd, number) for number, fd in copies.items()),
    ]
    before = fork.Before(code=b"" if code < 0 else os.pread(code, os.fstat(code).st_size, 0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer interpreters warn of a fork beside threads
            pid, listener = fork.start(held.argv[0], held.argv, held.env, actions, (), before)
    finally:
        for fd in copies.values():
            os.close(fd)
    if listener >= 0:
        held.running.attend_alone(listener)
    return pid


@contextmanager
def holding() -> Iterator[Held]:
    with tempfile.TemporaryDirectory() as directory:
        held = Held(directory)
        try:
            yield held
        finally:
            held.close()
