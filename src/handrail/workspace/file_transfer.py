"""Copies between the files of the caller and a workspace: what is named, and where it goes.

How a tree is copied is in ``executor/trees/copy_between_machines.py``.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence

from handrail import glob_pattern
from handrail.errors import FilesError, HandrailError, UsageError
from handrail.executor.base import Executor, SpawnRequest
from handrail.executor.local_files import LocalFiles
from handrail.executor.trees.by_calls import Command
from handrail.executor.trees.copy_between_machines import (
    Copied,
    CopyProgress,
    NotCopied,
    Side,
    copy_tree,
)
from handrail.sandbox.profile import Intent
from handrail.workspace.arguments import AnyPath, Environment, to_path


def local_path(path: AnyPath) -> str:
    """An absolute path on the caller's machine."""
    text = to_path(path)
    if not text or "\0" in text:
        raise FilesError(f"{path!r} is no path", kind="invalid_input", path=text)
    return os.path.abspath(os.path.expanduser(text))


def patterns(exclude: str | Sequence[str]) -> tuple[str, ...]:
    """The patterns as a tuple; one alone is fine."""
    found = (exclude,) if isinstance(exclude, str) else exclude
    if not isinstance(found, Sequence) or not all(isinstance(one, str) for one in found):
        raise UsageError("exclude= takes patterns as text, such as '.git' or '**/*.pyc'")
    return tuple(found)


def matcher(pattern: str) -> re.Pattern[str]:
    """The pattern, translated; raises UsageError."""
    if not isinstance(pattern, str):
        raise UsageError(f"a pattern is text, such as '**/*.py', not {pattern!r}")
    try:
        return glob_pattern.translate(pattern)
    except ValueError as error:
        raise UsageError(str(error)) from None


async def transfer(
    here: str,
    there: Side,
    *,
    upload: bool,
    exclude: Sequence[str] = (),
    skip_unchanged: bool = False,
    progress: CopyProgress | None = None,
) -> Copied:
    """Copy from a path of the caller's machine, or to it and never outside of it.

    Raises FilesError, NotCopied and what a connection does.
    """
    files = LocalFiles()
    near = Side(files, here)
    source, target = (near, there) if upload else (there, near)
    try:
        copied, failures = await copy_tree(
            source, target, exclude=exclude, skip_unchanged=skip_unchanged, progress=progress
        )
    finally:
        await files.close()
    return _settled(copied, failures)


def _settled(copied: Copied, failures: list[FilesError]) -> Copied:
    if not failures:
        return copied
    first = failures[0]
    if copied == Copied() and len(failures) == 1:
        raise first
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    raise NotCopied(
        f"{first}{more}; everything else was copied",
        kind=first.kind,
        path=first.path,
        failures=failures,
        copied=copied,
    )


def command_runner(executor: Executor, tag: str, sandbox: Intent | None) -> Command:
    """Runs small commands on a machine whose server has no calls about trees."""

    async def run(argv: tuple[str, ...]) -> bytes | None:
        request = SpawnRequest(
            process_id=f"{tag}-copy-{secrets.token_hex(4)}",
            argv=argv,
            cwd="/",
            env={},
            env_policy=Environment().policy,
            pipe_stdin=False,
            sandbox=sandbox,
        )
        try:
            session = await executor.spawn(request)
            out = b"".join([event.data async for event in session.subscribe_output()])
            info = await session.wait()
        except HandrailError:
            return None
        return out if info.code == 0 else None

    return run
