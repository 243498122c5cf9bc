"""Servers that real tools fetch from: files, a package index, a registry, a repository, streams.

`ToolServers` writes what is served into a directory; its ``serve`` is called on the far side of a
world (`tests.network.world`), and serves at ``FAR3``: HTTP on 80, TLS on 443, a WebSocket that
echoes on 8000, an sshd on 2222.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import os
import shutil
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websocket

from tests.network.world import FAR3
from tests.system.survival import PERIOD

#: Events of a stream; the first ones are sent when their client asks for each.
EVENTS, ASKED_EVENTS = 20_000, 20
#: Seconds before each event of a stream of minutes.
SILENCES = (0, 5, 20, 65, 35)
SSH_PORT, WEBSOCKET_PORT = 2222, 8000
_PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def find(tool: str) -> str | None:
    """The path of a program, also of one for administrators."""
    return shutil.which(tool, path=_PATH)


class _Pages(http.server.SimpleHTTPRequestHandler):
    """Files of a directory, an event stream, and an upload that is compared with ``PERIOD``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    asked = threading.Semaphore(0)

    def do_GET(self) -> None:
        if self.path == "/next-event":
            self.asked.release()
            self._say(b"")
        elif self.path == "/events":
            self._stream()
        elif self.path == "/slow-events":
            self._stream(SILENCES)
        else:
            super().do_GET()

    def _stream(self, silences: Sequence[float] = ()) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number in range(len(silences) or EVENTS):
            if silences:
                threading.Event().wait(silences[number])
            elif number < ASKED_EVENTS:
                self.asked.acquire(timeout=60)
            event = b"data: %d\n\n" % number
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def do_PUT(self) -> None:
        """Chunked; says how many bytes of ``PERIOD``, again and again, have come."""
        at, twice = 0, memoryview(PERIOD * 2)
        while size := int(self.rfile.readline(99), 16):
            data = self.rfile.read(size)
            begin = at % len(PERIOD)
            if data != twice[begin : begin + size]:
                self._say(b"other bytes after %d" % at)
                return
            at += size
            self.rfile.readline(9)
        self.rfile.readline(9)
        self._say(b"%d" % at)

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class ToolServers:
    """What is served, in a directory with the certificate of a world."""

    def __init__(self, directory: Path, keys: Path) -> None:
        """``keys``: a directory to be made, with what ssh needs."""
        self._directory = directory
        self._files, self.keys = directory / "files", keys
        self._files.mkdir()
        self.keys.mkdir()
        (self._files / "page").write_text("PAGE\n")
        self.repository = self._files / "repo.git"
        if find("git"):
            self._make_repository()
        self._make_wheel()
        self._make_package()
        self.has_sshd = bool(find("sshd") and find("ssh") and find("ssh-keygen"))
        if self.has_sshd:
            self._make_keys()

    def serve(self) -> None:
        """Serve on the far side, until its process ends."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._directory / "cert.pem", self._directory / "key.pem")
        for port, tls in ((80, None), (443, context)):
            pages = partial(_Pages, directory=str(self._files))
            server = http.server.ThreadingHTTPServer((FAR3, port), pages)
            server.daemon_threads = True
            if tls is not None:
                server.socket = tls.wrap_socket(
                    server.socket, server_side=True, do_handshake_on_connect=False
                )
            threading.Thread(target=server.serve_forever, daemon=True).start()
        websocket = serve_websocket(_echo, FAR3, WEBSOCKET_PORT, ssl=context, max_size=None)
        threading.Thread(target=websocket.serve_forever, daemon=True).start()
        if self.has_sshd:
            if os.getuid() == 0:
                os.makedirs("/run/sshd", exist_ok=True)  # it wants to go there
            sshd = [str(find("sshd")), "-D", "-e", "-f", str(self.keys / "sshd_config")]
            with open(self.keys / "log", "wb") as log:
                subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *sshd], stderr=log)

    def _make_repository(self) -> None:
        env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
        made = self._files / "made"
        who = ("-c", "user.email=t@example", "-c", "user.name=t")
        for words in (
            ["init", "-q", str(made)],
            ["-C", str(made), *who, "commit", "-q", "--allow-empty", "-m", "first"],
            ["clone", "-q", "--bare", str(made), str(self.repository)],
            ["-C", str(self.repository), "update-server-info"],
        ):
            subprocess.run(["git", *words], check=True, env=env)

    def _make_wheel(self) -> None:
        folder = self._files / "simple" / "tiny"
        folder.mkdir(parents=True)
        name, info = "tiny-1.0-py3-none-any.whl", "tiny-1.0.dist-info"
        kind = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with zipfile.ZipFile(folder / name, "w") as wheel:
            wheel.writestr("tiny.py", "x = 1\n")
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", kind)
            wheel.writestr(f"{info}/RECORD", "")
        (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')

    def _make_package(self) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name, text in {
                "package.json": json.dumps({"name": "tiny", "version": "1.0.0"}),
                "index.js": "module.exports = 1\n",
            }.items():
                entry = tarfile.TarInfo(f"package/{name}")
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text.encode()))
        data = packed.getvalue()
        (self._files / "tiny.tgz").write_bytes(data)
        integrity = base64.b64encode(hashlib.sha512(data).digest()).decode()
        dist = {"tarball": "https://tools.example/tiny.tgz", "integrity": f"sha512-{integrity}"}
        version = {"name": "tiny", "version": "1.0.0", "dist": dist}
        about = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        (self._files / "tiny").write_text(json.dumps(about))

    def _make_keys(self) -> None:
        for key in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.keys / key)]
            subprocess.run(words, check=True)
        host_key = (self.keys / "host.pub").read_text()
        (self.keys / "known").write_text(f"[tools.example]:{SSH_PORT} {host_key}")
        (self.keys / "sshd_config").write_text(
            f"Port {SSH_PORT}\nListenAddress {FAR3}\nHostKey {self.keys}/host\n"
            f"AuthorizedKeysFile {self.keys}/user.pub\nPidFile none\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
            "PermitRootLogin prohibit-password\n"
        )


def _echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)
