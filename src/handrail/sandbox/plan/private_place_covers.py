"""Cover a private place in a plan, whether it exists or not (``handrail.private_places``).

An existing one is denied, whatever the profile says of it or below it, except for the workspaces
of a server (``open_workspaces``) that the profile names; one that may be read is read-only.  A
missing one in a directory that the sandbox can write is masked like a missing ``.git``: otherwise
a command could make it, and the next handrail outside would take it for its own.  In a directory
that is not writable nothing is made.
"""

from __future__ import annotations

import os
import stat

from handrail import private_files, private_places
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.plan import look
from handrail.sandbox.plan.safe_open import (
    Crossed,
    Missing,
    Refused,
    Unreachable,
    can_be_opened_up,
    shown,
)
from handrail.sandbox.profile import Access, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.plan.path_rules import Resolver


class PrivateCover:
    """Covers one private place in one plan."""

    def __init__(self, resolver: Resolver, path: bytes) -> None:
        self._resolver = resolver
        self._path = path

    def make(self) -> None:
        """Add what hides it to the plan; raises Refused."""
        resolver = self._resolver
        try:
            opened = resolver.open(self._path, resolver.not_writable)
        except Unreachable as closed:
            parent = os.path.dirname(closed.path)
            now = look(parent, follow=False)
            if now is not None and now[2] != stat.S_IFDIR:  # for root a file looks closed
                self._missing(closed.path)
            else:
                resolver.keep_closed(parent, Access.DENY)
            return
        except Missing as missing:
            self._missing(missing.path)
            return
        except Crossed as crossed:
            self._crossed(crossed.link)
            return
        except Refused:
            return  # out of reach for us, so for the command
        resolver.note(self._path, follow=True)
        if self.is_mask(opened.path):
            self._mask(opened.path, directory=opened.is_directory)
            return
        self._limit(opened.path, readable=private_places.is_readable(self._path))

    def _limit(self, path: bytes, *, readable: bool) -> None:
        resolver = self._resolver
        limit = Access.READ if readable else Access.DENY
        more = (Access.WRITE,) if readable else (Access.READ, Access.WRITE)
        for inner, access in list(resolver.rules.items()):
            if access not in more or inner == path or not within(inner, path):
                continue
            if not private_places.is_workspace(inner):
                resolver.rules[inner] = limit
        if resolver.plan.access(path) in more:
            resolver.rules.pop(path, None)
            resolver.rule(path, limit)

    def _missing(self, at: bytes) -> None:
        """``at`` is the first component that is not there."""
        resolver = self._resolver
        parent = os.path.dirname(at)
        resolver.note(at)
        if resolver.plan.access(parent) is not Access.WRITE:
            return  # it cannot be made inside
        now = look(parent, follow=False)
        if now is not None and now[2] != stat.S_IFDIR:
            self._in_the_way(parent)
        elif at != self._path and self._made_above():
            self.make()
        else:
            directory = at == self._path and private_places.is_directory(self._path)
            self._mask(at, directory=directory)

    def _made_above(self) -> bool:
        """Make ``~/.local/state`` or ``~/.config`` rather than cover what other programs use."""
        homes = private_places.default_state_home(), private_places.default_config_home()
        if os.fsdecode(self._path) not in homes:
            return False
        try:
            private_files.make_above(self._path)
        except OSError:
            return False
        return os.path.isdir(os.path.dirname(self._path))

    def _in_the_way(self, path: bytes) -> None:
        """A file where a directory above ours would be: a cover, or the user's own."""
        if self.is_mask(path):
            self._mask(path, directory=False)
        else:
            self._resolver.carve(path, Access.READ)

    def _crossed(self, link: bytes) -> None:
        if private_places.is_retired(self._path):
            return  # it is never used, so it cannot be redirected
        raise Refused(
            f"{shown(self._path)}, where handrail keeps its own files, leads over the symbolic"
            f" link {shown(link)}, which a command could replace; set XDG_STATE_HOME (or what"
            " names that place) to its real path, or make a smaller directory writable"
        )

    def is_mask(self, path: bytes) -> bool:
        """Whether it is there only because another sandbox covers it."""
        resolver = self._resolver
        now = look(path, follow=False)
        if now is None or path in resolver.rules or resolver.plan.access(path) is not Access.WRITE:
            return False
        if now[2] == stat.S_IFREG:
            return resolver.registry.is_mask(path, (now[0], now[1]))
        return resolver.is_mask(path, now)

    def _mask(self, path: bytes, *, directory: bool) -> None:
        resolver = self._resolver
        parent = os.path.dirname(path)
        resolver.note_missing(path)
        if can_be_opened_up(parent):
            resolver.masks[path] = Placeholder(path, directory)
