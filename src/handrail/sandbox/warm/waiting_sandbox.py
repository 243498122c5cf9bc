"""A sandbox that was made ahead and waits for its command, and whether it may still be used.

Its mounts were made when it was set up.  A cold start would make them now, so it is used only while
that would make no difference: its plan is the one that a cold start would take, and the kernel has
reported no change of its mounts.  A mount goes away with the name that it covers; a name that is
moved takes its mount along, and then the plan is not true any more.
"""

from __future__ import annotations

import os
import select

from handrail.sandbox.bwrap.arguments import Bind, Empty, EmptyFile
from handrail.sandbox.bwrap.premount import IF_THERE
from handrail.sandbox.plan.safe_open import Exchanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.process.keeper_client.spawn_children import Spawned
    from handrail.sandbox.bwrap.instance import RunningSandbox
    from handrail.sandbox.plan.plan import Plan
    from handrail.sandbox.sandboxed_command import SandboxedCommand


class WaitingSandbox:
    """A sandbox, the child that waits in it, and what the kernel says of its mounts."""

    __slots__ = (
        "_changed",
        "_changes",
        "_mounted",
        "_mounts",
        "_plan",
        "made",
        "running",
        "spawned",
    )

    def __init__(
        self, plan: Plan, made: SandboxedCommand, running: RunningSandbox, spawned: Spawned
    ) -> None:
        """Raises OSError when its mounts cannot be looked at, Exchanged when they are not those of
        the plan any more."""
        self._plan = plan
        self._mounted = plan.mounted()
        self.made = made
        self.running = running
        self.spawned = spawned
        # Opened first: what changes from here on is reported.
        self._mounts = os.open(f"/proc/{running.first()}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = b""
            while piece := os.read(self._mounts, 1 << 16):
                text += piece
            missing = _places(plan) - {line.split(b" ", 5)[4] for line in text.splitlines()}
            if missing:
                raise Exchanged(min(missing))
        except BaseException:
            os.close(self._mounts)
            raise
        self._changed = False
        self._changes = select.poll()
        self._changes.register(self._mounts, select.POLLPRI)
        self._changes.register(spawned.pidfd, select.POLLIN)
        running.hold((self._mounts, *self._fds()))

    def stands(self) -> bool:
        """Whether it lives, and its mounts are those that were made."""
        # The kernel reports a change once: whatever it was, this one is never used any more.
        self._changed = self._changed or bool(self._changes.poll(0))
        return not self._changed

    def is_of(self, plan: Plan) -> bool:
        """Whether its mounts are those of a plan that is true now.

        It may be of another that makes the same, as when a private place that came or went makes no
        difference, or of one that was made for the same profile and is true as well.
        """
        own = self._plan
        if own is plan or self._mounted == plan.mounted():
            return True
        return not own.closed and own.profile == plan.profile and own.still_true()

    def use(self) -> list[int]:
        """From now on it is a command's: its mounts are not looked at any more.

        Gives what is to be covered.  Raises Stale when a name is there that was missing, or
        Refused, and changes nothing then.
        """
        covers = self.running.begin(self._plan.masks)
        os.close(self._mounts)
        return covers

    def close(self) -> None:
        """Close the fds: it is not used."""
        self.running.hold(())
        for fd in (self._mounts, *self._fds()):
            os.close(fd)

    def _fds(self) -> tuple[int, ...]:
        spawned = self.spawned
        listener = () if spawned.listener < 0 else (spawned.listener,)
        return (*spawned.fds, spawned.pidfd, *listener)


def _places(plan: Plan) -> set[bytes]:
    """Where a plan has something mounted before its command comes, as the kernel writes it."""
    places = {step.path for step in plan.steps if isinstance(step, Bind | Empty | EmptyFile)}
    for record in plan.beforehand.split(b"\0")[:-1]:
        how, _, _, path = record.split(b" ", 3)
        if not how.endswith(IF_THERE):
            places.add(path)
    return {_escaped(place) for place in places - {mask.path for mask in plan.masks}}


def _escaped(path: bytes) -> bytes:
    for char in (b"\\", b" ", b"\t", b"\n"):
        path = path.replace(char, b"\\%03o" % char[0])
    return path
