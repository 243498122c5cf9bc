"""The network that commands share: made, joined, held and let go."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.errors import SandboxUnavailable
from handrail.filesystem.pool import FilePool
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox import loopback
from handrail.sandbox.loopback import LoopbackNetwork, LoopbackNetworks, is_shareable, key_of
from handrail.sandbox.profile import Access, Profile, Rule
from tests.sandbox.arena import ORDINARY_UID, as_uid, python_for

READ = Profile(rules=(Rule(b"/", Access.READ),))
#: Runs two commands at once in one workspace and says what they see.
_SCRIPT = """
import sys
from handrail import Workspace
from handrail.keeper.seccomp import spawn
if sys.argv[2] == "program":
    spawn._startable.append(True)  # for the prelude of the keeper, which is another process
    import handrail.sandbox.bwrap.command as command, handrail.sandbox.loopback as loopback
    class Nowhere:
        PROGRAM = spawn.PROGRAM
        startable = staticmethod(lambda: False)
    command.seccomp_spawn = loopback.seccomp_spawn = Nowhere
command = (
    "readlink /proc/self/ns/net; id -u; ls /proc/self/fd | wc -l; wc -l < /proc/net/dev;"
    " grep -c . /proc/self/uid_map; grep CapEff /proc/self/status; cd /proc/self/ns;"
    " readlink user pid mnt ipc; echo end; read line"
)
with Workspace(sys.argv[1]) as ws:
    both = [ws.start(command) for _ in range(2)]
    for one in both:
        assert one.wait_for("end", timeout=60).match, one.result()
    for one in both:
        one.close_stdin()
    print([one.result().stdout.split() for one in both])
"""


@pytest.fixture(params=[True, False], ids=["stub", "program"])
def _how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not seccomp_spawn.startable():
        pytest.skip("this machine has no stubs")
    monkeypatch.setattr(seccomp_spawn, "_startable", [request.param])


@pytest.mark.usefixtures("_how")
def test_a_network_of_its_own() -> None:
    network = LoopbackNetwork.make()
    try:
        assert os.fstat(network.fd).st_ino != os.stat("/proc/self/ns/net").st_ino
        first, second = (network.join("n", "k", managed=True) for _ in range(2))
        assert (first.address, second.address) == ("127.128.0.1", "127.128.0.2")
        assert network.join("n", "k", managed=False).address == ""
        network.note("127.128.1.0")
        assert network.join("n", "k", managed=True).address == "127.128.1.1"
    finally:
        network.close()


def test_one_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loopback, "_make", refused)
    with pytest.raises(SandboxUnavailable, match="cannot be made: No space left"):
        LoopbackNetwork.make()


def test_who_shares() -> None:
    same = key_of(READ, "")
    assert key_of(READ._replace(private=(b"/x",), own_code=()), "") == same  # they change
    for other in (
        READ._replace(rules=(Rule(b"/", Access.WRITE),)),
        READ._replace(private_tmp=b"/t"),
        READ._replace(protected=()),
        READ._replace(managed=True),
    ):
        assert key_of(other, "") != same
    assert key_of(READ, "hosts") != same
    assert is_shareable(READ)
    assert not is_shareable(READ._replace(network=True))
    assert is_shareable(READ._replace(network=True, managed=True))
    assert not is_shareable(READ._replace(sandboxed=False))


def test_networks_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "MOST", 3)
    networks = LoopbackNetworks()
    told: list[str] = []
    one = networks.joiner("a")(READ)
    assert one == networks.joiner("a")(READ)
    managed = networks.joiner("a", "hosts", told.append)(READ._replace(managed=True))
    assert one is not None
    assert managed is not None
    assert told == [managed.address]
    assert networks.joiner("a")(READ._replace(network=True)) is None
    assert [network.fd for network in networks.named("a")] == [one.network.fd, managed.network.fd]
    networks.drop("a")
    assert not list(networks.named("a"))
    with pytest.raises(SandboxUnavailable, match="was closed"):
        one.network.copied()  # its number may be another file's by now
    networks.revive("b", "key", os.getpid(), "127.128.0.9")  # on its way to a network of its own
    assert not list(networks.named("b"))
    with subprocess.Popen(
        ["unshare", "-rn", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        cat.stdin.write(b"x")
        cat.stdin.flush()
        cat.stdout.read(1)
        networks.revive("b", "key", cat.pid, "127.128.0.9")
        networks.revive("b", "key", 0, "")
        inside = os.stat(f"/proc/{cat.pid}/ns/net").st_ino
        cat.stdin.close()
    (found,) = networks.named("b")
    assert os.fstat(found.fd).st_ino == inside
    assert found.join("b", "key", managed=True).address == "127.128.0.10"
    networks.revive("c", "key", 2**22 + 1, "")  # it has ended
    assert not list(networks.named("c"))
    networks.close()


def test_a_network_in_use_is_not_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "MOST", 3)
    networks = LoopbackNetworks()
    awaited = networks.joiner("awaited")(READ)  # its command has not been started yet
    networks.joiner("unused")(READ)
    argv = ["unshare", "-rn", "cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        cat.stdin.write(b"x")
        cat.stdin.flush()
        cat.stdout.read(1)
        networks.revive("used", "key", cat.pid, "")
        for name in "abcd":
            networks.joiner(name)(READ)
        known = ("awaited", "unused", "used", *"abcd")
        held = [name for name in known if list(networks.named(name))]
        assert held == ["awaited", "used", "d"]
        cat.stdin.close()
    del awaited
    networks.joiner("e")(READ)
    assert [name for name in (*known, "e") if list(networks.named(name))] == ["used", "d", "e"]
    networks.close()


async def test_a_network_is_made_in_a_thread() -> None:
    networks = LoopbackNetworks()
    pool = FilePool()
    assert networks.preparation("a", READ._replace(network=True)) is None
    first, second = networks.preparation("a", READ), networks.preparation("a", READ)
    assert first is not None
    assert second is not None
    await asyncio.gather(first.in_thread(pool), second.in_thread(pool))
    (network,) = networks.named("a")  # one is enough
    assert networks.preparation("a", READ) is None
    joining = networks.joiner("a")(READ)
    assert joining is not None
    assert joining.network is network
    late = networks.preparation("b", READ)
    assert late is not None
    networks.close()
    await late.in_thread(pool)
    assert not list(networks.named("b"))
    pool.close()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="another user needs setpriv")
@pytest.mark.parametrize("how", ["stub", "program"])
@pytest.mark.parametrize("uid", sorted({os.getuid(), ORDINARY_UID}))
def test_a_sandbox_keeps_everything_else_of_its_own(tmp_path: Path, uid: int, how: str) -> None:
    """As root and as an ordinary user, by the stub and by the program in its place."""
    words, env = [sys.executable], dict(os.environ)
    home = tmp_path / "home"
    home.mkdir()
    if uid != os.getuid():
        found = python_for(uid)
        if os.getuid() != 0 or found is None:
            pytest.skip("only root can become another user")
        words, env = [*as_uid(uid), found["python"]], {**found["env"], "HOME": str(home)}
        os.chown(home, uid, uid)
        for parent in home.parents:
            if "pytest" in str(parent):
                parent.chmod(parent.stat().st_mode | 0o011)
    root = home / "ws"
    root.mkdir()
    os.chown(root, uid, -1)
    done = subprocess.run(
        [*words, "-c", _SCRIPT, str(root), how],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, two = eval(done.stdout)
    assert one[:6] == two[:6] == [one[0], str(uid), "4", "3", "1", "CapEff:"]
    assert one[6] == "0000000000000000"
    assert all(a != b for a, b in zip(one[7:11], two[7:11], strict=True))  # its namespaces
    own = {os.readlink(f"/proc/self/ns/{name}") for name in ("net", "user", "pid", "mnt", "ipc")}
    assert not own & set(one)
