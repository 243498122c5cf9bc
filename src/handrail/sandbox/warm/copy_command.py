"""The command that makes a sandbox by copying a template; bubblewrap's: ``bwrap/command.py``."""

from __future__ import annotations

from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox.bwrap.arguments import (
    COPY_FD,
    NAMESPACE_FD,
    SYNC_FD,
)
from handrail.sandbox.bwrap.command import PassedFds, joined, lines
from handrail.sandbox.bwrap.instance import RunningSandbox
from handrail.sandbox.sandboxed_command import BUBBLEWRAP, SandboxedCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.bwrap.instances import Instances
    from handrail.sandbox.loopback import Joining
    from handrail.sandbox.warm.template import Template


def copied(
    template: Template,
    upkeep: Instances,
    *,
    tty: bool,
    lasting: bool,
    joining: Joining | None,
    waits: bool,
) -> SandboxedCommand:
    """A sandbox for a command that it will be told.

    ``waits``: no command is there yet, and missing names are made when it comes; else they are made
    now.  Raises Refused, or Stale when the plan has to be made anew.
    """
    plan, lease = template.plan, None
    if plan.masks:
        lease = plan.registry.prepare() if waits else plan.registry.acquire(plan.masks)
    fds = PassedFds()
    try:
        # Another program joins a shared network before, under the filter.
        announces = template.connects and joining is None
        program = template.program(terminal=tty, lasting=lasting, waits=waits, announces=announces)
        fds.passed = [(NAMESPACE_FD, template.namespace), (COPY_FD, program)]
        if announces:
            fds.passed.append((seccomp_spawn.ITSELF, program))
        elif template.connects:
            fds.give(seccomp_spawn.PROGRAM, upkeep.filter("announce", False))
        if lease is not None:
            fds.passed.append((SYNC_FD, lease.fd))
        words: tuple[bytes, ...] = (b"/proc/self/fd/%d" % COPY_FD,)
        if joining is not None:
            words = (*joined(joining, upkeep, fds, apart=False), *words)
        with upkeep.lock:
            info, ready = lines(fds)
            running = RunningSandbox(
                info,
                tuple(fds.closing),
                lease,
                tty,
                ready,
                None,
                upkeep,
                trusted=waits,
                copied=True,
                covering=waits and lease is not None,
            )
    except BaseException:
        fds.close()
        if lease is not None:
            lease.release()
        raise
    made = SandboxedCommand(words, b"/", {}, tuple(fds.passed), BUBBLEWRAP, running)
    return made if joining is None else made._replace(joining=joining)
