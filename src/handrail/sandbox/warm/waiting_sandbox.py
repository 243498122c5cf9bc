"""A sandbox that was made ahead and waits for its command, and whether it may still be used.

Its mounts are a copy of its template's.  A cold start would make them now, so it is used only while
that would make no difference: the template is of a plan that is true, and the kernel has reported
no change of the mounts of either.
"""

from __future__ import annotations

import os
import select

from handrail.sandbox.plan.safe_open import Exchanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.process.keeper_client.answers import Spawned
    from handrail.sandbox.bwrap.instance import RunningSandbox
    from handrail.sandbox.sandboxed_command import SandboxedCommand
    from handrail.sandbox.warm.template import Template


class WaitingSandbox:
    """A sandbox, the child that waits in it, and what the kernel says of its mounts."""

    __slots__ = ("_changed", "_changes", "_mounts", "made", "running", "spawned", "template")

    def __init__(
        self,
        template: Template,
        made: SandboxedCommand,
        running: RunningSandbox,
        spawned: Spawned,
    ) -> None:
        """Raises OSError when its mounts cannot be looked at, Exchanged when they may not be those
        of the template."""
        self.template = template
        self.made = made
        self.running = running
        self.spawned = spawned
        # Opened first: what changes from here on is reported, and what changed before has changed
        # the template.
        self._mounts = os.open(f"/proc/{running.first()}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        if not template.stands():
            os.close(self._mounts)
            raise Exchanged(b"/")
        self._changed = False
        self._changes = select.poll()
        self._changes.register(self._mounts, select.POLLPRI)
        self._changes.register(spawned.pidfd, select.POLLIN)
        running.hold((self._mounts, *self._fds()))

    def stands(self) -> bool:
        """Whether it lives, and its mounts are those that were made."""
        # The kernel reports a change once: whatever it was, this one is never used any more.
        self._changed = self._changed or bool(self._changes.poll(0)) or not self.template.stands()
        return not self._changed

    def use(self) -> list[int]:
        """From now on it is a command's: its mounts are not looked at any more.

        Gives what is to be covered.  Raises Stale when a name is there that was missing, or
        Refused, and changes nothing then.
        """
        covers = self.running.begin(self.template.plan.masks)
        if covers:
            os.close(self._mounts)  # placeholders are removed only when nothing is mounted on them
        else:
            self.running.keep_mounts(self._mounts)
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
