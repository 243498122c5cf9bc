"""The kinds of sandboxes that wait, and those of each kind."""

from __future__ import annotations

from handrail.process.keeper_client.answers import Spawned
from handrail.process.spec import ProcessSpec
from handrail.sandbox.bwrap.instance import RunningSandbox
from handrail.sandbox.light_dataclass import Frozen
from handrail.sandbox.loopback import Joining
from handrail.sandbox.plan.plan import Plan
from handrail.sandbox.sandboxed_command import SandboxedCommand
from handrail.sandbox.warm import demand
from handrail.sandbox.warm.template import Template
from handrail.sandbox.warm.templates import Family
from handrail.sandbox.warm.waiting_sandbox import WaitingSandbox


class Kind(Frozen):
    """What commands have in common that can use the same sandbox, if their plans are alike."""

    family: Family
    tty: bool
    pipe_stdin: bool
    lasting: bool

    @property
    def over(self) -> bool:
        """Whether no command of this kind can come any more: its network was let go of."""
        network = self.family.network
        return network is not None and network.fd < 0


def kind_of(
    last: Kind | None, command: ProcessSpec, plan: Plan, joining: Joining | None, *, lasting: bool
) -> Kind:
    """The kind of a command; ``last``, whose hash is known, if it is that."""
    profile, network = plan.public_profile, None if joining is None else joining.network
    if (
        last is not None
        and last.family.profile is profile
        and last.family.network is network
        and (last.tty, last.pipe_stdin) == (command.tty, command.pipe_stdin)
        and last.lasting is lasting
    ):
        return last
    return Kind(Family(profile, network), command.tty, command.pipe_stdin, lasting)


class Line:
    """Those of one kind that wait, and what the last command had."""

    def __init__(self, plan: Plan) -> None:
        self.standing: list[WaitingSandbox] = []
        self.demand = demand.Demand()
        self.plan = plan
        self.joining: Joining | None = None


class Begun(Frozen):
    """A sandbox that is being set up."""

    kind: Kind
    template: Template
    made: SandboxedCommand
    running: RunningSandbox
    spawned: Spawned
    spec: ProcessSpec
