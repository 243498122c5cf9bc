"""A private network for tests: names, a far side behind a virtual cable, and logs of what they saw.

`enter` puts this program into a mount and a network namespace of its own, as root or as an ordinary
user; nothing in it reaches the real network.  `World` builds the rest there:

* near, where the server under test runs: loopback, and ``OWN``, an address of this machine;
* far, in another namespace: ``FAR``, ``FAR2`` and ``FAR6`` stand for the public network, the
  addresses of ``CLOSED`` for a company's and a cloud's.  HTTP on 80 and 8080, TLS on 443 and 8443,
  a greeting on 22, a company's proxy on port 3129 of ``FAR2``.  ``FAR3`` is free for the servers of
  a test;
* a resolver: see ``NAMES``; any other name below ``example`` leads to ``FAR``.

Needs ip, mount, unshare of util-linux 2.38 and openssl.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

FAR, FAR2, FAR6, OWN = "11.22.33.44", "11.22.33.45", "2600:11::44", "11.22.32.1"
FAR3 = "11.22.33.46"
CLOSED = ("10.9.8.7", "192.168.7.7", "169.254.169.254", "168.63.129.16", "fd00:1::7")
_GATEWAY, _GATEWAY6, _OWN6 = "11.22.32.2", "2600:12::2", "2600:12::1"
#: None: there is no such name.
NAMES: dict[str, list[str] | None] = {
    "loop.example": ["127.0.0.1"],
    "priv.example": ["10.9.8.7"],
    "meta.example": ["169.254.169.254"],
    "wire.example": ["168.63.129.16"],
    "six.example": [FAR6],
    "mixed.example": [FAR, "10.9.8.7"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "zero.example": ["0.0.0.0"],
    "own.example": [OWN],
    "other.example": [FAR2],
    "tools.example": [FAR3],
    "nx.example": None,
}
_INSIDE = "HANDRAIL_TEST_WORLD"
_NEW_NETWORK = 0x40000000
_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4
_BLOCK = bytes(range(256)) * 256


def enter() -> None:
    """Execute this program again in namespaces of its own; returns in there."""
    if os.environ.get(_INSIDE):
        return
    os.environ[_INSIDE] = "1"
    user = [] if os.getuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    os.execvp("unshare", ["unshare", *user, "--mount", "--net", sys.executable, *sys.orig_argv[1:]])


def _do(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class World:
    """The network, from the near side."""

    def __init__(self, directory: Path, serve: Callable[[], None] | None = None) -> None:
        """``serve`` is called on the far side, and starts servers in threads of it."""
        self._directory = directory
        self._serve = serve
        self.far_log, self.names_log = directory / "far.log", directory / "names.log"
        self.far_log.touch()
        self.names_log.touch()
        self._cover("resolv.conf", "nameserver 127.0.0.53\noptions timeout:1 attempts:1\n")
        name = socket.gethostname()
        self._cover("hosts", f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost\n")
        _do(
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3"),
            *("-keyout", f"{directory}/key.pem", "-out", f"{directory}/cert.pem"),
            *(
                "-subj",
                "/CN=ok.example",
                "-addext",
                "subjectAltName=DNS:*.example,DNS:tools.example",
            ),
        )
        _do("ip", "link", "set", "lo", "up")
        self._build_far_side()
        threading.Thread(target=self._answer_names, daemon=True).start()
        # What is started from here on has no capability, also for an ordinary user.
        ctypes.CDLL(None).prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)

    def close(self) -> None:
        os.kill(self._far, signal.SIGKILL)
        os.waitpid(self._far, 0)

    def _cover(self, name: str, text: str) -> None:
        path = self._directory / name
        path.write_text(text)
        _do("mount", "--bind", str(path), f"/etc/{name}")

    def _build_far_side(self) -> None:
        ours, theirs = socket.socketpair()
        self._far = os.fork()
        if self._far == 0:
            ours.close()
            try:
                _FarSide(self._directory, self.far_log).run(theirs, self._serve)
            finally:
                os._exit(0)
        theirs.close()
        with ours:
            ours.recv(1)
            _do("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
            _do("ip", "link", "set", "far", "netns", str(self._far))
            _do("ip", "link", "set", "near", "up")
            _do("ip", "addr", "add", f"{OWN}/24", "dev", "near")
            _do("ip", "-6", "addr", "add", f"{_OWN6}/64", "dev", "near", "nodad")
            ours.send(b"2")
            ours.recv(1)
        _do("ip", "route", "add", "default", "via", _GATEWAY)
        _do("ip", "-6", "route", "add", "default", "via", _GATEWAY6)

    def _answer_names(self) -> None:
        resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        resolver.bind(("127.0.0.53", 53))
        seen: dict[str, int] = {}
        while True:
            query, client = resolver.recvfrom(2048)
            name, end = _question(query)
            with self.names_log.open("a") as log:
                log.write(name + "\n")
            kind = struct.unpack_from(">H", query, end)[0]
            found = self._addresses(name, kind, seen)
            resolver.sendto(_reply(query, end, kind, found), client)

    def _addresses(self, name: str, kind: int, seen: dict[str, int]) -> list[str] | None:
        if not name.endswith(".example"):
            return None
        if name.startswith("rebind") and kind == 1:  # honest the first time only
            seen[name] = seen.get(name, 0) + 1
            return [FAR] if seen[name] == 1 else ["127.0.0.1"]
        return NAMES.get(name, [FAR])


def _question(query: bytes) -> tuple[str, int]:
    """The name that is asked for, and where its type begins."""
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]])
        at += 1 + query[at]
    return b".".join(labels).decode("latin1").lower(), at + 1


def _reply(query: bytes, end: int, kind: int, found: list[str] | None) -> bytes:
    family = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
    fitting = [one for one in found or () if family and (":" in one) == (kind == 28)]
    answers = b""
    for one in fitting:
        raw = socket.inet_pton(family or 0, one)
        answers += b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(raw)) + raw
    code = 3 if found is None else 0
    head = struct.pack(">HHHHH", 0x8180 | code, 1, len(fitting), 0, 0)
    return query[:2] + head + query[12 : end + 4] + answers


class _FarSide:
    """The other end of the cable, in a process of its own."""

    def __init__(self, directory: Path, log: Path) -> None:
        self._directory = directory
        self._log = log

    def run(self, line: socket.socket, serve: Callable[[], None] | None) -> None:
        if ctypes.CDLL(None).unshare(_NEW_NETWORK):
            raise OSError("no network namespace for the far side")
        line.send(b"1")
        line.recv(1)
        for device in ("lo", "far"):
            _do("ip", "link", "set", device, "up")
        _do("ip", "addr", "add", f"{_GATEWAY}/24", "dev", "far")
        _do("ip", "-6", "addr", "add", f"{_GATEWAY6}/64", "dev", "far", "nodad")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._directory / "cert.pem", self._directory / "key.pem")
        for address in (FAR, FAR2, FAR6, *CLOSED):
            if ":" in address:
                _do("ip", "-6", "addr", "add", f"{address}/128", "dev", "lo", "nodad")
            else:
                _do("ip", "addr", "add", f"{address}/32", "dev", "lo")
            for port in (80, 8080):
                self._serve(address, port, self._web)
            for port in (443, 8443):
                self._serve(address, port, lambda client: self._web(client, context))
        for address in (FAR, FAR2):
            self._serve(address, 22, _greet)
        self._serve(FAR2, 3129, self._company_proxy)
        if serve is not None:
            _do("ip", "addr", "add", f"{FAR3}/32", "dev", "lo")
            serve()
        line.send(b"3")
        while os.getppid() != 1:
            time.sleep(0.3)

    def _serve(self, address: str, port: int, talk: Callable[[socket.socket], None]) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, port), family=family, backlog=512)

        def accept() -> None:
            while True:
                client = listener.accept()[0]
                threading.Thread(target=_quietly, args=(talk, client), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def _note(self, **what: Any) -> None:
        with self._log.open("a") as log:
            log.write(json.dumps(what) + "\n")

    def _web(self, client: socket.socket, context: ssl.SSLContext | None = None) -> None:
        address, port = client.getsockname()[:2]
        client.settimeout(60)
        if context is not None:
            client = context.wrap_socket(client, server_side=True)
        reader = client.makefile("rb")
        while line := reader.readline(65536).decode("latin1").strip():
            fields = _fields(reader)
            size = _body_size(reader, fields)
            host = fields.get("host")
            self._note(at=address, port=port, line=line, host=host, size=size, fields=fields)
            method, path, *_ = [*line.split(" "), "", ""]
            if fields.get("upgrade", "").lower() == "websocket":
                _echo(client)
                return
            _answer(client, method, path, f"FAROK {address} {method} {path} size={size}\n")

    def _company_proxy(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(65536)
        self._note(at="company", line=head.partition(b"\r\n")[0].decode("latin1"))
        if head.startswith(b"CONNECT"):
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            client.recv(65536)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nVIA-COMPANY-X")


def _fields(reader: BinaryIO) -> dict[str, str]:
    fields: dict[str, str] = {}
    while line := reader.readline(65536).decode("latin1").strip():
        name, _, value = line.partition(":")
        fields.setdefault(name.lower(), value.strip())
    return fields


def _body_size(reader: BinaryIO, fields: dict[str, str]) -> int:
    if "chunked" not in fields.get("transfer-encoding", ""):
        return len(reader.read(int(fields.get("content-length") or 0)))
    size = 0
    while length := int(reader.readline(99).partition(b";")[0] or b"0", 16):
        size += len(reader.read(length))
        reader.readline(9)
    reader.readline(9)
    return size


def _answer(client: socket.socket, method: str, path: str, text: str) -> None:
    kind, _, rest = path[1:].partition("/")
    if path.startswith("/redirect?to="):
        place = path.partition("=")[2]
        client.sendall(f"HTTP/1.1 302 Found\r\nLocation: {place}\r\n".encode())
        client.sendall(b"Content-Length: 0\r\n\r\n")
        return
    length = int(rest) if kind in ("big", "slow") else len(text)
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length)
    if kind == "big":
        for begin in range(0, length, len(_BLOCK)):
            client.sendall(_BLOCK[: length - begin])
    elif kind == "slow":  # a digit every 50 ms
        for number in range(length):
            client.sendall(b"%d" % (number % 10))
            time.sleep(0.05)
    elif method != "HEAD":
        client.sendall(text.encode())


def _echo(client: socket.socket) -> None:
    client.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    )
    while data := client.recv(65536):
        client.sendall(data)


def _greet(client: socket.socket) -> None:
    client.sendall(b"SSH-2.0-far\r\n")
    client.recv(99)


def _quietly(talk: Callable[[socket.socket], None], client: socket.socket) -> None:
    try:
        talk(client)
    except (OSError, ValueError):
        pass  # the client is gone, or talked nonsense
    finally:
        client.close()
