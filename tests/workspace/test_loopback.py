"""Commands of a workspace have one loopback, near and far, whatever their network is."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from handrail import Managed, Profile, Workspace
from handrail.network.settings import Network
from tests.support.eventually import eventually
from tests.support.servers import server_process
from tests.workspace.inner_server import ask, listening

#: Listens on an abstract name and passes its directory on to what connects; or takes one.
_GIVE = """
import os, socket
with socket.socket(socket.AF_UNIX) as s:
    s.bind("\\0handrail-test"); s.listen(); print("ready", flush=True)
    conn, _ = s.accept()
    socket.send_fds(conn, [b"x"], [os.open("/", os.O_RDONLY)])
"""
_TAKE = """
import os, socket
with socket.socket(socket.AF_UNIX) as s:
    try:
        s.connect("\\0handrail-test")
    except OSError as error:
        print(type(error).__name__)
    else:
        print(len(socket.recv_fds(s, 1, 1)[1]))
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def namespaces() -> set[int]:
    """The network namespaces of all processes that can be looked at."""
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            found.add(os.stat(f"/proc/{name}/ns/net").st_ino)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("network", ["off", Managed(unlisted="deny")], ids=["off", "managed"])
def test_one_command_reaches_what_another_listens_on(
    at: str | None, root: Path, network: Network
) -> None:
    with Workspace(root, at=at, network=network) as ws:
        server = listening(ws, 8123)
        assert ws.run(ask("127.0.0.1", 8123)).stdout == "hello there\n"
        own = int(ws.run("readlink /proc/self/ns/net").stdout.strip()[5:-1])
        assert own in namespaces()
        six = listening(ws, 8124, "::1")
        assert ws.run(ask("::1", 8124)).stdout == "hello there\n"
        server.terminate()
        assert ws.run(ask("127.0.0.1", 8123)).stdout == "ConnectionRefusedError\n"
        six.terminate()
    eventually(lambda: own not in namespaces(), "the network ends with its workspace")


def test_other_permissions_have_another_loopback(root: Path) -> None:
    (root / "more").mkdir()
    with Workspace(root) as ws:
        listening(ws, 8123)
        for options in (
            {"network": Managed()},
            {"network": "open"},
            {"sandbox": "read-only"},
            {"sandbox": Profile(deny=("more",))},
        ):
            refused = ws.run(ask("127.0.0.1", 8123), **options)  # type: ignore[call-overload]
            assert refused.stdout == "ConnectionRefusedError\n", options
    with Workspace(root) as other:
        assert other.run(ask("127.0.0.1", 8123)).stdout == "ConnectionRefusedError\n"


def test_abstract_names_are_those_of_the_network(root: Path) -> None:
    """Open files can be passed over them: so only among commands that may do the same."""
    give, take = ([sys.executable, "-I", "-c", script] for script in (_GIVE, _TAKE))
    with Workspace(root) as ws:
        assert ws.start(give).wait_for("ready", timeout=30).match
        assert ws.run(take, sandbox="read-only").stdout == "ConnectionRefusedError\n"
        assert ws.run(take).stdout == "1\n"


def test_a_way_out_names_its_command(at: str | None, root: Path) -> None:
    """No address of the proxies leads a command to that of another one."""
    network = Managed(unlisted="deny")
    script = """
import socket, sys
for host in ("127.0.0.1", "0.0.0.0", *(f"127.128.0.{n}" for n in range(1, 4))):
    s = socket.create_connection((host, 800), 20)
    s.sendall(b"CONNECT %b.x.example:443 HTTP/1.1\\r\\n\\r\\n" % sys.argv[1].encode())
    assert b"403" in s.recv(99)
    s.close()
six = socket.socket(socket.AF_INET6)
six.connect(("::ffff:127.128.0.1", 800))
six.sendall(b"CONNECT %b.x.example:443 HTTP/1.1\\r\\n\\r\\n" % sys.argv[1].encode())
assert b"403" in six.recv(99)
print("done", flush=True)
sys.stdin.read()
"""
    with Workspace(root, at=at, network=network) as ws:
        words = [sys.executable, "-I", "-c", script]
        started = [ws.start([*words, name]) for name in ("one", "two")]
        for process in started:
            assert process.wait_for("done", timeout=60).match, process.result()
        for name, process in zip(("one", "two"), started, strict=True):
            process.close_stdin()
            result = process.result()
            assert result.ok
            assert [(d.host, d.count) for d in result.denials] == [(f"{name}.x.example", 6)]


def test_a_server_that_takes_over_finds_the_network(tmp_path: Path, root: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    port = free_port()
    options = {"listen": f"ws://127.0.0.1:{port}"}
    with ExitStack() as stack:
        first = stack.enter_context(server_process(state, **options))
        ws = Workspace(root, at=first.url)
        server = listening(ws, 8123)
        first.stop(signal.SIGKILL)
        second = stack.enter_context(server_process(state, **options))
        assert second.url == first.url
        assert ws.run(ask("127.0.0.1", 8123)).stdout == "hello there\n"
        assert server.running
        ws.close()
