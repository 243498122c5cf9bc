"""What the commands of a workspace may touch, as the caller says it and as an intent.  Pure."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from handrail.errors import UsageError
from handrail.name_hints import NamesChecked
from handrail.network.settings import OFF, OPEN, Managed, Network, checked
from handrail.sandbox.profile import PEERS_OFF, Access, Entry, Intent, denied


@dataclass(frozen=True, slots=True)
class Profile(NamesChecked):
    """A sandbox of the caller's own making.

    ``read``, ``write`` and ``deny`` are paths, relative ones below the workspace; of several that
    cover a path the longest decides.  ``deny`` also takes patterns such as ``**/*.env``.
    ``.git`` and the like directly below a writable path stay read-only unless ``write`` names
    them.  ``network``: ``off``, ``open`` (the machine's network) or ``Managed``, a list of hosts;
    False and True mean off and open.  ``temporary``: whether they get a writable /tmp and /var/tmp
    of their own, which go away with the workspace; what the paths above name below these is the
    machine's.
    """

    read: tuple[str, ...] = ("/",)
    write: tuple[str, ...] = (".",)
    deny: tuple[str, ...] = ()
    network: bool | Network = False
    temporary: bool = True

    def __post_init__(self) -> None:
        for name in ("read", "write", "deny"):
            paths = getattr(self, name)
            if not isinstance(paths, (tuple, list)) or not all(isinstance(p, str) for p in paths):
                raise UsageError(f"{name} of a profile is a tuple of paths, not {paths!r}")
            object.__setattr__(self, name, tuple(paths))
        if not isinstance(self.temporary, bool):
            raise UsageError(f"temporary of a profile is True or False, not {self.temporary!r}")
        if not isinstance(self.network, bool):
            checked(self.network)

    @property
    def online(self) -> bool:
        """Whether commands may use the machine's network."""
        return self.network in (True, OPEN)

    @property
    def managed(self) -> Managed | None:
        """The hosts that commands may reach, if that is decided host by host."""
        return self.network if isinstance(self.network, Managed) else None


#: The sandboxes that have a name; ``danger-full-access`` is the peer's name of ``off``.
SandboxName: TypeAlias = Literal["read-only", "workspace-write", "off", "danger-full-access"]
#: A profile by its name, or one of the caller's own.
Sandbox: TypeAlias = SandboxName | Profile

_NAMED: dict[str, Profile | None] = {
    "read-only": Profile(write=(), temporary=False),
    "workspace-write": Profile(),
    "off": None,
    PEERS_OFF: None,
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


def with_network(profile: Profile | None, network: Network | None) -> Profile | None:
    """The profile with another network; None as network: its own.  Raises UsageError."""
    if network is None:
        return profile
    network = checked(network)
    if profile is not None:
        return replace(profile, network=network)
    if network != OPEN:
        shown = "'off'" if network == OFF else "Managed(...)"
        raise UsageError(
            f"network={shown} needs a sandbox, without which nothing enforces it; leave out"
            " sandbox='off', or the network"
        )
    return None


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
        network=profile.online,
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
