"""The ledger of quotas: how much of each tenant's quota was granted to which driver.  Pure.

Drivers take what they need, in chunks while there is plenty, so that most workspaces cost no call.
What drivers have taken counts; and what nodes hold for owners without a driver.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Workspaces that a driver gets at once while there is plenty.
CHUNK = 16
#: There is plenty while so many chunks are left.
_PLENTY = 8

Counts = dict[str, float]
WHAT = ("workspaces", "cpus", "memory")


class QuotaLedger:
    """The quotas of all tenants, and what of them is taken."""

    def __init__(self, limits: Mapping[str, Mapping[str, float]]) -> None:
        self._limits = limits
        #: By driver and tenant.
        self._granted: dict[str, dict[str, Counts]] = {}
        self._owners: dict[str, str] = {}
        #: By tenant and owner, as the nodes last told.
        self._held: dict[str, dict[str, Counts]] = {}

    def grant(
        self, driver: str, owner: str, tenant: str, needed: Counts
    ) -> tuple[Counts | None, tuple[str, float, float] | None]:
        """Grant a driver a part of a tenant's quota, or return the reason for a refusal."""
        limits = self._limits.get(tenant)
        self._owners[driver] = owner
        if limits is None:
            return dict(needed), None
        others = self._others(driver, tenant)
        for what, limit in limits.items():
            if needed[what] > 0 and others[what] + needed[what] > limit + 1e-9:
                mine = self._granted.get(driver, {}).get(tenant, _none())
                return None, (what, limit, others[what] + mine[what])
        granted = dict(needed)
        if needed["workspaces"] and all(
            limit - others[what] - needed[what] > _PLENTY * CHUNK * _each(needed, what)
            for what, limit in limits.items()
        ):
            for what in WHAT:
                granted[what] += CHUNK * _each(needed, what)
        self._granted.setdefault(driver, {})[tenant] = granted
        return granted, None

    def _others(self, driver: str, tenant: str) -> Counts:
        """Sum the use of all others: what was granted, or what nodes hold if that is more."""
        granted: dict[str, Counts] = {}
        for name, grants in self._granted.items():
            if name != driver:
                _add(granted.setdefault(self._owners[name], _none()), grants.get(tenant, _none()))
        held = dict(self._held.get(tenant, {}))
        held.pop(self._owners[driver], None)  # the driver itself counts that
        total = _none()
        for owner in {*granted, *held}:
            counts = (granted.get(owner, _none()), held.get(owner, _none()))
            _add(total, {what: max(one[what] for one in counts) for what in WHAT})
        return total

    def told(self, held: dict[str, dict[str, Counts]]) -> None:
        """The nodes have told what they hold, by tenant and owner."""
        self._held = held

    def gone(self, driver: str) -> None:
        """A driver is gone; what it has left is counted on the nodes."""
        self._granted.pop(driver, None)
        self._owners.pop(driver, None)


def _each(needed: Counts, what: str) -> float:
    return needed[what] / max(1.0, needed["workspaces"])


def _none() -> Counts:
    return dict.fromkeys(WHAT, 0.0)


def _add(total: Counts, more: Counts) -> None:
    for what in WHAT:
        total[what] += more[what]
