"""The templates of one server or executor, one for each family of commands."""

from __future__ import annotations

from handrail.sandbox.light_dataclass import Frozen
from handrail.sandbox.profile import Profile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.loopback import LoopbackNetwork
    from handrail.sandbox.plan.plan import Plan
    from handrail.sandbox.warm.template import Template

#: Each has some hundred bytes here, and its mounts in the kernel.
_MOST = 16


class Family(Frozen):
    """What commands have in common whose sandboxes are copies of one template."""

    #: Without the private places: whether they make a difference is seen in the plan.
    profile: Profile
    #: The network that they share, if they share one.
    network: LoopbackNetwork | None


class Templates:
    """Holds them; on one event loop."""

    def __init__(self) -> None:
        self._found: dict[Family, Template] = {}

    def usable(self, family: Family, plan: Plan) -> Template | None:
        """The one that makes what a plan says that is true now; another is given up."""
        found = self._found.get(family)
        if found is not None and not (found.stands() and found.is_of(plan)):
            self._found.pop(family).close()
            return None
        return found

    def put(self, family: Family, template: Template) -> None:
        """Take one in; the oldest goes if there are too many."""
        before = self._found.pop(family, None)
        if before is not None:
            before.close()
        self._found[family] = template
        while len(self._found) > _MOST:
            self._found.pop(next(iter(self._found))).close()

    def keep(self, families: set[Family]) -> None:
        """Give up those of other families: no command has come for a while."""
        for family in self._found.keys() - families:
            self._found.pop(family).close()

    def close(self) -> None:
        """Give up all."""
        self.keep(set())
