"""``handrail cp``: copy files to and from another machine, with progress when it takes long."""

from __future__ import annotations

import argparse
import os
import posixpath
import sys
import time
from typing import TYPE_CHECKING

from handrail.cli import error_output, options
from handrail.cli.stdio import printable, say
from handrail.errors import FilesError, HandrailError, UsageError

if TYPE_CHECKING:
    from handrail.executor.trees.copy_between_machines import Copied
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.files import AsyncFiles

#: Copies that are done sooner show no progress.
_PATIENCE_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Copy files to or from the machine of --at. A path that begins with : is on"
        " that machine, relative to its server's directory. Files that cannot be copied are"
        " reported and the others are copied; modes, times and links are kept, and no link below"
        " a directory is followed. Exit codes: 1 if a file was not copied."
    )
    options.add_place(parser)
    parser.add_argument("-r", "--recursive", action="store_true", help="copy directories")
    options.add_json(parser)
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="files to copy")
    parser.add_argument("destination", metavar="DESTINATION", help="where to copy them")


def run(args: argparse.Namespace) -> int:
    """Copy; returns 1 when some files could not be copied and all others were."""
    far = [path for path in (*args.sources, args.destination) if path.startswith(":")]
    if not far:
        args.parser.error(
            "one of the paths is on the other machine and begins with :, as in"
            " `cp --at ssh://box a :b`"
        )
    if args.at is None:
        args.parser.error("--at says on which machine the paths with : are")
    return options.to_end(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from handrail.workspace.asynchronous import AsyncWorkspace

    # The user copies, not a command: no sandbox applies.
    async with (
        AsyncWorkspace(".", sandbox="off") as here,
        AsyncWorkspace(".", at=args.at, token=options.token(args, args.at), sandbox="off") as there,
    ):
        copying = _Copying(here, there, recursive=args.recursive, quiet=args.json)
        try:
            await copying.check_room(args.sources, args.destination)
            for source in args.sources:
                await copying.copy(source, args.destination)
        finally:
            copying.clear()
    done = {"files": copying.files, "bytes": copying.bytes}
    if copying.failures:
        return _tell(copying.failures, done, as_json=args.json)
    if args.json:
        options.print_json(done)
    return 0


def _tell(failures: list[FilesError], done: dict[str, int], *, as_json: bool) -> int:
    """Print each failure in a line, or all of them with what was copied in one object."""
    from handrail.filesystem.errors import named as with_path

    named = [with_path(one) for one in failures]
    if as_json:
        return error_output.tell(NotCopied(named, done), 1)
    for one in named:
        say(f"handrail: {printable(str(one))}")
    return 1


class NotCopied(HandrailError):
    """Files that were not copied: ``failed`` has them, ``files`` and ``bytes`` what was copied."""

    def __init__(self, failures: list[FilesError], done: dict[str, int]) -> None:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        super().__init__(f"{failures[0]}{more}")
        self.failed = [
            {"path": one.path, "kind": one.kind, "message": str(one)} for one in failures
        ]
        self.files, self.bytes = done["files"], done["bytes"]


class _Copying:
    """One call of the command: what was copied, and its progress line."""

    def __init__(
        self, here: AsyncWorkspace, there: AsyncWorkspace, *, recursive: bool, quiet: bool
    ) -> None:
        self._here = here
        self._there = there
        self._recursive = recursive
        self._shows = not quiet and os.isatty(2)
        self._began = time.monotonic()
        self._shown = False
        self._name = ""
        self.files = 0
        self.bytes = 0
        self.failures: list[FilesError] = []

    async def check_room(self, sources: list[str], destination: str) -> None:
        """Require a directory for several sources; raises UsageError."""
        if len(sources) > 1 and not await self._is_directory(destination, missing_ok=True):
            raise UsageError(f"{destination} is no directory, so it cannot hold several files")

    async def copy(self, source: str, destination: str) -> None:
        """Copy a file or a tree; into a directory that exists, under its own name.

        What cannot be copied is noted, and the rest is copied.
        """
        from handrail.executor.trees.copy_between_machines import NotCopied as Partly

        try:
            self._count(await self._copy(source, destination))
        except Partly as error:
            self._count(error.copied)
            self.failures += error.failures
        except FilesError as error:
            self.failures.append(error)

    async def _copy(self, source: str, destination: str) -> Copied:
        name = posixpath.basename(source.removeprefix(":").rstrip("/"))
        if name and await self._is_directory(destination, missing_ok=True):
            destination = posixpath.join(destination, name) if destination != ":" else f":{name}"
        if await self._is_directory(source) and not self._recursive:
            raise UsageError(f"{source} is a directory; copy it with -r")
        self._name = source
        files = self._there.files
        # Not asked for in vain: a copy that tells its progress looks at the whole tree first.
        progress = self._progress if self._shows else None
        if not source.startswith(":"):
            return await files.upload(_absolute(source), destination[1:] or ".", progress=progress)
        if not destination.startswith(":"):
            return await files.download(
                source[1:] or ".", _absolute(destination), progress=progress
            )
        # Both are there.
        await files.copy(source[1:] or ".", destination[1:] or ".", recursive=True)
        return await _extent(files, destination[1:] or ".")

    def _count(self, copied: Copied) -> None:
        self.files += copied.files
        self.bytes += copied.bytes
        for path in copied.skipped:
            text = "a pipe, a socket or a device is not copied"
            self.failures.append(FilesError(text, kind="invalid_input", path=path))

    async def _is_directory(self, path: str, *, missing_ok: bool = False) -> bool:
        there = path.startswith(":")
        files = self._there.files if there else self._here.files
        try:
            return (await files.stat(path[1:] or "." if there else path)).is_directory
        except FilesError as error:
            if missing_ok and error.kind == "not_found":
                return False
            raise

    # --- progress ------------------------------------------------------------------------

    def _progress(self, files: int, done: int, total: int) -> None:
        if time.monotonic() - self._began < _PATIENCE_SECONDS:
            return
        share = 100 * done // total if total else 100
        text = f": {done >> 20} of {total >> 20} MiB ({share} %)"
        name = printable(self._name)
        room = os.get_terminal_size(2).columns - len(text) - 1
        if len(name) > room:  # a line that wraps cannot be cleared
            name = "…" + name[len(name) - max(room - 1, 0) :]
        print(f"\r\x1b[K{name}{text}", end="", file=sys.stderr, flush=True)
        self._shown = True

    def clear(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _absolute(path: str) -> str:
    return os.path.abspath(path)


async def _extent(files: AsyncFiles, path: str) -> Copied:
    """Count the files and bytes that a copy on one machine has made."""
    from handrail.executor.trees.copy_between_machines import Copied

    found = await files.stat(path)
    if not found.is_directory:
        return Copied(files=1, bytes=found.size)
    sizes = [one.size async for one in files.walk(path) if one.kind == "file"]
    return Copied(files=len(sizes), bytes=sum(sizes))
