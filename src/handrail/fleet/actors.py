"""The two kinds of Ray actors of a fleet: one registrar, and a supervisor for each share.

The registrar knows the members and the quotas, and holds templates in Ray's object store.  Ray
restarts it with its arguments; it then finds groups and supervisors by their names.  A supervisor
lives in the placement group of its share; it starts the server there, restarts it, and tells the
registrar what is new.  Neither is between a driver and its workspaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from handrail.fleet.actor_names import REGISTRAR, group_name, namespace, supervisor_name
from handrail.fleet.settings import FleetSettings
from handrail.fleet.shares import membership, tokens
from handrail.fleet.shares.membership import ENDED, Membership, Share
from handrail.fleet.shares.quota_ledger import QuotaLedger
from handrail.fleet.shares.server import ShareOptions
from handrail.fleet.shares.supervisor import ShareSupervisor

log = logging.getLogger(__name__)

#: The longest pause between two looks at the machines.
_LOOK_SECONDS = 1.0
#: How often a supervisor says that it lives.
_BEAT_SECONDS = 10.0
_USAGE_SECONDS = 10.0
#: A driver that has not asked for news for so long is gone, or slow: then what nodes hold counts.
_DRIVER_SECONDS = 15.0
_STOP_SECONDS = 40.0
_RECOUNT_SECONDS = 0.5


class Registrar:
    """The members, quotas and templates of one fleet."""

    async def __init__(self, settings: FleetSettings, secret: str) -> None:  # type: ignore[misc]
        self._settings = settings
        self._secret = secret
        self._members = Membership()
        self._ledger = QuotaLedger(settings.quotas)
        self._recounted = 0.0
        self._templates: dict[str, dict[int, Any]] = {}
        self._pieces: dict[str, int] = {}
        self._drivers: dict[str, float] = {}
        #: When a driver was last there, and how many wait for news now.
        self._last_driver = time.monotonic()
        self._waiting = 0
        self._news = asyncio.Event()
        self._poke = asyncio.Event()
        self._known = asyncio.Event()
        self._stopping = False
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    # --- drivers -------------------------------------------------------------------------------

    async def configuration(self) -> tuple[FleetSettings, str]:
        """The settings and the secret, for a driver."""
        return self._settings, self._secret

    async def changes(
        self, driver: str, epoch: str, step: int, seconds: float
    ) -> tuple[str, int, bool, list[dict[str, Any]], str]:
        """Wait for changes after a step, for so many seconds, and return them.

        Always ends by itself: a caller cannot cancel a call that Ray Client makes for it.
        """
        await self._known.wait()
        self._drivers[driver] = time.monotonic()
        if epoch == self._members.epoch and step == self._members.step:
            self._waiting += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            self._waiting -= 1
        self._last_driver = time.monotonic()
        whole, found = self._members.since(epoch, step)
        return (
            self._members.epoch,
            self._members.step,
            whole,
            found,
            "stopping" if self._stopping else "up",
        )

    async def leave(self, driver: str) -> None:
        """A driver has left in order."""
        self._drivers.pop(driver, None)
        self._ledger.gone(driver)

    async def grant(
        self, driver: str, owner: str, tenant: str, needed: dict[str, float], exact: bool
    ) -> tuple[dict[str, float] | None, tuple[str, float, float] | None]:
        """See ``QuotaLedger.grant``; before a refusal the nodes are asked once more.

        Of those that wait for a quota, not ``exact``, many ask again and again: a recent answer of
        the nodes is good enough for them.
        """
        self._drivers[driver] = time.monotonic()
        granted, refused = self._ledger.grant(driver, owner, tenant, needed)
        if refused is not None or not self._recounted:
            self._forget_drivers()
            if exact or time.monotonic() - self._recounted > _RECOUNT_SECONDS:
                await self._recount()
            granted, refused = self._ledger.grant(driver, owner, tenant, needed)
        return granted, refused

    async def _recount(self) -> None:
        held: dict[str, dict[str, dict[str, float]]] = {}
        for _, found in await self._usages():
            for tenant, owner, count, cpus, memory in found:
                mine = held.setdefault(tenant, {}).setdefault(
                    owner, {"workspaces": 0.0, "cpus": 0.0, "memory": 0.0}
                )
                mine["workspaces"] += count
                mine["cpus"] += cpus
                mine["memory"] += memory
        self._ledger.told(held)
        self._recounted = time.monotonic()

    async def _usages(self) -> list[tuple[Share, list[tuple[str, str, int, float, int]]]]:
        """Ask each node for its use by tenant and owner; nodes that do not answer are left out."""

        async def one(share: Share) -> Any:
            try:
                async with asyncio.timeout(_USAGE_SECONDS):
                    return share, await self._supervisor(share.id).usage.remote()
            except Exception as error:  # noqa: BLE001 (Ray's errors have no common family)
                log.info("share %s tells no usage: %s", share.id, error)
                return share, None

        ready = [share for share in self._members.living() if share.state == "ready"]
        found = await asyncio.gather(*(one(share) for share in ready))
        return [pair for pair in found if pair[1] is not None]

    async def demand(self, cpu_millis: int, memory_bytes: int) -> None:
        """Workspaces wait for room: one more share, unless one is on its way."""
        bounds = self._settings.shares
        living = self._members.living()
        waiting = any(share.state != "ready" for share in living)
        if bounds is not None and not waiting and len(living) < bounds[1] and not self._stopping:
            await self._add(None)

    # --- templates -----------------------------------------------------------------------------

    async def add_piece(self, digest: str, number: int, count: int, data: bytes) -> None:
        """Keep a piece of an archive in the object store."""
        self._pieces[digest] = count
        self._templates.setdefault(digest, {})[number] = ray.put(data)

    async def template(self, digest: str) -> list[Any] | None:
        """The pieces of an archive, as references; None: it is not here, or not all of it."""
        found = self._templates.get(digest, {})
        if digest not in self._pieces or len(found) < self._pieces[digest]:
            return None
        return [found[number] for number in range(len(found))]

    async def has_template(self, digest: str) -> bool:
        """Whether all of an archive is here."""
        return await self.template(digest) is not None

    # --- supervisors ---------------------------------------------------------------------------

    async def heard(self, share_id: str, report: dict[str, Any]) -> bool:
        """Take the report of a supervisor; False: its share is not wanted, and it has to end."""
        await self._known.wait()
        share = self._members.shares.get(share_id)
        if share is None or share.state in ENDED or self._stopping:
            return False
        moved = share.engine_id and share.engine_id != report["engine_id"]
        if moved and share.url:  # Ray has moved the group: what was on the first machine is lost
            await self._lost(share, "its machine is gone, and Ray has moved the reservation")
            return False
        self._note(share, **report)
        self._watch(share_id)
        return True

    def _note(self, share: Share, **members: Any) -> None:
        if self._members.changed(share, **members):
            self._tell_drivers()

    def _tell_drivers(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _supervisor(self, share_id: str) -> Any:
        return ray.get_actor(supervisor_name(share_id), namespace=namespace(self._settings.name))

    def _watch(self, share_id: str) -> None:
        """Hear at once when a supervisor ends: its machine may have."""
        if share_id in self._lives:
            return

        async def watch() -> None:
            try:
                await self._supervisor(share_id).live.remote()
            except Exception as error:  # noqa: BLE001 (Ray's errors have no common family)
                log.info("the supervisor of %s has ended: %s", share_id, error)
            self._lives.pop(share_id, None)
            self._poke.set()

        self._lives[share_id] = asyncio.get_running_loop().create_task(watch())

    # --- members -------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Look at the machines again and again."""
        try:
            await self._find()
        except Exception:
            log.exception("the shares of the fleet are not found again")
        self._known.set()
        looked = time.monotonic()
        pause = min(_BEAT_SECONDS, self._settings.empty_after, self._settings.lease)
        while not self._stopping:
            try:
                await self._look()
                if time.monotonic() - looked > pause:
                    looked = time.monotonic()
                    await self._tidy()
            except Exception:
                log.exception("a look at the machines failed")
            self._poke.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._poke.wait()

    async def _find(self) -> None:
        """After a restart: the groups of this fleet, and what their supervisors tell."""
        table = await asyncio.to_thread(placement_group_table)
        groups = membership.of_groups(table.values(), group_name(self._settings.name, ""))
        await asyncio.gather(*(self._found(share, state) for share, state in groups))

    async def _found(self, share: Share, group: str) -> None:
        if group == "PENDING" and self._settings.shares is not None:
            await self._go_on_waiting(share)
            return
        try:
            if group != "CREATED":
                raise ValueError(f"its group is {group}")
            supervisor = self._supervisor(share.id)
        except ValueError as error:
            log.warning("share %s is dropped: %s", share.id, error)
            await self._remove(share.id)
            return
        report = {"state": "joining"}
        try:
            async with asyncio.timeout(_BEAT_SECONDS):
                report = await supervisor.report.remote()
        except Exception as error:  # noqa: BLE001 (Ray's errors have no common family)
            # Ray restarts it, as it has us: its server runs on meanwhile, and it will tell.
            log.warning("the supervisor of %s does not answer: %s", share.id, error)
        self._note(share, **report)
        self._watch(share.id)

    async def _go_on_waiting(self, share: Share) -> None:
        """What Ray has not placed goes on waiting; its supervisor will tell."""
        self._note(share)
        try:
            self._supervisor(share.id)
        except ValueError:  # the last registrar ended between the two
            share.cpu_millis = self._settings.share_cpus or 0
            share.memory_bytes = self._settings.share_memory or 0
            self._supervise(share, get_placement_group(group_name(self._settings.name, share.id)))

    async def _look(self) -> None:
        nodes = await asyncio.to_thread(ray.nodes)
        alive = {node["NodeID"] for node in nodes if node["Alive"]}
        for share in self._members.living():
            if share.engine_id and share.engine_id not in alive:
                await self._lost(share, "Ray says that its machine is dead")
            elif share.state != "pending":
                self._watch(share.id)
        if self._stopping:
            return
        bounds = self._settings.shares
        if bounds is None:
            taken = {share.engine_id for share in self._members.living()}
            for engine_id, node in membership.eligible(nodes, self._settings.labels).items():
                if engine_id not in taken:
                    await self._add(engine_id, node)
        else:
            for _ in range(bounds[0] - len(self._members.living())):
                await self._add(None)

    async def _tidy(self) -> None:
        """Drivers that are gone, empty shares, and the fleet itself when it has no more use."""
        now = time.monotonic()
        self._forget_drivers()
        settings = self._settings
        if not settings.named and not self._waiting and now - self._last_driver > settings.lease:
            asyncio.get_running_loop().create_task(self._end_alone())
            return
        if settings.shares is not None and settings.shares[0] < settings.shares[1]:
            for share, usage in await self._usages():
                empty = not sum(entry[2] for entry in usage)
                share.empty_since = (share.empty_since or now) if empty else None
            long = now - settings.empty_after
            spare = membership.to_give_back(self._members.living(), settings.shares[0], long)
            if spare is not None:
                await self._give_back(spare)

    def _forget_drivers(self) -> None:
        early = time.monotonic() - _DRIVER_SECONDS
        for driver in [name for name, asked in self._drivers.items() if asked < early]:
            del self._drivers[driver]
            self._ledger.gone(driver)

    async def _end_alone(self) -> None:
        await self.down()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    async def _add(self, engine_id: str | None, node: dict[str, Any] | None = None) -> None:
        """Ask Ray for one share more, on that machine or where there is room."""
        share = Share(id=f"n-{token_hex(4)}", engine_id=engine_id or "")
        cpus, memory = self._settings.share_cpus, self._settings.share_memory
        if engine_id is not None and (cpus is None or memory is None):
            free = await asyncio.to_thread(_free, engine_id)
            cpus = round(free.get("CPU", 0.0) * 1000) if cpus is None else cpus
            memory = int(free.get("memory", 0)) if memory is None else memory
        share.cpu_millis, share.memory_bytes = cpus or 0, memory or 0
        if node is not None:
            share.labels = dict(node.get("Labels") or {})
        if not share.cpu_millis and not share.memory_bytes:
            return  # nothing is free there
        bundle = {"CPU": share.cpu_millis / 1000, "memory": float(share.memory_bytes)}
        wanted = dict(self._settings.labels)
        if engine_id is not None:
            wanted = {"ray.io/node-id": engine_id}
        group = placement_group(
            [{name: value for name, value in bundle.items() if value}],
            name=group_name(self._settings.name, share.id),
            lifetime="detached",
            bundle_label_selector=[wanted] if wanted else None,
        )
        self._note(share)
        self._supervise(share, group)

    def _supervise(self, share: Share, group: PlacementGroup) -> None:
        ray.remote(Supervisor).options(
            name=supervisor_name(share.id),
            namespace=namespace(self._settings.name),
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=100,
            num_cpus=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
        ).remote(
            self._settings,
            share.id,
            tokens.share_key(self._secret, share.id),
            share.cpu_millis,
            share.memory_bytes,
        )

    async def _lost(self, share: Share, why: str) -> None:
        self._note(share, state="lost", error=why)
        await self._remove(share.id)

    async def _give_back(self, share: Share) -> None:
        self._note(share, state="gone", error="it was empty, and is given back")
        await self._stop(share.id)
        await self._remove(share.id)

    async def _remove(self, share_id: str) -> None:
        """Take a share from Ray: its supervisor and its group."""
        with contextlib.suppress(ValueError):
            ray.kill(self._supervisor(share_id), no_restart=True)
        wanted = group_name(self._settings.name, share_id)
        await asyncio.to_thread(_remove_groups, lambda name: name == wanted)

    async def _stop(self, share_id: str) -> None:
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._supervisor(share_id).stop.remote()
        except Exception as error:  # noqa: BLE001 (Ray's errors have no common family)
            log.warning("the supervisor of %s did not stop its server: %s", share_id, error)

    async def down(self) -> None:
        """End all servers with everything in them, all supervisors and groups."""
        self._stopping = True
        self._tell_drivers()
        self._poke.set()
        await asyncio.wait([self._keeping])
        for task in self._lives.values():
            task.cancel()
        living = [share.id for share in self._members.living()]
        begun = [share.id for share in self._members.living() if share.supervisor_pid is not None]
        await asyncio.gather(*(self._stop(share_id) for share_id in begun))
        for share_id in living:
            with contextlib.suppress(ValueError):
                ray.kill(self._supervisor(share_id), no_restart=True)
        prefix = group_name(self._settings.name, "")
        await asyncio.to_thread(_remove_groups, lambda name: name.startswith(prefix))


def _free(engine_id: str) -> dict[str, float]:
    from ray._private.state import available_resources_per_node

    found = available_resources_per_node()  # type: ignore[no-untyped-call]
    return dict(found.get(engine_id, {}))


def _remove_groups(chosen: Callable[[str], bool]) -> None:
    for entry in placement_group_table().values():
        if chosen(entry["name"]) and entry["state"] != "REMOVED":
            with contextlib.suppress(ValueError):  # removed meanwhile
                remove_placement_group(get_placement_group(entry["name"]))


class Supervisor:
    """Looks after the server of one share; the work is done by ``ShareSupervisor``."""

    async def __init__(  # type: ignore[misc]
        self,
        settings: FleetSettings,
        share: str,
        key: str,
        cpu_millis: int,
        memory_bytes: int,
    ) -> None:
        context = ray.get_runtime_context()
        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._settings = settings
        self._work = ShareSupervisor(
            settings,
            ShareOptions(
                share=share,
                key=key,
                address=address,
                cpu_millis=cpu_millis,
                memory_bytes=memory_bytes,
                min_free=settings.min_free,
                orphan_after=settings.orphan_after,
                tls=settings.tls,
            ),
            engine_id=context.get_node_id(),
            labels={name: str(value) for name, value in context.get_node_labels().items()},
            tell=self._tell,
        )
        self._work.begin()

    def _registrar(self) -> Any:
        return ray.get_actor(REGISTRAR, namespace=namespace(self._settings.name))

    async def _tell(self, share: str, report: dict[str, Any]) -> bool:
        return bool(await self._registrar().heard.remote(share, report))

    async def live(self) -> None:
        """Return when the supervisor has stopped; a caller hears when it dies."""
        await self._work.stopped.wait()

    async def report(self) -> dict[str, Any]:
        """Report the state of the share."""
        return self._work.report

    async def logs(self, lines: int) -> str:
        """The last lines of the server."""
        return await asyncio.to_thread(self._work.server.log, lines)

    async def fetch(self, digest: str) -> str | None:
        """Get an archive from the object store; its path, or None: it is not there."""
        pieces = await self._registrar().template.remote(digest)
        if pieces is None:
            return None
        path = await asyncio.to_thread(self._work.server.receive, f"{digest}-{token_hex(4)}")
        with open(path, "wb") as file:  # noqa: ASYNC230 (written in threads)
            for piece in pieces:
                await asyncio.to_thread(file.write, await piece)
        return path

    async def discard(self, path: str) -> None:
        """Remove an archive that was fetched."""
        await asyncio.to_thread(self._work.server.discard, path)

    async def usage(self) -> list[tuple[str, str, int, float, int]]:
        """The workspaces of its server by tenant and owner: number, processors, memory."""
        return await self._work.usage()

    async def stop(self) -> None:
        """End the server with everything in it."""
        await self._work.stop()
