"""Templates on the driver's side: what was meant, packed once, and its digest."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
import tempfile
from dataclasses import dataclass

from handrail.fleet.errors import TemplateError
from handrail.template_archive import BadTemplate, pack
from handrail.workspace.arguments import AnyPath, to_path

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Archive:
    """A packed template in an open file; ``descriptor`` None: only its digest is known."""

    digest: str
    descriptor: int | None = None
    size: int = 0

    def read(self, length: int, offset: int) -> bytes:
        """A part of it; only for one that has a file."""
        assert self.descriptor is not None  # noqa: S101 (asked before)
        return os.pread(self.descriptor, length, offset)


class Templates:
    """The archives that this driver has made; their files have no name, and go with it."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._packed: dict[str, tuple[object, Archive]] = {}
        self._known: dict[str, Archive] = {}
        self._packing = asyncio.Lock()

    async def find(self, template: AnyPath) -> Archive:
        """The archive of a directory, a tarball or ``sha256:HEX``; raises TemplateError."""
        text = to_path(template)
        if text.startswith("sha256:"):
            digest = text.removeprefix("sha256:")
            if not _DIGEST.fullmatch(digest):
                raise TemplateError(f"{text} is no digest of 64 hex digits", "missing")
            return self._known.get(digest) or Archive(digest)
        async with self._packing:
            archive = await asyncio.to_thread(self._find, text)
            self._known[archive.digest] = archive
            return archive

    def known(self, digest: str) -> Archive:
        """The archive with this digest, if this driver has packed it."""
        return self._known.get(digest) or Archive(digest)

    def _find(self, text: str) -> Archive:
        path = os.path.realpath(os.path.expanduser(text))
        try:
            status = os.stat(os.path.expanduser(text))
            if stat.S_ISDIR(status.st_mode):
                seen: object = _seen(path)
            elif stat.S_ISREG(status.st_mode):
                seen = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            else:
                raise TemplateError(f"{text} is neither a directory nor a tarball", "unsafe")
        except OSError as error:
            raise TemplateError(f"no template {text}: {error.strerror}", "missing") from None
        before = self._packed.get(path)
        if before is not None and before[0] == seen:
            return before[1]
        archive = self._hashed(text) if stat.S_ISREG(status.st_mode) else self._pack(path)
        self._packed[path] = (seen, archive)
        return archive

    def _pack(self, path: str) -> Archive:
        try:
            with tempfile.TemporaryFile(prefix="handrail-template-") as file:
                digest = pack(path, file)
                file.flush()
                return self._kept(digest, file.fileno())
        except BadTemplate as error:
            raise TemplateError(str(error), error.kind) from None
        except OSError as error:
            kind = "no_space" if error.errno == 28 else "missing"
            raise TemplateError(f"{path} cannot be packed: {error.strerror}", kind) from None

    def _hashed(self, text: str) -> Archive:
        try:
            with open(os.path.expanduser(text), "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                return self._kept(digest, file.fileno())
        except OSError as error:
            raise TemplateError(f"no template {text}: {error.strerror}", "missing") from None

    def _kept(self, digest: str, descriptor: int) -> Archive:
        own = os.dup(descriptor)
        self._descriptors.append(own)
        return Archive(digest, own, os.fstat(own).st_size)

    def close(self) -> None:
        """Remove the archives."""
        while self._descriptors:
            os.close(self._descriptors.pop())
        self._packed.clear()
        self._known.clear()


def _seen(path: str) -> int:
    """A fingerprint that changes with anything below a directory, without reading the files.

    For this process alone.  It is asked for each workspace, so it is the hash of the interpreter:
    with a digest, looking at a template of 1,000 files took longer than a warm workspace.
    """
    found = 0
    waiting = [path]
    while waiting:
        path = waiting.pop()
        # By descriptor: names are then looked up in their directory, not from the root.
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    name, status = entry.name, entry.stat(follow_symlinks=False)
                    mode, times = status.st_mode, (status.st_mtime_ns, status.st_ctime_ns)
                    # In any order: a directory is not always listed in the same.
                    found ^= hash((path, name, mode, status.st_size, times, status.st_ino))
                    if stat.S_ISDIR(mode):
                        waiting.append(f"{path}/{name}")
        finally:
            os.close(directory)
    return found
