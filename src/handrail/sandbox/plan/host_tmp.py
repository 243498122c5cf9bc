"""Keeping what programs of the host trust in its ``/tmp``, where a command can write there.

That is what ``tmp_sockets`` finds, and directories whose names are known before they are there.  It
is kept wherever the same directory is to be seen: ``/tmp`` may be mounted a second time.  A TMPDIR
that lies in a workspace holds the private ``/tmp`` of other sandboxes, which are kept too.
"""

from __future__ import annotations

import os

from handrail.sandbox import temp_dirs
from handrail.sandbox.plan import mount_aliases
from handrail.sandbox.plan.placeholders import Placeholder
from handrail.sandbox.plan.plan import look
from handrail.sandbox.profile import Access, known_names, parents, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.plan.resolve import Resolver


class HostTmp:
    """The host's directories for temporary files in one plan in the making."""

    def __init__(self, layout: Resolver) -> None:
        self._layout = layout
        self._plan = layout.plan

    def keep(self) -> None:
        """Add what keeps it to the plan; raises Refused."""
        shared = self._layout.profile.shared
        if not shared:
            return
        text = self._layout.indexes.mounts.text()
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
        is_hosts = self._plan.shown.host_path(place) == place
        return is_hosts and self._plan.access(place) is Access.WRITE

    def _keep_found(self, root: bytes, place: bytes, names: bytes = b"") -> None:
        """Keep what was found in a directory, as it is to be seen at one of its mounts."""
        found = self._plan.sockets[root] = self._layout.indexes.sockets(root).refresh()
        around = self._nearest(place)
        for path in found:
            name = path[len(root) + 1 :]
            seen = os.path.join(place, name)
            if seen in self._layout.masks:
                continue  # of another sandbox, with which it would go
            if name.startswith(names) and self._nearest(seen) == around:
                self._layout._carve(seen, Access.READ, protected=True, existing=True)

    def _cover_known_names(self, place: bytes) -> None:
        if not os.access(place, os.W_OK):
            return  # a command cannot make them either
        layout = self._layout
        for name in known_names(os.geteuid()):
            path = os.path.join(place, name)
            if path in layout.rules or path in layout.masks:
                continue
            now = look(path, follow=False)
            if now is None or layout._is_mask(path, now):
                layout._note_missing(path)
                layout.masks[path] = Placeholder(path, directory=True)

    def _nearest(self, path: bytes) -> bytes | None:
        return next((p for p in (path, *parents(path)) if p in self._plan.rules), None)
