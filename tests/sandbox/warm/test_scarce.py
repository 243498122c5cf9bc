"""Sandboxes that are copies where the machine gives less than usual: pipes, descriptors."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.errors import ExecutorSpawnFailed
from handrail.sandbox.profile import PROTECTED_NAMES
from tests.sandbox.warm.conftest import Warm, copied
from tests.support.eventually import eventually_so

PIPE_BYTES = 1 << 20
PAGE = 4096
WORDS = "printf $WORD | wc -c; printf $WORD | tail -c 3; echo $LAST"


@contextlib.contextmanager
def many_pipes() -> Iterator[None]:
    """So many that a further one of this user has two pages, without privileges."""
    most = int(Path("/proc/sys/fs/pipe-user-pages-soft").read_text())
    held: list[int] = []
    try:
        for _ in range(most // (PIPE_BYTES // PAGE) + 4):
            held += os.pipe()
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(held[-1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        yield
    finally:
        for fd in held:
            os.close(fd)


@pytest.mark.parametrize("missing", [False, True])
async def test_a_user_with_many_pipes(forced: Warm, folder: Path, missing: bool) -> None:
    """The command comes in several pieces then, and is whole nevertheless."""
    for name in () if missing else PROTECTED_NAMES:
        (folder / name.decode()).mkdir()
    word = "w" * 20_000 + "end"
    async with forced(folder, env={"WORD": word, "LAST": "last"}) as warmed:
        for _ in range(2):
            with many_pipes():
                assert await copied(warmed, WORDS) == f"{len(word)}\nendlast\n"


@pytest.mark.parametrize("spare", range(1, 40, 3))
async def test_a_program_with_few_descriptors_left(forced: Warm, folder: Path, spare: int) -> None:
    """The command runs, or is refused; neither a descriptor nor a name is left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with forced(folder) as warmed:
        await copied(warmed, "true")
        async with warmed.resting():
            while warmed.standing:
                await warmed.ws.run("true")
            before = len(os.listdir("/proc/self/fd"))
            held = [os.open("/dev/null", os.O_RDONLY)]
            while held[-1] <= max(map(int, os.listdir("/proc/self/fd")[:-1])) - 1:
                held.append(os.open("/dev/null", os.O_RDONLY))
            resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1 + spare, hard))
            try:
                with contextlib.suppress(ExecutorSpawnFailed, OSError):
                    result = await warmed.ws.run("touch .git/x; echo fine")
                    assert (result.stdout, "denied" in result.stderr) == ("fine\n", True)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for fd in held:
                    os.close(fd)
            # A template may have been given up.
            await eventually_so(lambda: len(os.listdir("/proc/self/fd")) <= before, "they close")
        await eventually_so(lambda: os.listdir(folder) == [], "no name is left")


async def test_a_program_with_many_files(forced: Warm, folder: Path) -> None:
    """Descriptors beyond 1023, which ``select`` does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        async with forced(folder) as warmed:
            assert await copied(warmed, "sleep 1000 & echo fine") == "fine\n"
            await warmed.wait(2)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.listdir(folder) == []
