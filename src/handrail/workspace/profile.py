"""What the commands of a workspace may touch, as the caller says it and as an intent.  Pure."""

from __future__ import annotations

import enum
import os
import posixpath
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from handrail.errors import UsageError
from handrail.sandbox import private_tmp
from handrail.sandbox.profile import PROTECTED_NAMES, Entry, Intent
from handrail.sandbox.profile import Access as EntryAccess

_GLOB = frozenset("*?[")
#: Directly below a writable path these stay read-only, unless they are named themselves.
PROTECTED = tuple(map(os.fsdecode, PROTECTED_NAMES))


@dataclass(frozen=True, slots=True)
class Profile:
    """A sandbox of the caller's own making.

    ``read``, ``write`` and ``deny`` are paths, relative ones below the workspace; of several that
    cover a path the longest decides.  ``deny`` also takes patterns such as ``**/*.env``.
    ``.git`` and the like directly below a writable path stay read-only unless ``write`` names
    them.  ``network``: whether commands may use the machine's network.  ``temporary``: whether
    they get a writable /tmp and /var/tmp of their own, which go away with the workspace; what
    the paths above name below these is the machine's.
    """

    read: tuple[str, ...] = ("/",)
    write: tuple[str, ...] = (".",)
    deny: tuple[str, ...] = ()
    network: bool = False
    temporary: bool = True


#: A profile by its name, or one of the caller's own.
Sandbox: TypeAlias = "Literal['read-only', 'workspace-write', 'off'] | Profile"

_NAMED: dict[str, Profile | None] = {
    "read-only": Profile(write=(), temporary=False),
    "workspace-write": Profile(),
    "off": None,
}


def find_profile(sandbox: Sandbox) -> Profile | None:
    """The profile that was meant, None for no sandbox; raises UsageError."""
    if isinstance(sandbox, Profile):
        return sandbox
    if not isinstance(sandbox, str) or sandbox not in _NAMED:
        raise UsageError(
            f"there is no sandbox {sandbox!r}; use 'read-only', 'workspace-write', 'off' or a"
            " Profile"
        )
    return _NAMED[sandbox]


def intent(
    profile: Profile | None, root: str, temporary: str | None, *, private: bool = False
) -> Intent | None:
    """The profile as an intent, None for no sandbox; ``root`` is where relative paths belong.

    ``private``: the temporary directory is shown as /tmp, rather than at its own path.
    Raises UsageError.
    """
    if profile is None:
        return None
    read, write, deny = EntryAccess.READ, EntryAccess.WRITE, EntryAccess.DENY
    entries = [_entry(root, path, read) for path in profile.read]
    entries += [_entry(root, path, write) for path in profile.write]
    if temporary is not None and not private:
        entries.append(_entry(root, temporary, write))
    entries += [_entry(root, path, deny) for path in profile.deny]
    return Intent(
        entries=tuple(entries),
        network=profile.network,
        workspace_roots=(_native(root),),
        private_tmp=_native(temporary) if temporary is not None and private else None,
        cwd=_native(root),
    )


class Access(enum.Enum):
    """What may be done with a path; the stricter comes first at the same depth."""

    DENY = 0
    WRITE = 1
    READ = 2


class Rules:
    """A profile bound to a root, for file calls of the program itself."""

    def __init__(
        self, profile: Profile, root: str, temporary: str | None, *, private: bool = False
    ) -> None:
        """``private``: the temporary directory is what commands have as their /tmp."""

        def bound(paths: tuple[str, ...]) -> list[str]:
            return [posixpath.normpath(posixpath.join(root, path)) for path in paths]

        writes = bound(profile.write) + ([temporary] if temporary is not None else [])
        self._parts: dict[str, str] = {}
        self._shares: set[str] = set()
        if temporary is not None and private:
            self._find_parts(temporary, [root, *bound(profile.read + profile.write)])
        self._paths = [(path, Access.READ) for path in bound(profile.read)]
        self._paths += [(path, Access.WRITE) for path in writes]
        self._paths += [
            (posixpath.join(write, name), Access.READ) for write in writes for name in PROTECTED
        ]
        plain = tuple(path for path in profile.deny if not _GLOB & set(path))
        self._paths += [(path, Access.DENY) for path in bound(plain)]
        self._globs = [_pattern(root, path) for path in profile.deny if _GLOB & set(path)]
        # A path that is written explicitly is not protected any more.
        named = set(writes)
        self._paths = [
            (path, access)
            for path, access in self._paths
            if not (access is Access.READ and path in named)
        ]

    def _find_parts(self, temporary: str, named: list[str]) -> None:
        paths = [os.fsencode(path) for path in named]
        for place, name in private_tmp.PLACES.items():
            if place in paths:
                continue  # named itself: it is the machine's
            shares = private_tmp.shares(place, paths)
            part = os.fsdecode(private_tmp.part_name(name, shares))
            self._parts[os.fsdecode(place)] = posixpath.join(temporary, part)
            self._shares.update(map(os.fsdecode, shares))

    def host_path(self, path: str) -> str:
        """Where on the workspace's machine lies what its commands have at a path."""
        for place, part in self._parts.items():
            if _within(path, place) and not any(_within(path, share) for share in self._shares):
                return part + path[len(place) :]
        return path

    @property
    def denies_anything(self) -> bool:
        return (
            bool(self._globs)
            or not any(path == "/" and access is not Access.DENY for path, access in self._paths)
            or any(access is Access.DENY for _, access in self._paths)
        )

    def access(self, path: str) -> Access:
        """For a path without links: the longest entry decides, then the stricter."""
        if any(_matches(path, glob) for glob in self._globs):
            return Access.DENY
        best = max(
            (
                (path_length(entry), -access.value, access)
                for entry, access in self._paths
                if _within(path, entry)
            ),
            key=lambda found: found[:2],
            default=(0, 0, Access.DENY),
        )
        return best[2]


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def path_length(path: str) -> int:
    """In components."""
    return len([part for part in path.split("/") if part])


def _pattern(root: str, glob: str) -> re.Pattern[bytes]:
    """A deny pattern as sandboxes read it, over absolute paths without their first slash."""
    from handrail.sandbox.plan.globs import translate  # few profiles have patterns

    literal = re.sub(r"([*?\[\]{},\\])", r"\\\1", root)
    return translate(posixpath.normpath(posixpath.join(literal, glob))[1:])


def _matches(path: str, glob: re.Pattern[bytes]) -> bool:
    """Whether a pattern covers a path or a directory above it."""
    while path != "/":
        if glob.match(_native(path[1:])):
            return True
        path = posixpath.dirname(path)
    return False


def _entry(root: str, path: str, access: EntryAccess) -> Entry:
    if not path or "\0" in path:
        raise UsageError(f"{path!r} is no path; a profile has absolute or relative paths")
    if access is EntryAccess.DENY and _GLOB & set(path):
        return Entry(access, glob=path)
    full = posixpath.normpath(posixpath.join(root, path))
    if full == "/":
        return Entry(access, special="root")
    if full == root:
        return Entry(access, special="project_roots")
    return Entry(access, path=_native(full))


def _native(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
