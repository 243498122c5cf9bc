"""Templates as archives: packed the same way each time, unpacked only if that is safe.

The digest of a template is the SHA-256 of its archive.  Names are sorted, owners are 0 and times
whole seconds, so the same content has the same digest wherever it is packed.

What an archive may hold: directories, regular files, symbolic links (wherever they lead: virtual
environments have some), and hard links to files of the same archive.  What could touch anything
outside, or give rights, makes it *unsafe*: absolute names and ``..``, names behind a link of the
archive, devices, pipes, set-id bits, hard links that lead out.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from typing import IO, Any

from handrail.errors import HandrailError

#: Bytes that are moved at once.
BLOCK = 1024 * 1024
#: Files between two looks at the free space.
_LOOK_EVERY = 64
#: Long names and attributes of members are read into memory: bytes of one header, and of all that
#: speak of the whole archive.
_MOST_HEADER = 1024 * 1024
#: Zeros behind the last member: writers fill up a record.
_MOST_PADDING = 1024 * 1024
#: Members of an archive, whose names are known until its end.
_MOST_MEMBERS = 2_000_000
_GZIP = b"\x1f\x8b"
_GLOBAL = (tarfile.XGLTYPE,)
_HEADERS = (
    *_GLOBAL,
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class BadTemplate(HandrailError):
    """A template cannot be used; ``kind`` is missing, corrupt, unsafe or no_space."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# --- packing ----------------------------------------------------------------------------------


def pack(directory: str, target: IO[bytes]) -> str:
    """Write a directory's archive; returns its digest.  Raises BadTemplate and OSError."""
    hashing = _Hashing(target)
    with tarfile.open(
        fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT, bufsize=BLOCK
    ) as archive:  # type: ignore[call-overload]
        for name, path in _entries(directory):
            _pack_one(archive, name, path)
    return hashing.digest.hexdigest()


def _entries(directory: str) -> Iterator[tuple[str, str]]:
    """All names below a directory with their paths, each before what is in it, sorted."""
    waiting = [("", directory)]
    while waiting:
        name, path = waiting.pop()
        if name:
            yield name, path
        if not name or stat.S_ISDIR(os.lstat(path).st_mode):
            found = sorted(os.listdir(path), reverse=True)
            waiting += [
                (f"{name}/{one}" if name else one, os.path.join(path, one)) for one in found
            ]


def _pack_one(archive: tarfile.TarFile, name: str, path: str) -> None:
    status = os.lstat(path)
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime = int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
    elif not stat.S_ISREG(status.st_mode):
        raise BadTemplate("unsafe", f"{path} is neither a file, a directory nor a symbolic link")
    if info.mode & 0o6000:
        raise BadTemplate("unsafe", f"{path} has a set-id bit; remove it (chmod ug-s)")
    if info.type != tarfile.REGTYPE:
        archive.addfile(info)
        return
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with open(os.open(path, flags), "rb") as file:
        info.size = os.fstat(file.fileno()).st_size
        archive.addfile(info, file)


class _Hashing:
    """A stream that counts into a digest what passes through it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._ahead = b""
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._stream.write(data)

    def peek(self, size: int) -> bytes:
        """The next bytes, which are read again."""
        self._ahead = self.read(size)
        return self._ahead

    def read(self, size: int) -> bytes:
        ahead, self._ahead = self._ahead[:size], self._ahead[size:]
        data = self._stream.read(size - len(ahead))
        self.digest.update(data)
        return ahead + data


# --- unpacking --------------------------------------------------------------------------------


def unpack(
    archive: IO[bytes],
    digest: str,
    target: str,
    *,
    min_free: int = 0,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Unpack an archive of this digest into an empty directory of ours; raises BadTemplate.

    One pass: what was unpacked is what was hashed.  The target is for the caller to remove when
    this raises.
    """
    source = _Hashing(archive)
    problem: BadTemplate | None = None
    try:
        _unpack_stream(source, _Unpacking(target, min_free, stopped))
    except BadTemplate as error:
        problem = error
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        problem = BadTemplate("corrupt", f"the template's archive cannot be read: {error}")
    except OSError as error:
        problem = _system_problem(error)
    except Exception as error:  # noqa: BLE001 (decompressors have errors of their own)
        problem = BadTemplate("corrupt", f"the template's archive cannot be read: {error}")
    while source.read(BLOCK):
        if stopped():
            raise BadTemplate("missing", "the server stops")
    found = source.digest.hexdigest()
    if found != digest:
        raise BadTemplate(
            "corrupt", f"the archive has the digest {found}, not {digest}; send it again"
        )
    if problem is not None:
        raise problem


def _unpack_stream(source: _Hashing, unpacking: _Unpacking) -> None:
    """Unpack to the end: a compressed stream has its checksum there."""
    if source.peek(len(_GZIP)) != _GZIP:
        _unpack_members(source, "r|*", unpacking)
        return
    # The streams of tarfile compare no checksum of gzip.
    with gzip.GzipFile(fileobj=source, mode="rb") as plain:  # type: ignore[call-overload]
        _unpack_members(plain, "r|", unpacking)
        if len(plain.read(_MOST_PADDING + 1)) > _MOST_PADDING:
            raise BadTemplate("corrupt", "the template's archive goes on behind its end")


def _unpack_members(stream: object, mode: str, unpacking: _Unpacking) -> None:
    with tarfile.open(
        fileobj=stream, mode=mode, bufsize=BLOCK, tarinfo=_checked_headers()
    ) as members:  # type: ignore[call-overload]
        unpacking.run(members)


def _system_problem(error: OSError) -> BadTemplate:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BadTemplate("no_space", f"the template does not fit on the disk: {error.strerror}")
    return BadTemplate("corrupt", f"the template cannot be unpacked: {error}")


def _checked_headers() -> type[tarfile.TarInfo]:
    """Members of one archive whose headers are whole, and take a bounded part of the memory.

    Raises BadTemplate before any of a larger one is read: few bytes of a compressed archive can
    stand for gigabytes.  A header that is cut or changed would be the end of the archive for
    tarfile: what is behind it would be missing without a word.
    """
    spoken = 0

    class Checked(tarfile.TarInfo):
        @classmethod
        def fromtarfile(cls, archive: tarfile.TarFile) -> Checked:
            try:
                return super().fromtarfile(archive)
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # it has one
                raise
            except tarfile.HeaderError as error:
                message = f"the template's archive is cut off or changed: {error}"
                raise BadTemplate("corrupt", message) from None

        def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
            # All versions of Python call it for each header, before they read what it stands for.
            nonlocal spoken
            if self.type in _GLOBAL:
                spoken += self.size
            if self.type in _HEADERS and max(self.size, spoken) > _MOST_HEADER:
                raise _unsafe(self.name, f"has a header of more than {_MOST_HEADER} bytes")
            if self.type == tarfile.GNUTYPE_SPARSE:
                raise _unsafe(self.name, "is a file with holes; pack it without --sparse")
            return super()._proc_member(archive)  # type: ignore[no-any-return, misc]  # no stub

        def _proc_gnusparse_10(self, *_: object) -> None:
            raise _unsafe(self.name, "is a file with holes; pack it without --sparse")

    return Checked


class _Unpacking:
    """One archive on its way into a directory that no other process uses."""

    def __init__(self, target: str, min_free: int, stopped: Callable[[], bool]) -> None:
        self._target = target
        self._min_free = min_free
        self._stopped = stopped
        #: What each name is so far, by the type of its member.
        self._kinds: dict[str, bytes] = {"": tarfile.DIRTYPE}
        self._directories: dict[str, tuple[int, float]] = {}

    def run(self, members: tarfile.TarFile) -> None:
        for number, member in enumerate(iter(members.next, None)):
            members.members = []  # type: ignore[attr-defined]  # it would keep all of them
            if number % _LOOK_EVERY == 0:
                self._check_room(0)
            if self._stopped():
                raise BadTemplate("missing", "the server stops")
            self._one(members, member)
            if number >= _MOST_MEMBERS:
                raise _unsafe(member.name, f"is one of more than {_MOST_MEMBERS} members")
        # Last: a directory that is closed to its owner could not be filled.
        for name, (mode, mtime) in sorted(self._directories.items(), reverse=True):
            path = os.path.join(self._target, name)
            os.chmod(path, mode)
            os.utime(path, (mtime, mtime))

    def _one(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = _name(member.name)
        if name == "":
            if not member.isdir():
                raise _unsafe(member.name, "names the template itself")
            return
        if member.mode & 0o6000:
            raise _unsafe(member.name, "has a set-id bit")
        self._make_parents(name)
        path = os.path.join(self._target, name)
        before = self._kinds.get(name)
        if before == tarfile.DIRTYPE and not member.isdir():
            raise _unsafe(member.name, "is a directory and something else")
        if before is not None and before != tarfile.DIRTYPE:
            os.unlink(path)  # the later one of two members counts, and is written to no link
        if member.isdir():
            self._directory(name, path, member)
        elif member.isreg():
            self._file(members, path, member)
            self._kinds[name] = tarfile.REGTYPE
        elif member.issym():
            os.symlink(member.linkname, path)
            os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)
            self._kinds[name] = tarfile.SYMTYPE
        elif member.islnk():
            linked = _name(member.linkname)
            if self._kinds.get(linked) != tarfile.REGTYPE or linked == name:
                raise _unsafe(member.name, "is a hard link to no file of the archive before it")
            os.link(os.path.join(self._target, linked), path, follow_symlinks=False)
            self._kinds[name] = tarfile.REGTYPE
        else:
            raise _unsafe(member.name, "is a device, a pipe or of an unknown type")

    def _make_parents(self, name: str) -> None:
        """Make what is missing above a name; refuse what is no directory of the archive."""
        parts = name.split("/")
        for count in range(1, len(parts)):
            above = "/".join(parts[:count])
            kind = self._kinds.get(above)
            if kind is None:
                os.mkdir(os.path.join(self._target, above), 0o755)
                self._kinds[above] = tarfile.DIRTYPE
            elif kind == tarfile.SYMTYPE:
                raise _unsafe(name, f"lies behind the link {above!r}")
            elif kind != tarfile.DIRTYPE:
                raise _unsafe(name, f"lies in {above!r}, which is a file")

    def _directory(self, name: str, path: str, member: tarfile.TarInfo) -> None:
        if self._kinds.get(name) != tarfile.DIRTYPE:
            os.mkdir(path, 0o700)
        self._kinds[name] = tarfile.DIRTYPE
        # Its owner can always list, fill and remove it.
        self._directories[name] = ((member.mode & 0o777) | 0o700, member.mtime)

    def _file(self, members: tarfile.TarFile, path: str, member: tarfile.TarInfo) -> None:
        self._check_room(member.size)
        source: Any = members.extractfile(member)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as file:
            left = member.size
            while left:
                data = source.read(min(BLOCK, left))
                if not data:
                    raise tarfile.ReadError("a file ends early")
                file.write(data)
                left -= len(data)
                if self._stopped():
                    raise BadTemplate("missing", "the server stops")
            file.flush()
            os.fchmod(file.fileno(), (member.mode & 0o777) | 0o400)  # its owner can always copy it
            os.utime(file.fileno(), (member.mtime, member.mtime))

    def _check_room(self, more: int) -> None:
        disk = os.statvfs(self._target)
        if disk.f_bavail * disk.f_frsize - more < self._min_free:
            raise BadTemplate("no_space", "the template does not fit on the disk")


def _name(given: str) -> str:
    """The name without needless dots and slashes; raises BadTemplate when it could lead out."""
    if given.startswith("/") or "\0" in given:
        raise _unsafe(given, "is no relative name")
    parts = [part for part in given.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _unsafe(given, "leads out of the template")
    return "/".join(parts)


def _unsafe(name: str, why: str) -> BadTemplate:
    return BadTemplate("unsafe", f"the template is refused: {name[:200]!r} {why}")
