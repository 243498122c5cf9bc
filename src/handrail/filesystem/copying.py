"""Copying files, links and trees.

As exec-server 0.166.0 does it: links are copied as links and never replace anything; a file gets
the mode of its source; directories get the default mode, are merged into existing ones (also
through a link), and skip pipes, sockets and devices.  Unlike there, each file arrives whole or not
at all, and a file copied onto itself keeps its content.
"""

from __future__ import annotations

import os
import stat

from handrail.filesystem import names, own_processes
from handrail.filesystem.content import copy_content
from handrail.filesystem.directories import make_all
from handrail.filesystem.errors import NativePath, native, os_errors, refusal
from handrail.filesystem.no_follow import STAND, open_no_follow, open_parent
from handrail.filesystem.regular_file import open_regular
from handrail.filesystem.replacement import Replacement

_NEEDS_RECURSIVE = "fs/copy requires recursive: true when sourcePath is a directory"
_INTO_ITSELF = "fs/copy cannot copy a directory to itself or one of its descendants"
_ONLY_PLAIN = "fs/copy only supports regular files, directories, and symlinks"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def copy(
    source: NativePath, destination: NativePath, *, recursive: bool = False, follow: bool = True
) -> None:
    """Copy ``source`` to the name ``destination``; missing parents are made for a directory.

    Without ``follow`` a link in either path is an error, and only a file can be copied.
    """
    origin, target = native(source), native(destination)
    with os_errors(origin, follow=follow):
        if not follow:
            _copy_file(origin, target, follow=False)
            return
        status = os.lstat(origin)
        if stat.S_ISDIR(status.st_mode):
            if not recursive:
                raise refusal(_NEEDS_RECURSIVE, origin)
            _refuse_inside(status, origin, target)
            _copy_tree(origin, target)
        elif stat.S_ISLNK(status.st_mode):
            parent, name = open_parent(origin, follow=True)
            try:
                names.symlink(os.readlink(name, dir_fd=parent), target)
            finally:
                os.close(parent)
        elif stat.S_ISREG(status.st_mode):
            _copy_file(origin, target)
        else:
            raise refusal(_ONLY_PLAIN, origin)


def _refuse_inside(status: os.stat_result, origin: bytes, target: bytes) -> None:
    """Compare identities on the way up from the target, so that no alias is missed."""
    above = os.path.realpath(target)
    while True:
        try:
            if os.path.samestat(os.stat(above), status):
                raise refusal(_INTO_ITSELF, origin)
        except FileNotFoundError:
            pass  # the missing part of the destination
        if above == b"/":
            return
        above = os.path.dirname(above)


def _copy_tree(origin: bytes, target: bytes) -> None:
    make_all(target)
    source_root = own_processes.checked(os.open(origin, _DIRECTORY | os.O_NOFOLLOW))
    try:
        target_root = os.open(target, STAND)
        try:
            # Paths relative to the two roots, resolved again for each directory: no recursion and
            # two fds, however deep the tree.
            pending = [b"."]
            while pending:
                _copy_directory(source_root, target_root, pending.pop(), pending)
        finally:
            os.close(target_root)
    finally:
        os.close(source_root)


def _copy_directory(
    source_root: int, target_root: int, relative: bytes, pending: list[bytes]
) -> None:
    """Copy the entries of one directory; make its directories and put them on ``pending``."""
    source = open_no_follow(relative, _DIRECTORY, dir_fd=source_root)
    try:
        target = os.open(relative, STAND, dir_fd=target_root)
        try:
            with os.scandir(source) as found:
                entries = list(found)
            for entry in entries:
                name = os.fsencode(entry.name)
                if entry.is_symlink():
                    names.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
                elif entry.is_dir(follow_symlinks=False):
                    _make_directory(name, target)
                    pending.append(relative + b"/" + name)
                elif entry.is_file(follow_symlinks=False):
                    _copy_file(name, name, source, target)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _make_directory(name: bytes, target: int) -> None:
    try:
        names.mkdir(name, dir_fd=target)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=target).st_mode):
            raise


def _copy_file(
    origin: bytes,
    target: bytes,
    source_dir: int | None = None,
    target_dir: int | None = None,
    *,
    follow: bool = True,
) -> None:
    # In a tree the name alone is opened, so «no link anywhere» holds for what was listed.
    fd, status = open_regular(origin, follow=follow and source_dir is None, dir_fd=source_dir)
    try:
        mode = stat.S_IMODE(status.st_mode)
        replacement = Replacement(target, mode=mode, dir_fd=target_dir, follow=follow)
        try:
            if replacement.old is not None and os.path.samestat(replacement.old, status):
                return
            copy_content(fd, replacement.fd)
            replacement.commit()
        finally:
            replacement.discard()
    finally:
        os.close(fd)
