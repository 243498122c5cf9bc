"""How often the sandbox of one call is tried, and what each try learns from the last.

A plan names what was looked at.  Until bwrap has mounted it other processes create, rename and
remove names, so a plan may have to be made again.  One ``Tries`` goes with a call from its first
plan to the sandbox that stands, and everything that fails in between is counted here: loops inside
loops would multiply.

What was found in a shared directory such as ``/tmp`` belongs to other programs and may vanish at
any time.  A later try covers only what the try before covered too: what has come since is like what
comes after the sandbox was made.  So tries come to an end however fast that directory changes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.plan.plan import Plan
    from handrail.start_errors import SandboxError

#: Plans of one call, the first one included.
MOST = 8


class Tries:
    """The budget of one call."""

    __slots__ = ("failures", "plan")

    def __init__(self) -> None:
        #: Tries that came to nothing.
        self.failures = 0
        #: The plan of the last try that had one.
        self.plan: Plan | None = None

    @property
    def found(self) -> frozenset[bytes] | None:
        """The names of shared directories to cover; None: everything that is found."""
        return None if self.plan is None else self.plan.found_in_shared()

    def failed(self, problem: SandboxError) -> None:
        """Count a try that came to nothing; raises its problem when it was the last."""
        self.failures += 1
        if self.failures >= MOST:
            raise problem
