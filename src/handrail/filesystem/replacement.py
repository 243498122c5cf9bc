"""New content for a file: all of it, or the old content untouched.

How it works
------------
The content goes to a *stage*: a file without a name in the same directory (O_TMPFILE), so that
listings stay clean; where the file system has no such thing, a hidden name opened O_EXCL.
``commit`` gives it the target's name by rename, for which it must have a name of its own for a
moment; what a kill leaves then is removed later (``stage_names``).  Where links are refused, the
content is copied to a stage with a name first.  Mode, owner and extended attributes of an existing
target are put on the stage before that.

Rename is wrong, or impossible, for some targets: a file with several hard links (they would part),
one whose owner or attributes we may not set, one that is a mount point, one in a directory that we
may not write.  There ``commit`` writes the stage into the target *in place* (``write_in_place``),
after reserving the blocks, so that a full disk is noticed before the first byte changes.

Links are followed by hand to the entry that is to be replaced; everything after that happens
relative to that directory's fd with O_NOFOLLOW.  A target that may not be opened for writing is
refused, though a rename would get around it; pipes and devices are refused unopened.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import cache

from handrail import fault_points
from handrail.filesystem import names, own_processes, stage_names, syscalls, write_in_place
from handrail.filesystem.content import NOT_SUPPORTED, copy_content, write_all, write_at
from handrail.filesystem.errors import NativePath, native, not_a_file, os_error
from handrail.filesystem.no_follow import open_parent
from handrail.filesystem.regular_file import CAREFUL

#: The kernel's limit of links in one path (MAXSYMLINKS).
_MAX_LINKS = 40
#: No sandboxed process may set these.
SET_ID = stat.S_ISUID | stat.S_ISGID
#: The directory does not take a stage; an existing target can still be written in place.
_NO_STAGE_HERE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT}
_NO_STAGE_HERE |= {errno.EINVAL, errno.EOPNOTSUPP}
#: A file without a name cannot get one: a filter or the file system refuses to link it.
_NO_LINK = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}
#: Rename will not replace this target (a mount point, a sticky directory).
_NOT_BY_RENAME = {errno.EBUSY, errno.EACCES, errno.EPERM, errno.EXDEV}


class Replacement:
    """Write to ``fd``, then ``commit`` or ``discard``.  Raises OSError and FilesError.

    ``mode`` overrides the permission bits, which are otherwise the existing target's or
    0666 without the umask.  ``by_rename``: the path is a name in ``dir_fd`` on a disk of this
    machine or a tmpfs, no link is followed, and BlockingIOError is raised instead of everything but
    a nameless stage that becomes the target, with no more than a sandboxed process could give it.
    """

    __slots__ = (
        "_bits",
        "_by_rename",
        "_directory",
        "_in_place",
        "_name",
        "_target",
        "_temporary",
        "fd",
        "old",
    )

    def __init__(
        self,
        path: NativePath,
        *,
        follow: bool = True,
        mode: int | None = None,
        dir_fd: int | None = None,
        by_rename: bool = False,
    ) -> None:
        raw = native(path)
        self.fd = -1
        self._by_rename = by_rename
        #: The existing target, or None.
        self.old: os.stat_result | None = None
        self._target = -1
        self._temporary: bytes | None = None
        self._in_place = False
        self._bits = 0
        if by_rename and dir_fd is not None:
            found = _resolve_links(os.dup(dir_fd), raw, follow)
        elif follow and raw == b"/":
            raise os_error(errno.EISDIR)
        else:
            found = _resolve_links(*open_parent(raw, follow=follow, dir_fd=dir_fd), follow)
        self._directory, self._name, status = found
        try:
            names.check(self._directory, self._name)
            if status is not None:
                self._open_target(status, raw, follow)
            self._open_stage(mode)
        except BaseException:
            self.discard()
            raise

    def write(self, data: bytes | bytearray | memoryview, offset: int | None = None) -> None:
        """Write all of ``data``, after what was written so far or at ``offset``."""
        if offset is None:
            write_all(self.fd, data)
        else:
            write_at(self.fd, data, offset)

    def commit(self, *, sync: bool = False) -> None:
        """Make the stage the content of the target; afterwards this object is unusable.

        ``sync`` waits until content and name are on the disk.  A failure leaves the old content;
        what can leave a mixture when writing in place is described in ``write_in_place``.
        """
        try:
            if not self._by_rename:
                # NFS reports a full disk on close; closing a duplicate gets that error in time.
                os.close(os.dup(self.fd))
            if sync:
                os.fsync(self.fd)
            published = not self._in_place and self._publish()
            if not published and self._by_rename:
                raise BlockingIOError
            if not published and self.old is not None:
                self._pour(self.old, sync)
            elif sync:
                self._sync_directory()
        finally:
            self.discard()

    def discard(self) -> None:
        """Drop the stage and leave the target alone; harmless when repeated."""
        if self._temporary is not None:
            try:
                os.unlink(self._temporary, dir_fd=self._directory)
            except OSError:
                pass  # the directory may be gone, and the stage with it
            self._nameless()
        for slot in ("fd", "_target", "_directory"):
            descriptor = getattr(self, slot)
            setattr(self, slot, -1)
            if descriptor >= 0:
                os.close(descriptor)

    def _open_target(self, status: os.stat_result, raw: bytes, follow: bool) -> None:
        # Checked before it is opened: opening a watchdog device already starts it.
        _refuse_special(status, raw, follow)
        self._target = self._open_for_writing()
        self.old = os.fstat(self._target)
        _refuse_special(self.old, raw, follow)
        own_processes.refuse(self._target, self.old)

    def _open_for_writing(self) -> int:
        flags = os.O_WRONLY | os.O_NOFOLLOW | CAREFUL
        return os.open(self._name, flags, dir_fd=self._directory)

    def _open_stage(self, mode: int | None) -> None:
        if self._by_rename and self.old is not None and self.old.st_mode & SET_ID:
            raise BlockingIOError
        try:
            self.fd, self._temporary = _make_stage(self._directory, private=self.old is not None)
        except OSError as error:
            if self._by_rename:
                raise BlockingIOError from None
            if self.old is None or error.errno not in _NO_STAGE_HERE:
                raise
            self.fd = _stage_elsewhere()
            self._in_place = True
        if self.old is None:
            if mode is not None:
                _give_mode(self.fd, mode)
            return
        if self._by_rename and not _same_owner(self.old, os.fstat(self.fd)):
            raise BlockingIOError
        bits = stat.S_IMODE(self.old.st_mode) if mode is None else mode
        if not self._in_place:
            self._in_place = self.old.st_nlink > 1 or not _adopt(
                self.fd, self._target, self.old, bits
            )
        if self._in_place and self._by_rename:
            raise BlockingIOError
        self._bits = bits
        if not self._in_place:
            # While it is open for writing, it cannot be executed.
            os.close(self._target)
            self._target = -1

    def _publish(self) -> bool:
        """Name the stage; False when the target has to be written in place instead."""
        here = self._directory
        if self._temporary is None:
            try:
                if self._link_stage():
                    return True
            except OSError as error:
                if self._by_rename or error.errno not in _NO_LINK:
                    raise
                self._copy_stage()
        assert self._temporary is not None  # noqa: S101 (it has just got one)
        if fault_points.armed:
            fault_points.point("stage.named")
        try:
            os.rename(self._temporary, self._name, src_dir_fd=here, dst_dir_fd=here)
        except OSError as error:
            if self.old is None or error.errno not in _NOT_BY_RENAME:
                raise
            return False
        self._nameless()
        return True

    def _link_stage(self) -> bool:
        """Give the stage its target's name if that is free, which is all; else one of its own."""
        source = f"/proc/self/fd/{self.fd}"
        if self.old is None:
            try:
                os.link(source, self._name, dst_dir_fd=self._directory)
            except FileExistsError:
                pass  # it appeared meanwhile: replace it like any other
            else:
                return True
        self._give_name(source)
        return False

    def _copy_stage(self) -> None:
        """Go on with a stage that has had a name from the beginning, as all will from now on."""
        global _can_link
        _can_link = False
        nameless, status = self.fd, os.fstat(self.fd)
        self.fd, self._temporary = _make_named_stage(self._directory, 0o600)
        try:
            copy_content(nameless, self.fd)
            if not _adopt(self.fd, nameless, status, stat.S_IMODE(status.st_mode)):
                raise os_error(errno.EPERM)
        finally:
            os.close(nameless)

    def _give_name(self, source: str) -> None:
        """Link the stage under a name of its own: one for the target, unless that is in use."""
        stage_names.lock(self.fd)
        name = stage_names.for_target(self._name)
        try:
            self._link(source, name)
        except FileExistsError:
            stage_names.remove_abandoned(self._directory, name)
            name = stage_names.fresh()
            self._link(source, name)
        self._temporary = name

    def _link(self, source: str, name: bytes) -> None:
        stage_names.journal.note(self._directory, name)
        try:
            os.link(source, name, dst_dir_fd=self._directory)
        except BaseException:
            stage_names.journal.done()
            raise

    def _nameless(self) -> None:
        self._temporary = None
        stage_names.journal.done()

    def _pour(self, old: os.stat_result, sync: bool) -> None:
        if self._target < 0:
            self._target = self._open_for_writing()
            if not os.path.samestat(os.fstat(self._target), old):
                raise os_error(errno.ESTALE)  # not the requested file
        size = os.fstat(self.fd).st_size
        try:
            syscalls.reserve(self._target, size)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                os.ftruncate(self._target, old.st_size)  # frees what was reserved so far
                raise
        if self._bits != stat.S_IMODE(old.st_mode):
            _give_mode(self._target, self._bits)
        write_in_place.pour(self.fd, self._target)
        if sync:
            os.fsync(self._target)

    def _sync_directory(self) -> None:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._directory)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _resolve_links(
    here: int, name: bytes, follow: bool
) -> tuple[int, bytes, os.stat_result | None]:
    """Directory and name of what a name leads to, and its status; None: it does not exist.

    Takes the descriptor of the directory.
    """
    for _ in range(_MAX_LINKS):
        try:
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            if not stat.S_ISLNK(status.st_mode):
                return here, name, status
            link = os.readlink(name, dir_fd=here)
        except FileNotFoundError:
            return here, name, None
        except OSError as error:
            if error.errno == errno.EINVAL:
                continue  # another file has taken the place of the link
            os.close(here)
            raise
        try:
            if not follow:
                break
            beyond, name = open_parent(link, follow=True, dir_fd=here)
        finally:
            os.close(here)
        here = beyond
    else:
        os.close(here)
    raise os_error(errno.ELOOP)


def _refuse_special(status: os.stat_result, raw: bytes, follow: bool) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise os_error(errno.EISDIR)
    if stat.S_ISSOCK(status.st_mode):
        raise os_error(errno.ENXIO)  # the error of opening a socket
    raise not_a_file(raw, follow=follow)


#: False once a link to a nameless file was refused: another copy of each content costs room.
_can_link = True


@cache
def _can_name_descriptors() -> bool:
    return os.path.isdir("/proc/self/fd")  # linking a nameless file goes through it


def _make_stage(directory: int, *, private: bool) -> tuple[int, bytes | None]:
    """A new file in ``directory`` and its temporary name, None for none."""
    # A stage for an existing file must not be readable before it has that file's mode.
    mode = 0o600 if private else 0o666
    if _can_link and _can_name_descriptors():
        try:
            return os.open(".", os.O_TMPFILE | os.O_RDWR, mode, dir_fd=directory), None
        except OSError as error:
            # EISDIR: a kernel or file system that does not know the flag.
            if error.errno not in (errno.EISDIR, *_NO_STAGE_HERE):
                raise
    return _make_named_stage(directory, mode)


def _make_named_stage(directory: int, mode: int) -> tuple[int, bytes]:
    name = stage_names.fresh()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    stage_names.journal.note(directory, name)
    try:
        fd = os.open(name, flags, mode, dir_fd=directory)
    except BaseException:
        stage_names.journal.done()
        raise
    stage_names.lock(fd)
    return fd, name


def _stage_elsewhere() -> int:
    """A nameless file in the system's temporary directory, to copy from."""
    # Rare, and the import costs more than everything else here together.
    from tempfile import TemporaryFile

    try:
        with TemporaryFile() as file:
            return os.dup(file.fileno())
    except OSError:  # a sandbox may have no such directory
        return os.memfd_create("handrail-stage", os.MFD_CLOEXEC)


def _give_mode(fd: int, mode: int) -> None:
    """Set a mode, without set-id bits where these are refused: in a sandbox by the filter."""
    try:
        os.fchmod(fd, mode)
    except PermissionError:
        if not mode & SET_ID:
            raise
        os.fchmod(fd, mode & ~SET_ID)


def _same_owner(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_uid, one.st_gid) == (other.st_uid, other.st_gid)


def _adopt(stage: int, target: int, old: os.stat_result, bits: int) -> bool:
    """Give the stage the target's owner, attributes and mode.  False: not allowed."""
    try:
        fresh = os.fstat(stage)
        if not _same_owner(fresh, old):
            os.fchown(stage, old.st_uid, old.st_gid)
        wanted, present = _attributes(target), _attributes(stage)
        for name in present.keys() - wanted.keys():
            os.removexattr(stage, name)
        for name, value in wanted.items():
            if present.get(name) != value:
                os.setxattr(stage, name, value)
        os.fchmod(stage, bits)  # last: chown clears the set-id bits
    except OSError:
        return False
    return True


def _attributes(fd: int) -> dict[str, bytes]:
    try:
        names = os.listxattr(fd)
    except OSError:
        return {}
    # The kernel removes file capabilities on any write.
    return {name: os.getxattr(fd, name) for name in names if name != "security.capability"}
