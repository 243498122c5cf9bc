"""For random profiles and paths, commands, file calls, patches and what the agent reads agree."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from handrail import AsyncWorkspace, ExecutorSpawnFailed, FilesError, Profile
from handrail.executor.files import Files
from handrail.executor.patch_files import PatchFiles
from handrail.orchestrator.patches import PatchAccess
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.settings import SandboxMode, Settings
from handrail.sandbox.plan.globs import translate
from handrail.workspace.writable_paths import below_no_other

pytestmark = pytest.mark.system

DIRECTORIES = [*"ab", "r[1]", *("/".join(pair) for pair in itertools.product("ab", "cd"))]
FILES = [f"{place}/{name}" for place in DIRECTORIES for name in ("f", "x.key", "{a}.pem")]
#: Names that are missing, and whose parents are there.
MISSING = ["new", ".git", "a/.git", "a/new", "b/c/.codex", "link/new"]
#: Where a profile's entries are; the last are links of the tree.
PLACES = [".", *DIRECTORIES, *FILES, "a/new", ".git"]
PATTERNS = ["**/*.key", "*/f", "a/**", "*.{key,pem}", "**/{x,y}.*", "?/[cd]/x*", "**/c", "r\\[1]/*"]
ASKED = [*FILES, *DIRECTORIES, *MISSING, "link/f", "link/c/x.key", "out"]

#: For every path: can it be read, can it be written (a directory: can something be made in it)?
PROBE = """
import json, os, sys
def tried(work, path):
    try:
        work(path)
    except OSError:
        return False
    return True
def write(path):
    if os.path.isdir(path):
        os.mkdir(path + "/probe"); os.rmdir(path + "/probe")
    elif os.path.exists(path):
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)); os.unlink(path)
def read(path):
    if os.path.isdir(path): os.listdir(path)
    else: open(path, "rb").read()
print(json.dumps({n: [tried(read, n), tried(write, n)] for n in json.loads(sys.argv[1])}))
"""

Answers = dict[str, list[bool]]


def _openable(write: tuple[str, ...]) -> tuple[str, ...]:
    """Without those that are missing and below no other: a profile with them is an error."""
    alone = below_no_other(Profile(write=write), "/w")
    return tuple(path for path in write if path not in MISSING or f"/w/{path}" not in alone)


paths = st.lists(st.sampled_from(PLACES), max_size=3, unique=True).map(tuple)
profiles = st.builds(
    lambda write, deny, globs: Profile(write=_openable(write), deny=deny + globs, temporary=False),
    write=paths,
    deny=paths.map(lambda some: tuple(path for path in some if path != ".")),
    globs=st.lists(st.sampled_from(PATTERNS), max_size=2, unique=True).map(tuple),
)


def make_tree(base: Path) -> None:
    for place in DIRECTORIES:
        (base / place).mkdir(parents=True, exist_ok=True)
    for place in FILES:
        (base / place).write_text("content")
    (base / "link").symlink_to("a")


async def tried(call: Awaitable[object]) -> bool:
    try:
        await call
    except FilesError as error:
        if "failed to prepare" in str(error):
            raise
        return False
    return True


async def by_files(files: Any, base: Path) -> Answers:
    """``files``: of a workspace, with relative paths."""

    async def write(name: str) -> None:
        if (base / name).is_dir():
            await files.mkdir(f"{name}/probe", parents=False)
            (base / name / "probe").rmdir()  # the next call would find that a pattern matches it
        else:
            new = not (base / name).exists()
            await files.write(name, "content")
            if new:
                (base / name).unlink()

    async def read(name: str) -> None:
        if (base / name).is_dir():
            await files.list(name)
        else:
            await files.read(name)

    return {name: [await tried(read(name)), await tried(write(name))] for name in ASKED}


async def by_patches(given: Files, base: Path) -> Answers:
    files = PatchFiles(given)

    async def write(name: str) -> None:
        if (base / name).is_dir():
            await files.mkdir(f"{base}/{name}/probe")
            (base / name / "probe").rmdir()
        else:
            new = not (base / name).exists()
            await files.write(f"{base}/{name}", b"content")
            if new:
                (base / name).unlink()

    return {
        name: [await tried(files.read(f"{base}/{name}")), await tried(write(name))]
        for name in ASKED
    }


async def by_writers(files: Files, base: Path) -> set[str]:
    """What is written by the thread of a blocking caller itself."""
    written = set()
    for name in ASKED:
        new = not (base / name).exists()
        writer = await files.writer(f"{base}/{name}")
        if writer is not None:
            with contextlib.suppress(BlockingIOError, FilesError):
                await asyncio.to_thread(writer, b"content")
                written.add(name)
                if new:
                    (base / name).unlink()
    return written


async def by_the_check_of_patches(ws: AsyncWorkspace, profile: Profile, base: Path) -> Answers:
    """What an agent's patch is verified against, with the same paths hidden."""
    mode = SandboxMode(
        writable_roots=tuple(f"{base}/{path}" for path in profile.write),
        exclude_slash_tmp=True,
        exclude_tmpdir=True,
        deny_read=profile.deny,
    )
    orchestrator = Orchestrator(Settings(str(base), sandbox=mode))
    access = PatchAccess(orchestrator, await ws.executor(), local=True)
    reader = await access.reader()
    answers = {name: [await tried(reader.read(f"{base}/{name}")), True] for name in FILES}
    await access.close()
    return answers


async def compare(base: Path, profile: Profile) -> None:
    make_tree(base)
    async with AsyncWorkspace(base, sandbox=profile) as ws:
        probe = [sys.executable, "-I", "-c", PROBE, json.dumps(ASKED)]
        try:
            command: Answers = json.loads((await ws.run(probe, check=True)).stdout)
        except ExecutorSpawnFailed as refused:
            sentence = str(refused).rpartition("process sandbox: ")[2]
            if "cannot be protected" in sentence:
                return  # a placeholder is needed where a pattern hides all, and files need none
            with pytest.raises(FilesError, match=f"file sandbox: {re.escape(sentence)}"):
                await ws.files.write("new", "")
            return
        for name in MISSING:
            command[name][0] = False  # of a protected one commands see the placeholder
        assert await by_files(ws.files, base) == command
        sandboxed = await ws._location.files(profile)
        written = await by_writers(sandboxed, base)
        assert written <= {name for name in ASKED if command[name][1]}
        assert written >= {name for name in FILES if command[name][1]} - set(profile.write)
        patches = await by_patches(sandboxed, base)
        folders = {name for name in ASKED if (base / name).is_dir()}
        for name, (read, written) in patches.items():
            assert written == command[name][1], name
            assert read == (command[name][0] and name not in folders), name
        for name, (read, _) in (await by_the_check_of_patches(ws, profile, base)).items():
            assert read == command[name][0], name
        # What a pattern matches is hidden, unless an entry names it itself.
        for name in set(FILES) - set(profile.write):
            if any(_matches(pattern, name) for pattern in profile.deny):
                assert not command[name][0], name


def _matches(pattern: str, name: str) -> bool:
    return bool(set("*?[") & set(pattern) and translate(pattern).match(name))


@pytest.mark.timeout(300)  # some hundred sandboxes, on a machine that may be busy
@settings(
    max_examples=6,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # an example takes a second: no shrinking
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(profile=profiles)
@example(profile=Profile(temporary=False))
@example(profile=Profile(deny=("*.{key,pem}", "r\\[1]/*", "a/c"), write=("a",), temporary=False))
def test_commands_files_and_patches_agree(profile: Profile) -> None:
    base = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        asyncio.run(compare(base, profile))
    finally:
        shutil.rmtree(base)
