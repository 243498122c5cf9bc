"""D4 of the fault matrix on each rung of the ladder: an escaping tree, and nobody is left of it.

The tree of the specification: a leader, three children in sessions of their own, and a daemon
that lost its parents and cleared its environment.  Each carries a word by which it is found
again, wherever it went.  The time until the last of them is gone is printed, not asserted.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from handrail.keeper.limits.cgroups import Cgroups, name_of
from tests.support.clients import SocketClient, dialled
from tests.support.eventually import eventually
from tests.support.processes import bearing
from tests.support.servers import server_process
from tests.system.users import ordinary

pytestmark = pytest.mark.fault

TREE = """
for i in 1 2 3; do setsid sleep 1000.$0 & done
(env -i setsid sleep 1000.$0 </dev/null >/dev/null 2>&1 &)
echo ready
wait
"""
#: One that ends and leaves a child behind, again and again: it flees from whoever looks for it.
FLEEING = """
import os, sys, time
print("ready", flush=True)
os.close(1); os.close(2)
while True:
    os.setsid() if os.getpid() != os.getsid(0) else None
    if os.fork():
        os._exit(0)
"""


def cgroups() -> bool:
    groups = Cgroups()
    try:
        return groups.kills is not None
    finally:
        groups.close()


def namespaced(*argv: str) -> list[str]:
    """The same inside a PID namespace, as a sandboxed process is."""
    tool = shutil.which("unshare")
    if tool is None:
        pytest.skip("no unshare on this machine")
    return [tool, "--user", "--map-current-user", "--pid", "--fork", *argv]


def plain(*argv: str) -> list[str]:
    return list(argv)


RUNGS: dict[str, tuple[str, Callable[..., list[str]]]] = {
    "cgroup": ("cgroup", plain),
    "namespace": ("walk", namespaced),
    "walk": ("walk", plain),
}


async def start(client: SocketClient, wrap: Callable[..., list[str]], tty: bool) -> str:
    word = f"{random.SystemRandom().getrandbits(60):020d}"
    await client.start("p", *wrap("/bin/sh", "-c", TREE, word), tty=tty)
    await client.until_output("p", b"ready")
    # What is before the shell in its namespace has the word among its arguments too.
    sleepers = "sleep\0" + "1000." + word
    await asyncio.to_thread(eventually, lambda: len(bearing(sleepers)) == 4, "all of it is there")
    return word


async def gone(word: str, since: float, what: str) -> None:
    await asyncio.to_thread(eventually, lambda: not bearing(word), f"all of it is gone: {what}")
    print(f"\n{what}: gone {1000 * (time.monotonic() - since):.1f} ms after terminate")


@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize("rung", RUNGS)
async def test_d4_nobody_is_left(tmp_path: Path, rung: str, user: str) -> None:
    trees, wrap = RUNGS[rung]
    prefix: tuple[str, ...] = ()
    if user == "root" and os.getuid() != 0:
        pytest.skip("only root can try what root can do")
    if rung == "cgroup" and not cgroups():
        pytest.skip("no control group is delegated to us on this machine")
    if user == "ordinary":
        prefix = ordinary(tmp_path / "home")
    (tmp_path / "home").mkdir(exist_ok=True)
    state = tmp_path / "home" / "state"
    with server_process(state, "--trees", trees, prefix=prefix) as server:
        async with dialled(server.url, handshake=False) as client:
            info = (await client.handshake())["environmentInfo"]["capabilities"]["handrail"]
            if rung == "cgroup" and user == "ordinary" and os.getuid() == 0:
                # Nothing is delegated to it, so the next rung is taken, and said so.
                assert info["treeKillWalk"]
            else:
                assert info["treeKillCgroup" if trees == "cgroup" else "treeKillWalk"]
            word = await start(client, wrap, False)
            since = time.monotonic()
            assert await client.call("process/terminate", processId="p") == {"running": True}
            await gone(word, since, f"{rung}, {user}, pipes")
            await client.until_closed("p")
            await client.call("session/close")
        async with dialled(server.url) as client:
            # With the end of a session, and for a terminal, as well.
            word = await start(client, wrap, True)
            since = time.monotonic()
            await client.call("session/close")
            await gone(word, since, f"{rung}, {user}, tty, end of the session")


#: Several that flee at once below a leader that stays; the interpreter forks faster without a site.
FLEEING_ALL = """
import os, signal, sys
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        os.closerange(0, 3)
        while True:
            if sys.argv[3] == "session":
                os.setsid()
            if os.fork():
                os._exit(0)
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize("kind", ["session", "group"])
async def test_many_that_flee_below_a_leader_are_caught(
    tmp_path: Path, kind: str, user: str
) -> None:
    if user == "root" and os.getuid() != 0:
        pytest.skip("only root can try what root can do")
    home = tmp_path / "home"
    prefix = ordinary(home) if user == "ordinary" else ()
    home.mkdir(exist_ok=True)
    with server_process(home / "state", "--trees", "walk", prefix=prefix) as server:
        async with dialled(server.url) as client:
            for number in range(5):
                word = f"{random.SystemRandom().getrandbits(60):020d}"
                name = f"p{number}"
                argv = (sys.executable, "-I", "-S", "-c", FLEEING_ALL, word, "8", kind)
                await client.start(name, *argv)
                await client.until_output(name, b"ready")
                since = time.monotonic()
                await client.call("process/terminate", processId=name, tree=True)
                await gone(word, since, f"walk, {user}, 8 that flee, {kind}")


@pytest.mark.parametrize("trees", ["cgroup", "walk"])
async def test_d4_one_that_flees_is_caught(tmp_path: Path, trees: str) -> None:
    if trees == "cgroup" and not cgroups():
        pytest.skip("no control group is delegated to us on this machine")
    with server_process(tmp_path / "state", "--trees", trees) as server:
        async with dialled(server.url) as client:
            word = f"{random.SystemRandom().getrandbits(60):020d}"
            await client.start("p", sys.executable, "-I", "-S", "-c", FLEEING, word)
            await client.until_closed("p")
            since = time.monotonic()
            result = await client.call("process/terminate", processId="p", tree=True)
            assert result == {"running": False}
            await gone(word, since, f"{trees}, fleeing")


async def test_no_group_is_left_behind(tmp_path: Path) -> None:
    if not cgroups():
        pytest.skip("no control group is delegated to us on this machine")
    with server_process(tmp_path / "state", "--trees", "cgroup") as server:
        keeper = server.keeper()
        async with dialled(server.url) as client:
            for number in range(5):
                await client.shell(f"p{number}", "sleep 1000 & exit 0")
            await client.start("q", "sleep", "1000")
            made = [path for path in _groups(keeper) if path.is_dir()]
            assert made
            await client.call("session/close")
    assert _groups(keeper) == []


def _groups(keeper: int) -> list[Path]:
    groups = Cgroups()
    try:
        homes = {Path(place.base).parent for place in groups._places()}
    finally:
        groups.close()
    return [path for home in homes if (path := home / name_of(keeper)).exists()]
