"""Sockets that belong to another network namespace, and the loopback of a sandbox."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.network import hosts, link
from handrail.network.config import ManagedNetwork
from handrail.network.inner_sockets import maker
from handrail.network.porter.sandbox_loopback import SandboxLoopback
from handrail.network.porter.stub_resolver import answer
from tests.network.porters import PorterProcess, porter, read_all

#: Sets lo up, listens on a port, and answers each connection with a word; connects where told.
INSIDE = """
import fcntl, socket, struct, sys, threading
control = socket.socket()
fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 1))
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
def serve():
    while True:
        one, _ = server.accept()
        one.recv(65536)
        one.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\ninside")
        one.close()
threading.Thread(target=serve, daemon=True).start()
for line in sys.stdin:
    with socket.create_connection(("127.0.0.1", 800), 20) as client:
        client.sendall(bytes.fromhex(line))
        got = b""
        while data := client.recv(65536):
            got += data
    print(got.hex(), flush=True)
"""


@dataclass
class Sandbox:
    """A process with a network of its own."""

    process: subprocess.Popen[str]
    network: int
    port: int

    def ask(self, raw: bytes) -> bytes:
        """What the proxy inside answers to these bytes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(raw.hex() + "\n")
        self.process.stdin.flush()
        return bytes.fromhex(self.process.stdout.readline())


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    words = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", INSIDE]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline()
        if not port:
            pytest.skip("this machine refuses user or network namespaces")
        network = os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY)
        yield Sandbox(process, network, int(port))
        os.close(network)
        process.kill()


@contextmanager
def managed(sandbox: Sandbox, config: ManagedNetwork) -> Iterator[PorterProcess]:
    """A porter that serves the sandbox on its port 800."""
    (listener,) = maker.make(sandbox.network, ["listen:800"])
    with porter() as running:
        with listener:
            fields = {
                "process": "p",
                "config": config.to_json(),
                "fds": [link.LISTENER, link.NETWORK],
            }
            fds = [listener.fileno(), sandbox.network]
            assert running.call(link.ADD, fields, fds).op == link.DONE
        yield running


@pytest.mark.parametrize("stub", [True, False])
def test_sockets_belong_to_the_namespace(
    sandbox: Sandbox, stub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not stub:
        monkeypatch.setattr(seccomp_spawn, "startable", lambda: False)
    elif not seccomp_spawn.startable():
        pytest.skip("only Python makes them on this machine")
    kinds = ["tcp", "tcp6", "listen:800", "udp:53"]
    one, six, listener, udp = maker.make(sandbox.network, kinds)
    with one, six, listener, udp:
        one.settimeout(20)
        one.connect(("127.0.0.1", sandbox.port))
        one.sendall(b"x")
        assert read_all(one).endswith(b"inside")
        assert six.family == socket.AF_INET6
        assert listener.getsockname() == ("127.0.0.1", 800)
        assert udp.getsockname() == ("127.0.0.1", 53)
        assert not any(os.get_blocking(made.fileno()) for made in (six, listener, udp))
        with pytest.raises(OSError, match="no socket in the sandbox's network") as refused:
            maker.make(sandbox.network, ["listen:800"])
        assert refused.value.errno == errno.EADDRINUSE
    (elsewhere,) = maker.make(sandbox.network, ["listen:800:127.0.0.9"])
    with elsewhere:
        assert elsewhere.getsockname() == ("127.0.0.9", 800)


def test_another_file_is_no_namespace() -> None:
    with open(os.devnull) as file, pytest.raises(OSError, match="no socket"):
        maker.make(file.fileno(), ["tcp"])


def test_servers_of_the_command_are_reached_without_a_record(sandbox: Sandbox) -> None:
    with managed(sandbox, ManagedNetwork()) as running:
        for host in ("127.0.0.1", "localhost", "127.1", "a.localhost"):
            got = sandbox.ask(b"GET http://%b:%d/ HTTP/1.0\r\n\r\n" % (host.encode(), sandbox.port))
            assert got.endswith(b"\r\n\r\ninside")
        assert running.ring.count() == 0
        # Nothing listens there, and the porter's own port leads to itself.
        for port in (1, 800):
            got = sandbox.ask(b"GET http://127.0.0.1:%d/ HTTP/1.0\r\n\r\n" % port)
            assert b'"reason":"not_allowed_local"' in got
        assert running.ring.count() == 2


def test_a_listed_loopback_is_that_of_the_host(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        with managed(sandbox, ManagedNetwork(domains={f"127.0.0.1:{port}": "allow"})):
            assert sandbox.process.stdin is not None
            raw = b"\5\1\0\5\1\0\1\x7f\0\0\1" + port.to_bytes(2, "big")
            sandbox.process.stdin.write(raw.hex() + "\n")
            sandbox.process.stdin.flush()
            got, _ = host.accept()
            got.sendall(b"host")
            got.close()
            assert sandbox.process.stdout is not None
            assert bytes.fromhex(sandbox.process.stdout.readline()).endswith(b"host")


def test_the_resolver_inside_knows_no_name(sandbox: Sandbox) -> None:
    udp, client = maker.make(sandbox.network, ["udp:53", "udp:54"])
    with porter() as running, udp, client:
        fields = {"process": "p", "config": {}, "fds": [link.RESOLVER]}
        running.call(link.ADD, fields, [udp.fileno()])
        client.settimeout(20)
        query = b"\x12\x34\1\0\0\1\0\0\0\0\0\0\6secret\7example\0\0\1\0\1"
        for _ in range(2):
            client.sendto(query, ("127.0.0.1", 53))
            reply = client.recv(512)
            assert reply[:2] == query[:2]
            assert reply[3] & 15 == 3
        (record,) = running.records(1)
        assert (record.op, record.host, record.protocol) == ("resolve", "secret.example", "dns")


@pytest.mark.parametrize(
    "query",
    [
        b"",
        b"\0" * 12,
        b"\x12\x34\x81\0\0\1\0\0\0\0\0\0\1a\0\0\1\0\1",  # an answer
        b"\x12\x34\1\0\0\2\0\0\0\0\0\0\1a\0\0\1\0\1",  # two questions
        b"\x12\x34\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1",  # a pointer
        b"\x12\x34\1\0\0\1\0\0\0\0\0\0\5a",  # cut short
        b"\x12\x34\1\0\0\1\0\0\0\0\0\0\1a\0\0",
    ],
)
def test_what_is_no_question_is_not_answered(query: bytes) -> None:
    assert answer(query) is None


def test_odd_bytes_in_a_name_are_not_shown() -> None:
    found = answer(b"\x12\x34\1\0\0\1\0\0\0\0\0\0\3A\x1b\xff\0\0\1\0\1")
    assert found is not None
    assert found[0] == "a??"
    found = answer(b'\x12\x34\1\0\0\1\0\0\0\0\0\0\x0cx" was OK. y\0\0\1\0\1')
    assert found is not None
    assert found[0] == "x??was?ok.?y"  # it is part of a sentence of ours


def test_refusals_name_the_program_inside(sandbox: Sandbox) -> None:
    with managed(sandbox, ManagedNetwork()) as running:
        got = sandbox.ask(b"CONNECT new.example:443 HTTP/1.0\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 403")
        (record,) = running.records(1)
        with open(f"/proc/{sandbox.process.pid}/comm") as comm:
            assert (record.pid, record.comm) == (sandbox.process.pid, comm.read().strip())


@pytest.mark.fault
async def test_a_refused_connect_is_not_that_of_the_next(sandbox: Sandbox) -> None:
    """A server that does not listen yet is found by the first attempt after it does."""
    host = hosts.canonical("127.0.0.1")
    inside = SandboxLoopback(os.dup(sandbox.network), None)
    try:
        for _ in range(3):
            assert await inside.connect(host, sandbox.port + 1) is None
            found = await inside.connect(host, sandbox.port)
            assert found is not None
            found.close()
    finally:
        inside.close()
