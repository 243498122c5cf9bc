"""What a workspace asked for, held by control groups for all of its processes together."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from handrail.keeper.limits.cgroups import CHOICE, Cgroups, name_of
from tests.server.workspaces.support import create, listed, options
from tests.support.clients import Client, dialled
from tests.support.eventually import eventually_so
from tests.support.servers import server_process

MIB = 1 << 20
#: Takes so much memory and says so; then waits for a line.
TAKES = (
    'python3 -c \'a = bytearray({size}); a[::4096] = b"x" * len(a[::4096]);'
    " print(1, flush=True); input()'"
)
HEX = set("0123456789abcdef")
SPINS = "while :; do :; done"


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, str]:
    """Where groups of workspaces are made, by what they limit."""
    monkeypatch.setenv(CHOICE, "cgroup")
    made = Cgroups()
    found = {name: os.path.dirname(place.base) for name, place in made.shared.items()}
    made.close()
    if not found:
        pytest.skip("no control groups with memory and cpu are delegated to us on this machine")
    return found


def ours(groups: dict[bytes, str], keeper: int) -> list[str]:
    """The groups of workspaces that a keeper has."""
    return [
        f"{place}/{name_of(keeper)}/{name}"
        for place in groups.values()
        for name in _names(f"{place}/{name_of(keeper)}")
        if name.startswith("of-")
    ]


def _names(path: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(path)
    return []


async def takes(client: Client, key: str, root: str, size: int) -> None:
    await client.shell(key, TAKES.format(size=size), cwd=root, pipeStdin=True)


async def test_processes_of_a_workspace_share_its_memory(
    tmp_path: Path, groups: dict[bytes, str]
) -> None:
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        keeper = server.keeper()
        async with dialled(server.url) as one, dialled(server.url) as two:
            small = await create(one, "small", enter=True, memoryBytes=96 * MIB)
            large = await create(two, "large", enter=True, memoryBytes=1024 * MIB)
            free = await create(two, "free")
            assert [made["enforced"] for made in (small, large, free)] == [True, True, False]
            told = {key: row["enforced"] for key, row in (await listed(one)).items()}
            assert told == {"small": True, "large": True, "free": False}
            await takes(one, "first", small["root"], 60 * MIB)
            await one.until_output("first", b"1")
            await takes(two, "other", large["root"], 60 * MIB)
            await two.until_output("other", b"1")
            await takes(one, "second", small["root"], 60 * MIB)  # not beside the first one
            ended = await one.until(
                lambda: [key for key in ("first", "second") if one._event(key, "exited")]
            )
            found = {row["processId"]: row for row in (await one.call("process/list"))["processes"]}
            assert found[ended[0]]["exit"]["limit"] == "memoryBytes", found
            assert not two._event("other", "exited")
            await one.call("workspace/release", workspaceId="small", owner="o")
            await two.call("workspace/release", workspaceId="large", owner="o")
            await eventually_so(lambda: not ours(groups, keeper))


async def test_processes_of_a_workspace_share_its_cpus(
    tmp_path: Path, groups: dict[bytes, str]
) -> None:
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        keeper = server.keeper()
        async with dialled(server.url) as client:
            made = await create(client, enter=True, cpuMillis=100)
            for key in ("a", "b"):
                await client.shell(key, SPINS, cwd=made["root"])
            around = next(p for p in ours(groups, keeper) if p.startswith(groups[b"cpus"]))
            assert quota(around) == "10000"
            assert len([one for one in _names(around) if HEX.issuperset(one)]) == 2
            await eventually_so(lambda: held_back(around))
            await client.call("workspace/release", workspaceId=made["id"], owner="o")
            await eventually_so(lambda: not ours(groups, keeper))


def quota(path: str) -> str:
    """Microseconds of every 100000 that a group may have."""
    for name in ("cpu.max", "cpu.cfs_quota_us"):
        with contextlib.suppress(FileNotFoundError):
            return Path(path, name).read_text().split()[0]
    return ""


def held_back(path: str) -> bool:
    """Whether the kernel has held back what is in a group."""
    counted = dict(line.split() for line in Path(path, "cpu.stat").read_text().splitlines())
    return int(counted["nr_throttled"]) > 0


async def test_without_groups_resources_are_counted_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOICE, "walk")
    with server_process(tmp_path / "s", *options(tmp_path / "d")) as server:
        async with dialled(server.url) as client:
            made = await create(client, memoryBytes=96 * MIB, cpuMillis=100, enter=True)
            assert made["enforced"] is False
            await takes(client, "p", made["root"], 200 * MIB)
            await client.until_output("p", b"1")
            assert (await client.call("workspace/list"))["share"]["freeCpuMillis"] == 3900
