"""Which owners are connected, and since when the others are not.  Pure.

An owner is *held* while at least one connection has asked for that: for the tenant of its token,
or, without one, for every tenant.  The lease of a workspace runs from the moment at which its
owner's last connection went, or from the workspace's own beginning if that was later.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple


class Owner(NamedTuple):
    """An owner of workspaces; two tenants may use the same name for two of them."""

    #: None, of a holder: the owners of that name of every tenant.
    tenant: str | None
    name: str

    def everywhere(self) -> Owner:
        return Owner(None, self.name)


class Leases:
    """The holders of every owner."""

    def __init__(self) -> None:
        self._holders: dict[Owner, set[Hashable]] = {}
        #: When the last holder of an owner went, by the machine's monotonic clock.
        self._gone: dict[Owner, float] = {}

    def hold(self, owner: Owner, holder: Hashable) -> None:
        self._holders.setdefault(owner, set()).add(holder)
        self._gone.pop(owner, None)

    def let_go(self, holder: Hashable, now: float) -> list[Owner]:
        """A connection is gone; the owners that it was the last to hold."""
        left = [owner for owner, holders in self._holders.items() if holders == {holder}]
        for owner in left:
            del self._holders[owner]
            self._gone[owner] = now
        for holders in self._holders.values():
            holders.discard(holder)
        return left

    def is_held(self, owner: Owner) -> bool:
        return owner in self._holders or owner.everywhere() in self._holders

    def forget(self, owners: set[Owner]) -> None:
        """Drop what is known of all owners but these, which have workspaces."""
        kept = owners | {owner.everywhere() for owner in owners}
        self._gone = {owner: at for owner, at in self._gone.items() if owner in kept}

    def over(self, owner: Owner, since: float, lease: float) -> float | None:
        """When the lease of a workspace that began at ``since`` is over; None: it is held."""
        if self.is_held(owner):
            return None
        return max(since, self._went(owner) or since) + lease

    def _went(self, owner: Owner) -> float | None:
        """When the last connection of an owner that is not held went; None: there was none."""
        both = (self._gone.get(owner), self._gone.get(owner.everywhere()))
        return max((at for at in both if at is not None), default=None)

    # --- for the next server --------------------------------------------------------------------

    def saved(self, owners: Iterable[Owner]) -> list[tuple[Owner, float]]:
        """The owners among these that have lost their connection, and when."""
        gone = ((owner, self._went(owner)) for owner in owners if not self.is_held(owner))
        return [(owner, at) for owner, at in gone if at is not None]

    def restore(
        self, saved: Iterable[tuple[Owner, float]], owners: Iterable[Owner], now: float
    ) -> None:
        """Go on after another server: whose owner was held until it ended is given until now."""
        known = dict(saved)
        self._gone = {owner: known.get(owner, now) for owner in owners}
