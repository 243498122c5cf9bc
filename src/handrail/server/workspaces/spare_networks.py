"""Networks of commands, made ahead for the first sandboxed command of each workspace.

Such a network is made by a program that has to be started and waited for in a thread; made when it
is needed, it was a fifth of the server's work for that command.  A spare one has had no process in
it, and belongs to no workspace before it is taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from handrail.errors import SandboxUnavailable
from handrail.server.workspaces.file_work import FileWork
from handrail.server.workspaces.spares import Spares

if TYPE_CHECKING:
    from handrail.sandbox.loopback import LoopbackNetwork, Preparation

#: The most that are made ahead.
_MOST = 8


class SpareNetworks:
    """Those of one server."""

    def __init__(self, work: FileWork, spawn: Callable[[Awaitable[None]], None]) -> None:
        self._work = work
        self._spares: Spares[LoopbackNetwork] = Spares(_MOST, self._make, spawn)

    def serve(self, preparation: Preparation) -> bool:
        """Give the command that waits for a preparation a spare one; False: there is none."""
        network = self._spares.take()
        if network is None:
            return False
        preparation.done(network)
        return True

    async def _make(self, count: int) -> list[LoopbackNetwork]:
        made = await self._work.quick(_make_some, count)
        if not self._spares.closed:
            return made
        for network in made:
            network.close()
        return []

    def look(self) -> None:
        """Called now and then: let go of those that no command has asked for since the last."""
        if self._spares.unused():
            self._drop()

    def _drop(self) -> None:
        for network in self._spares.give_up():
            network.close()

    def close(self) -> None:
        """Make no more, and leave none."""
        self._spares.close()
        self._drop()


def _make_some(count: int) -> list[LoopbackNetwork]:
    from handrail.sandbox.loopback import LoopbackNetwork

    made: list[LoopbackNetwork] = []
    try:
        while len(made) < count:
            made.append(LoopbackNetwork.make())
    except SandboxUnavailable:
        pass  # told to the command that needs one
    return made
