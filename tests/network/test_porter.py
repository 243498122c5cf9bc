"""A real porter, started as the server starts it, with real connections through it."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import listeners
from handrail.network import link
from handrail.network.config import ManagedNetwork
from handrail.network.records import Record
from tests.network.porters import (
    PorterProcess,
    connect,
    far_side,
    porter,
    read_all,
    read_response,
    read_until,
)
from tests.support.eventually import eventually


@pytest.fixture(scope="module")
def running() -> Iterator[PorterProcess]:
    with porter() as one:
        assert one.call(link.HELLO, {"version": link.VERSION, "pid": 1}).op == link.WELCOME
        yield one


@pytest.fixture
def far() -> Iterator[tuple[socket.socket, int]]:
    with far_side() as made:
        yield made


def of_process(one: PorterProcess, name: str) -> list[Record]:
    return [record for _, record in one.ring.read(0) if record.process == name]


def listed(port: int) -> ManagedNetwork:
    return ManagedNetwork(domains={f"127.0.0.1:{port}": "allow"})


def test_a_tunnel_keeps_early_bytes_and_half_closes(
    running: PorterProcess, far: tuple[socket.socket, int]
) -> None:
    listener, port = far
    address = running.add("tunnel", listed(port))
    with connect(address) as client:
        client.sendall(f"CONNECT 127.1:{port} HTTP/1.1\r\nHost: x\r\n\r\nearly".encode())
        origin, _ = listener.accept()
        with origin:
            assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
            assert read_until(origin, b"early") == b"early"
            client.shutdown(socket.SHUT_WR)
            assert origin.recv(1) == b""
            origin.sendall(b"late")
        assert read_all(client) == b"late"
    *_, decided, ended = [record for record in running.records(2) if record.process == "tunnel"]
    assert (decided.decision, decided.host, decided.address) == ("allow", "127.0.0.1", "127.0.0.1")
    assert (ended.kind, ended.sent, ended.received, ended.outcome) == ("end", 5, 4, "closed")
    assert ended.dialled is not None


def test_connect_is_answered_after_the_dial(running: PorterProcess) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with connect(running.add("dial", listed(port))) as client:
            client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            status, _, body = read_response(client)
            assert (status, body) == (502, b"upstream failure: connection refused")
        with connect(running.add("dial", listed(port))) as client:
            client.sendall(b"\5\1\0\5\1\0\1\x7f\0\0\1" + port.to_bytes(2, "big"))
            assert read_all(client)[2:4] == b"\5\5"
    eventually(lambda: len(of_process(running, "dial")) == 4)  # each attempt is recorded once
    found = of_process(running, "dial")
    assert [record.kind for record in found] == ["decision", "end"] * 2
    assert {record.outcome for record in found[1::2]} == {"connection refused"}


def test_a_decision_lasts_no_longer_than_what_it_depends_on(
    far: tuple[socket.socket, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    listener, port = far
    key = ["127.0.0.1", port]
    with porter(XDG_STATE_HOME=str(tmp_path)) as one:

        def status(address: tuple[str, int]) -> int:
            with connect(address) as client:
                client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
                head = read_until(client, b"\r\n\r\n")
            return int(head.split()[1])

        first, second = (one.add(name, listed(port)) for name in ("first", "second"))
        both = (first, second)
        assert [status(address) for address in both * 2] == [200] * 4
        # An answer of the session, of one process, and a rule.
        one.call(link.UPDATE, {"session": "s", "denied": [key]})
        assert [status(address) for address in both] == [403, 403]
        one.call(link.UPDATE, {"session": "s", "denied": []})
        assert [status(address) for address in both] == [200, 200]
        one.call(link.UPDATE, {"session": "s", "process": "first", "denied": [key]})
        assert [status(address) for address in both] == [403, 200]
        one.call(link.UPDATE, {"session": "s", "rules": [["127.0.0.1", None, "forbidden"]]})
        assert status(second) == 403
        one.call(link.UPDATE, {"session": "s", "rules": []})
        assert status(second) == 200
        # Another configuration, and a listener of handrail's that has come to this port.
        third = one.add("third", listed(port))
        assert status(third) == 200
        config = ManagedNetwork(domains={"127.0.0.1": "deny"}).to_json()
        one.call(link.ADD, {"process": "third", "session": "s", "config": config})
        assert status(third) == 403
        listeners.enter(listener)
        try:
            assert status(second) == 403
        finally:
            listeners.leave(port)
        assert status(second) == 200


def test_a_refused_connect_names_the_host_and_the_connection_stays(running: PorterProcess) -> None:
    with connect(running.add("refused", ManagedNetwork())) as client:
        client.sendall(b"CONNECT new.example:443 HTTP/1.1\r\n\r\n")
        status, fields, body = read_response(client)
        assert (status, fields["x-proxy-error"]) == (403, "blocked-by-allowlist")
        assert body == b"Domain not in allowlist. (new.example:443)"
        client.sendall(b"HEAD http://new.example/ HTTP/1.1\r\n\r\n")
        assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 403")
        client.sendall(b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n")
        assert json.loads(read_response(client)[2])["reason"] == "not_allowed_local"
    found = [record for record in running.records(3) if record.process == "refused"]
    assert [record.host for record in found] == ["new.example", "new.example", "127.0.0.1"]


def test_every_request_of_a_kept_connection_is_decided(
    running: PorterProcess, far: tuple[socket.socket, int]
) -> None:
    listener, port = far
    with connect(running.add("kept", listed(port))) as client:
        target = f"http://127.0.0.1:{port}"
        second = f"POST {target}/2 HTTP/1.1\r\nContent-Length: 2\r\n\r\nab"
        client.sendall(f"GET {target}/1 HTTP/1.1\r\n\r\n{second}".encode())
        origin, _ = listener.accept()
        with origin:
            assert read_until(origin, b"\r\n\r\n").startswith(
                b"GET /1 HTTP/1.1\r\nhost: 127.0.0.1:"
            )
            origin.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: x\r\nX: 1\r\n\r\none"
            )
            assert read_response(client) == (200, {"content-length": "3"}, b"one")
            assert read_until(origin, b"ab").startswith(b"POST /2 HTTP/1.1")
            origin.sendall(
                b"HTTP/1.1 100 Continue\r\n\r\n"
                b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"2;x\r\nhi\r\n0\r\nT: 1\r\n\r\n"
            )
            assert read_until(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            answer = read_until(client, b"0\r\n\r\n")
            assert answer == (
                b"HTTP/1.1 201 Made\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
            )
            client.sendall(b"GET http://other.example/ HTTP/1.1\r\n\r\n")
            assert read_response(client)[0] == 403
            link_fields = {"session": "s", "rules": [["127.0.0.1", port, "forbidden"]]}
            running.call(link.UPDATE, link_fields)
            client.sendall(f"GET {target}/3 HTTP/1.1\r\n\r\n".encode())
            assert json.loads(read_response(client)[2])["reason"] == "denied"
    running.call(link.UPDATE, {"session": "s", "rules": []})


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
    ],
)
def test_an_old_client_reads_to_the_end(
    running: PorterProcess, far: tuple[socket.socket, int], answer: bytes, body: bytes
) -> None:
    listener, port = far
    with connect(running.add("old", listed(port))) as client:
        client.sendall(f"GET http://127.0.0.1:{port}/ HTTP/1.0\r\n\r\n".encode())
        origin, _ = listener.accept()
        with origin:
            read_until(origin, b"\r\n\r\n")
            origin.sendall(answer)
        head, _, rest = read_all(client).partition(b"\r\n\r\n")
        assert b"connection: close" in head
        assert rest == body


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\nX: 1\n\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000 + b"\r\n\r\n",
    ],
)
def test_an_origin_that_answers_nonsense(
    running: PorterProcess, far: tuple[socket.socket, int], nonsense: bytes
) -> None:
    listener, port = far
    with connect(running.add("nonsense", listed(port))) as client:
        client.sendall(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n".encode())
        origin, _ = listener.accept()
        with origin:
            read_until(origin, b"\r\n\r\n")
            origin.sendall(nonsense)
        assert read_response(client)[0] == 502


@pytest.mark.parametrize(
    "raw",
    [
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET http://127.0.0.1:PORT/ HTTP/1.1\nHost: x\n\n",
        b"GET https://127.0.0.1:PORT/ HTTP/1.1\r\n\r\n",
        b"GET http://127.0.0.1:PORT/ HTTP/1.1\r\nHost: other.example\r\n\r\n",
    ],
)
def test_a_head_with_two_readings_ends_the_connection(
    running: PorterProcess, far: tuple[socket.socket, int], raw: bytes
) -> None:
    listener, port = far
    with connect(running.add("smuggle", listed(port))) as client:
        smuggled = b"GET http://127.0.0.1:PORT/evil HTTP/1.1\r\n\r\n"
        client.sendall((raw + smuggled).replace(b"PORT", str(port).encode()))
        assert read_all(client).startswith(b"HTTP/1.1 400")
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_broken_chunk_ends_the_request(
    running: PorterProcess, far: tuple[socket.socket, int]
) -> None:
    listener, port = far
    with connect(running.add("chunk", listed(port))) as client:
        head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.sendall(head.encode() + b"2\r\nabX\r\nGET /evil HTTP/1.1\r\n\r\n")
        origin, _ = listener.accept()
        with origin:
            assert read_all(origin).endswith(b"chunked\r\n\r\n")
        assert read_response(client)[0] == 400


def test_socks(running: PorterProcess, far: tuple[socket.socket, int]) -> None:
    listener, port = far
    address = running.add("socks", listed(port))
    with connect(address) as client:
        client.sendall(b"\5\1\0\5\1\0\3\x09127.0.0.1" + port.to_bytes(2, "big") + b"early")
        origin, _ = listener.accept()
        with origin:
            assert read_until(origin, b"early") == b"early"
            origin.sendall(b"answer")
        assert read_all(client) == b"\5\0" + b"\5\0\0\1" + bytes(6) + b"answer"
    with connect(address) as client:
        client.sendall(b"\5\1\0\5\1\0\3\x0bnew.example\1\xbb")
        assert read_all(client)[2:4] == b"\5\2"
    with connect(running.add("no socks", ManagedNetwork(enable_socks5=False))) as client:
        client.sendall(b"\5\1\0")
        assert read_all(client) == b""


def test_a_client_that_does_not_read_holds_up_no_other(
    running: PorterProcess, far: tuple[socket.socket, int]
) -> None:
    listener, port = far
    address = running.add("slow", listed(port))
    request = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode()
    with connect(address) as slow:
        slow.sendall(request)
        flood, _ = listener.accept()
        flood.setblocking(False)
        sent = 0
        with flood:
            with connect(address) as other:
                other.sendall(request)
                origin, _ = listener.accept()
                with origin:
                    while True:  # until nothing is taken any more: 256 KiB, and socket buffers
                        try:
                            sent += flood.send(bytes(65536))
                        except BlockingIOError:
                            other.sendall(b"x")
                            assert origin.recv(1) == b"x"
                            try:
                                sent += flood.send(bytes(65536))
                            except BlockingIOError:
                                break
                    assert sent < 64 << 20
            flood.setblocking(True)
            flood.shutdown(socket.SHUT_WR)
        read_until(slow, b"\r\n\r\n")
        assert len(read_all(slow)) == sent


def test_another_user_is_not_served(running: PorterProcess) -> None:
    for uid, answer in ((os.geteuid() + 1, b""), (os.geteuid(), b"HTTP/1.1 403")):
        with connect(running.add("user", ManagedNetwork(), uid=uid)) as client:
            try:
                client.sendall(b"GET http://a.example/ HTTP/1.1\r\nConnection: close\r\n\r\n")
                got = read_all(client)
            except ConnectionError:
                got = b""
            assert got[:12] == answer
        running.call(link.REMOVE, {"process": "user"})


def test_what_ends_breaks_its_connections_only(
    running: PorterProcess, far: tuple[socket.socket, int]
) -> None:
    listener, port = far
    request = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode()
    with connect(running.add("one", listed(port))) as one:
        with connect(running.add("two", listed(port))) as two:
            for client in (one, two):
                client.sendall(request)
                read_until(client, b"\r\n\r\n")
            running.call(link.REMOVE, {"process": "one"})
            assert one.recv(1) == b""
            first, _ = listener.accept()
            second, _ = listener.accept()
            with first, second:
                assert first.recv(1) == b""
                second.sendall(b"x")
                assert two.recv(1) == b"x"


def test_the_porter_is_small(running: PorterProcess) -> None:
    with open(f"/proc/{running.process.pid}/status") as status:
        rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    assert rss < 30 * 1024


def test_a_listener_of_handrail_is_opened_by_no_entry(
    far: tuple[socket.socket, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    _, told = far
    with porter(XDG_STATE_HOME=str(tmp_path)) as one:
        one.call(link.HELLO, {"ports": [told]})
        server = listeners.open_tcp("127.0.0.1", 0, 1)
        with server:
            found = server.getsockname()[1]
            config = ManagedNetwork(domains={"127.0.0.1": "allow", "0.0.0.0": "allow"})
            _, shared = one.add("without a sandbox", config, uid=os.geteuid())
            with connect(one.add("p", config)) as client:
                for port in (told, found, shared):
                    for host in ("127.0.0.1", "0.0.0.0"):
                        client.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
                        assert read_response(client)[0] == 403
            listeners.leave(found)


def test_a_message_that_cannot_be_used_is_answered(running: PorterProcess) -> None:
    assert running.call(99, {}).op == link.FAILED
    assert running.call(link.ADD, {"process": "x", "config": {"mode": "none"}}).op == link.FAILED
    assert running.call(link.LISTEN, {"process": "unknown", "fds": []}).op == link.FAILED
    state = running.call(link.STATE, {}).fields
    assert state["questions"] == 0


def test_descriptors_are_given_back(running: PorterProcess) -> None:
    address = running.add("given", ManagedNetwork())
    answer = running.call(link.LISTENERS, {})
    assert answer.op == link.DONE
    given = [one for one in running.heard if one.fields.get("process") == "given"]
    with socket.socket(fileno=given[0].fds.pop()) as listener:
        assert listener.getsockname() == address


def test_a_porter_that_was_killed_is_restored(far: tuple[socket.socket, int]) -> None:
    _, port = far
    with porter() as first, socket.create_server(("127.0.0.1", 0)) as door:
        fields = {"process": "p", "config": listed(port).to_json(), "fds": [link.LISTENER]}
        first.call(link.ADD, fields, [door.fileno()])
        with connect(door.getsockname()) as client:
            client.sendall(b"CONNECT no.example:1 HTTP/1.1\r\n\r\n")
            assert read_response(client)[0] == 403
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        with connect(door.getsockname()) as waiting:
            waiting.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            second = PorterProcess(first.ring, {})
            second.call(link.ADD, fields, [door.fileno()])
            assert read_until(waiting, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        second.end()
        assert [one.decision for one in second.records(2)[:2]] == ["deny", "allow"]


def test_a_download_goes_on_without_a_server_to_the_byte(far: tuple[socket.socket, int]) -> None:
    listener, port = far
    sent = os.urandom(1 << 20) * 8
    with porter() as one, connect(one.add("p", listed(port))) as client:
        client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
        read_until(client, b"\r\n\r\n")
        origin, _ = listener.accept()
        held = one.link.dup()  # as the keeper holds it
        held.settimeout(20)
        with origin:
            sending = threading.Thread(target=origin.sendall, args=(sent,))
            sending.start()
            got = client.recv(1 << 16)
            one.link.close()
            one.link = held
            while len(got) < len(sent):
                got += client.recv(1 << 16)
            sending.join()
        assert got == sent
        assert one.call(link.HELLO, {}).fields["processes"] == ["p"]


def test_the_end_of_the_link_is_its_end() -> None:
    with porter() as one:
        one.call(link.HELLO, {})
        one.link.close()
        eventually(lambda: one.process.poll() is not None)
        assert one.process.returncode == 0
