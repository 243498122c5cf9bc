"""Keeping what programs of the host trust in its ``/tmp``, where a command can write there.

That is what ``trusted_tmp_names`` finds, and directories whose names are known before they are
there.  It is kept wherever the same directory is to be seen: ``/tmp`` may be mounted a second time.
A TMPDIR that lies in a workspace holds the private ``/tmp`` of other sandboxes, kept too.
"""

from __future__ import annotations

import os

from handrail import own_code
from handrail.sandbox import private_tmp, temp_dirs
from handrail.sandbox.plan import mount_aliases
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.plan import look
from handrail.sandbox.profile import Access, known_names, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.plan.path_rules import Resolver


class HostTmp:
    """The host's directories for temporary files in one plan in the making."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._plan = resolver.plan

    def keep(self) -> None:
        """Add what keeps it to the plan; raises Refused."""
        shared = self._resolver.profile.shared
        if not shared:
            return
        text = self._plan.mount_table
        places = [*((root, root) for root in shared), *mount_aliases.same(shared, text).items()]
        for place, root in places:
            if self._is_shown(place):
                if root == b"/tmp":
                    self._cover_known_names(place)
                self._keep_found(root, place)
        own = temp_dirs.usual_place()
        if own not in shared and self._is_shown(own):
            self._keep_found(own, own, temp_dirs.OURS)

    def _is_shown(self, place: bytes) -> bool:
        """Whether it is the host's directory that is to be seen there, and can be written."""
        if within(place, b"/dev") and place not in self._plan.rules:
            return False  # every sandbox has a /dev of its own
        if self._plan.nearest(place) == b"/":
            return False  # a profile that may write everywhere holds nothing back here either
        is_hosts = self._plan.shown.host_path(place) == place
        return is_hosts and self._plan.access(place) is Access.WRITE

    def _keep_found(self, root: bytes, place: bytes, names: bytes = b"") -> None:
        """Keep what was found in a directory, as it is to be seen at one of its mounts."""
        found = self._resolver.covered(self._resolver.indexes.sockets(root))
        self._plan.sockets[root] = found
        around = self._plan.nearest(place)
        for path in found:
            name = path[len(root) + 1 :]
            seen = os.path.join(place, name)
            if seen in self._resolver.masks:
                continue  # of another sandbox, with which it would go
            if name.startswith(names) and self._plan.nearest(seen) == around:
                self._resolver.carve(seen, Access.READ, protected=True, existing=True)

    def _cover_known_names(self, place: bytes) -> None:
        if not os.access(place, os.W_OK):
            return  # a command cannot make them either
        resolver = self._resolver
        for name in known_names(os.geteuid()):
            path = os.path.join(place, name)
            if path in resolver.rules or path in resolver.masks:
                continue
            now = look(path, follow=False)
            if now is None or resolver.is_mask(path, now):
                resolver.note_missing(path)
                resolver.masks[path] = Placeholder(path, directory=True)


def cover(resolver: Resolver) -> None:
    """Cover the host's directories by a private ``/tmp``, unless they are named themselves."""
    directory = resolver.profile.private_tmp
    if directory is None:
        return
    for place, name in private_tmp.places().items():
        if place not in resolver.rules:
            # Named by what the profile shares: our own code is the same for all of an owner.
            part = private_tmp.part_name(name, _shared(resolver, place))
            _show_own_code(resolver, place)
            _cover_place(resolver, directory, place, part)


def _shared(resolver: Resolver, place: bytes) -> tuple[bytes, ...]:
    """The topmost paths of the host that are shown below a place."""
    readable = [path for path, access in resolver.rules.items() if access is not Access.DENY]
    return private_tmp.shares(place, (*readable, *private_tmp.named_paths(resolver.profile)))


def _show_own_code(resolver: Resolver, place: bytes) -> None:
    """Keep our own code readable where it lies below the host's directory.

    Programs of ours run in sandboxes, and a caller's ``sys.executable`` is often one of them.
    """
    plan = resolver.plan
    for _, real, kind in resolver.profile.own_code:
        if kind == own_code.SEARCHED or real == place or not within(real, place):
            continue
        if plan.nearest(real) == b"/" and plan.access(real) is Access.READ:
            resolver.carve(real, Access.READ, existing=True)


def _cover_place(resolver: Resolver, directory: bytes, place: bytes, name: bytes) -> None:
    rules, masks = resolver.rules, resolver.masks
    shared = _shared(resolver, place)
    for path in (*rules, *masks):
        if within(path, place) and not any(within(path, share) for share in shared):
            rules.pop(path, None)  # of the host's, which is not shown
            masks.pop(path, None)
    kinds = {path: resolver.places[path].is_directory if path in rules else None for path in shared}
    part = private_tmp.open_part(directory, place, name, kinds)
    resolver.parts.append(part)
    resolver.plan.shown.add(part)
    for path in part.opened:
        way = path != place and path not in shared
        rules[path] = Access.READ if way else Access.WRITE
    resolver.note(part.path)
