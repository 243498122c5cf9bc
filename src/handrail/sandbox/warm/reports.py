"""Taking the kernel's reports on what the end of a sandbox has changed, before the next command.

Names that were covered come and go with each command.  Of many of them the next start would take
the reports first, which is a tenth of it in a workspace with a hundred such names.
"""

from __future__ import annotations

import asyncio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from handrail.sandbox.bwrap.instances import Instances
    from handrail.sandbox.plan.plan import Planner
    from handrail.sandbox.warm.kinds import Kind, Line

#: The client of the command that has ended is told before.
_PAUSE_SECONDS = 0.001


class Reports:
    """Takes them for the profiles in use; on one event loop."""

    def __init__(self, upkeep: Instances, planner: Planner, lines: Mapping[Kind, Line]) -> None:
        self._upkeep = upkeep
        self._planner = planner
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        upkeep.uncovered = self._wake

    def _wake(self) -> None:
        if self._timer is None and not self._loop.is_closed():
            self._timer = self._loop.call_later(_PAUSE_SECONDS, self._take)

    def _take(self) -> None:
        self._timer = None
        for line in self._lines.values():
            self._planner.take_reports(line.plan.profile)

    def close(self) -> None:
        """Take none any more."""
        self._upkeep.uncovered = None
        if self._timer is not None:
            self._timer.cancel()
