"""What the commands of a workspace may touch, as the caller says it and as an intent.  Pure."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Literal, TypeAlias

from handrail.errors import UsageError
from handrail.sandbox.profile import Access, Entry, Intent, denied


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
    read, write, deny = Access.READ, Access.WRITE, Access.DENY
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


def _entry(root: str, path: str, access: Access) -> Entry:
    if not path or "\0" in path:
        raise UsageError(f"{path!r} is no path; a profile has absolute or relative paths")
    if access is Access.DENY:
        return denied(path, root)
    full = posixpath.normpath(posixpath.join(root, path))
    if full == "/":
        return Entry(access, special="root")
    if full == root:
        return Entry(access, special="project_roots")
    return Entry(access, path=_native(full))


def _native(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
