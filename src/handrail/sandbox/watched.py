"""A contained command whose attempts are noted: the plan around it, and a watcher beside it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from handrail.errors import SandboxUnavailable
from handrail.process.spec import Containment, ProcessSpec
from handrail.sandbox import helper
from handrail.sandbox.plan import Plan
from handrail.sandbox.profile import Access, within
from handrail.sandbox.watcher import Watcher, watchable

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

#: The number under which the helper finds its socket, beyond those that a plan needs.
_SOCKET_FD = 300


class Watched:
    """The containment of such a command."""

    def __init__(self, inside: Containment, watcher: Watcher, theirs: socket.socket) -> None:
        self._inside = inside
        self._theirs = theirs
        self.watcher = watcher

    def sent(self) -> None:
        self._theirs.close()
        self._inside.sent()

    #: What is watched is not tried twice: its attempts would be told twice.
    again = None

    async def set_up(self, loop: AbstractEventLoop) -> bool:
        return await self._inside.set_up(loop)

    def abandon(self) -> None:
        self._theirs.close()
        self._inside.abandon()
        self.watcher.close()

    def settle(self, loop: AbstractEventLoop, done: Callable[[], None]) -> None:
        def gone() -> None:
            self.watcher.close()
            done()

        self._inside.settle(loop, gone)

    def signal(self, number: int, *, tree: bool) -> int:
        return self._inside.signal(number, tree=tree)


def watch(spec: ProcessSpec, plan: Plan) -> ProcessSpec:
    """The same contained command, watched; ``containment`` is a ``Watched`` then.

    Raises SandboxUnavailable, and has let go of the containment then.
    """
    inside = spec.containment
    if inside is None:
        raise SandboxUnavailable("only a command that bubblewrap holds can be watched")
    if not watchable():
        inside.abandon()
        raise SandboxUnavailable(
            f"attempts cannot be noted on {os.uname().machine}; leave watchDenials out"
        )
    ours, theirs = socket.socketpair()
    watcher = Watcher(ours, _may_write(plan), network=plan.profile.network)
    stage = (sys.executable, "-I", "-S", "-B", helper.__file__, "watch", str(_SOCKET_FD))
    return replace(
        spec,
        argv=(*(os.fsencode(word) for word in stage), *spec.argv),
        passed=(*spec.passed, (_SOCKET_FD, theirs.fileno())),
        containment=Watched(inside, watcher, theirs),
    )


def _may_write(plan: Plan) -> Callable[[bytes], bool]:
    rules, masks = dict(plan.rules), plan.masks

    def may_write(path: bytes) -> bool:
        if any(within(path, mask.path) for mask in masks):
            return False
        while path not in rules and path != b"/":
            path = os.path.dirname(path)
        return rules.get(path) is Access.WRITE

    return may_write
