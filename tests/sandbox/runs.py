"""Running something in a sandbox without a server, for tests of the sandbox itself."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from handrail.sandbox.masks import Registry
from handrail.sandbox.plan import Planner
from handrail.sandbox.probe import bubblewrap
from handrail.sandbox.profile import Profile
from handrail.sandbox.wrap import Wrapped, wrap_command

ENV = {b"PATH": b"/usr/bin:/bin", b"LANG": b"C.UTF-8"}


class Held:
    """A planner with a registry of its own."""

    def __init__(self, directory: str) -> None:
        self.registry = Registry(directory)
        self.bwrap = bubblewrap()
        self.planner = Planner(self.registry, fresh_proc=self.bwrap.fresh_proc)

    def wrap(self, profile: Profile, argv: list[str], cwd: bytes = b"/") -> Wrapped:
        words = tuple(map(os.fsencode, argv))
        plan = self.planner.plan(profile)
        return wrap_command(words, cwd, ENV, plan, self.bwrap, self.registry)

    def run(self, profile: Profile, argv: list[str], cwd: bytes = b"/") -> tuple[int, bytes]:
        """Exit code and all that was said."""
        held = self.wrap(profile, argv, cwd)
        with tempfile.TemporaryFile() as output:
            pid = spawn(held, output.fileno())
            held.inside.sent()
            _, status = os.waitpid(pid, 0)
            held.inside.wait()
            return os.waitstatus_to_exitcode(status), os.pread(output.fileno(), 1 << 20, 0)

    def close(self) -> None:
        self.planner.close()
        self.registry.close()


def spawn(held: Wrapped, output: int) -> int:
    copies = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 400) for number, fd in held.passed}
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
        *((os.POSIX_SPAWN_DUP2, fd, number) for number, fd in copies.items()),
    ]
    try:
        return os.posix_spawn(held.argv[0], held.argv, held.env, file_actions=actions, setsid=True)
    finally:
        for fd in copies.values():
            os.close(fd)


@contextmanager
def holding() -> Iterator[Held]:
    with tempfile.TemporaryDirectory() as directory:
        held = Held(directory)
        try:
            yield held
        finally:
            held.close()
