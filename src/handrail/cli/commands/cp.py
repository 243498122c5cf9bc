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
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.files import AsyncFiles

#: Copies that are done sooner show no progress.
_PATIENCE_SECONDS = 0.5
#: A shell script that prints which of its arguments are executable.
_PROGRAMS = 'for f; do if [ -x "$f" ]; then printf "%s\\0" "$f"; fi; done'
#: Names per command; argv is limited in size.
_MOST_NAMES = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Copy files to or from the machine of --at. A path that begins with : is on"
        " that machine, relative to its server's directory. Files that cannot be copied are"
        " reported and the others are copied; links to directories are not followed. Exit codes:"
        " 1 if a file was not copied."
    )
    options.add_place(parser)
    parser.add_argument("-r", "--recursive", action="store_true", help="copy directories")
    options.add_json(parser)
    parser.add_argument("sources", metavar="SOURCE", nargs="+")
    parser.add_argument("destination", metavar="DESTINATION")


def run(args: argparse.Namespace) -> int:
    """Copy; returns 1 when some files could not be copied and all others were."""
    far = [path for path in (*args.sources, args.destination) if path.startswith(":")]
    if not far:
        args.parser.error("one of the paths is on the other machine and begins with :")
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
            await copying.keep_programs()
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
    named = [
        FilesError(
            str(one) if one.path in str(one) else f"{one.path}: {one}", kind=one.kind, path=one.path
        )
        for one in failures
    ]
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
        self._copied: list[tuple[str, str]] = []
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
        try:
            await self._copy(source, destination)
        except FilesError as error:
            self.failures.append(error)

    async def _copy(self, source: str, destination: str) -> None:
        name = posixpath.basename(source.removeprefix(":").rstrip("/"))
        if name and await self._is_directory(destination, missing_ok=True):
            destination = posixpath.join(destination, name) if destination != ":" else f":{name}"
        if await self._is_directory(source):
            if not self._recursive:
                raise UsageError(f"{source} is a directory; copy it with -r")
            await self._copy_tree(source, destination)
        else:
            await self._copy_file(source, destination)

    async def _copy_tree(self, source: str, destination: str) -> None:
        there, where = self._files(destination)
        await there.mkdir(where)
        here, directory = self._files(source)
        for entry in await here.list(directory):
            one = posixpath.join(source, entry.name)
            other = posixpath.join(destination, entry.name)
            try:
                if entry.is_directory:
                    await self._check_no_link(one)
                    await self._copy_tree(one, other)
                else:
                    await self._copy_file(one, other)
            except FilesError as error:
                self.failures.append(error)

    async def _check_no_link(self, path: str) -> None:
        """Refuse a link to a parent, which would be copied for ever; raises FilesError."""
        files, where = self._files(path)
        if (await files.stat(where)).is_symlink:
            raise FilesError(
                f"{path} is a link to a directory, which is not followed; copy it by itself",
                kind="invalid_input",
                path=path,
            )

    async def _copy_file(self, source: str, destination: str) -> None:
        self._name = source
        here, path = self._files(source)
        data = await here.read(path, text=False, progress=self._progress)
        there, where = self._files(destination)
        await there.write(where, data, progress=self._progress)
        self._copied.append((source, destination))
        self.files += 1
        self.bytes += len(data)

    async def _is_directory(self, path: str, *, missing_ok: bool = False) -> bool:
        files, where = self._files(path)
        try:
            return (await files.stat(where)).is_directory
        except FilesError as error:
            if missing_ok and error.kind == "not_found":
                return False
            raise

    def _side(self, path: str) -> tuple[AsyncWorkspace, str]:
        """The workspace of a path, and the path there."""
        if path.startswith(":"):
            return self._there, path[1:] or "."
        return self._here, path

    def _files(self, path: str) -> tuple[AsyncFiles, str]:
        workspace, name = self._side(path)
        return workspace.files, name

    async def keep_programs(self) -> None:
        """Make copies of executables executable; the file calls of the wire know no modes."""
        while self._copied:
            batch, self._copied = self._copied[:_MOST_NAMES], self._copied[_MOST_NAMES:]
            copies = {self._word(source): self._word(copy) for source, copy in batch}
            if self._side(batch[0][0])[0] is self._here:
                programs = [name for name in copies if os.access(name, os.X_OK)]
            else:
                told = await self._apply(["sh", "-c", _PROGRAMS, "sh"], list(copies))
                programs = [os.fsdecode(name) for name in told.split(b"\0") if name]
            marked = [copies[name] for name in programs]
            if self._side(batch[0][1])[0] is self._here:
                for name in marked:
                    mode = os.stat(name).st_mode
                    os.chmod(name, mode | (mode & 0o444) >> 2)  # x for every class that may read
            elif marked:
                await self._apply(["chmod", "+x", "--"], marked)

    async def _apply(self, command: list[str], names: list[str]) -> bytes:
        """Run a command there with names that, unlike its argv, need not be UTF-8."""
        given = b"".join(os.fsencode(name) + b"\0" for name in names)
        done = await self._there.run(["xargs", "-0", *command], input=given, text=False)
        return done.stdout

    def _word(self, path: str) -> str:
        """A name that no program takes for an option."""
        name = self._side(path)[1]
        return name if name.startswith("/") else f"./{name}"

    # --- progress ------------------------------------------------------------------------

    def _progress(self, done: int, total: int) -> None:
        if not self._shows or time.monotonic() - self._began < _PATIENCE_SECONDS:
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
