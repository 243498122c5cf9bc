"""A server that speaks TLS, and clients that pin its certificate."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from handrail.errors import HandrailError, TransportError
from handrail.transport.tls import pinned_context
from handrail.transport.websocket import connect
from tests.server.workspaces.support import create, options
from tests.support.clients import MemoryClient, Refused, dialled
from tests.support.servers import SERVE, server_process


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate without a name of this machine, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    cert, key = directory / f"{name}.crt", directory / f"{name}.key"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x"
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *command.split(), *files], check=True, capture_output=True)
    return cert, key


async def test_a_pinned_server_is_the_only_one_that_is_trusted(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "ours")
    other, _ = certificate(tmp_path, "other")
    given = ("--tls-cert", str(cert), "--tls-key", str(key), *options(tmp_path / "d"))
    with server_process(tmp_path / "s", *given) as server:
        assert server.url.startswith("wss://127.0.0.1:")
        pinned = pinned_context(cert.read_text())
        async with dialled(server.url, ssl=pinned) as client:
            made = await create(client, enter=True)
            script = "head -c 3000000 /dev/zero | tr '\\0' x; sleep 0"
            await client.shell("p", script, cwd=made["root"])
            await client.until_closed("p")
            assert client.output("p") == b"x" * 3_000_000
        # Of a chain the first counts: what it would vouch for is not that server.
        chain = other.read_text() + cert.read_text()
        for context in (None, pinned_context(other.read_text()), pinned_context(chain)):
            with pytest.raises(TransportError, match="certificate"):
                await connect(server.url, MemoryClient(), ssl=context)
        with pytest.raises(HandrailError):
            await connect(server.url.replace("wss:", "ws:"), MemoryClient(), open_timeout=5.0)
        async with dialled(server.url, ssl=pinned) as client:
            with pytest.raises(Refused):
                await client.call("workspace/adopt", workspaceId="x", owner="o")


def test_half_a_certificate_is_refused(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "ours")
    for words, told in (
        (["--tls-cert", str(cert)], "belong together"),
        (["--tls-cert", str(cert), "--tls-key", str(cert)], "cannot be used"),
        (["--share", "cpus=1"], "--workspaces DIR"),
        (["--workspaces", str(tmp_path / "d"), "--share", "moons=1"], "cpus=N"),
        (["--tls-cert", str(cert), "--tls-key", str(key), "--listen", "stdio"], "ws://IP:PORT"),
    ):
        state = ["--state-dir", str(tmp_path / "state")]
        done = subprocess.run(
            [*SERVE, *state, *words], capture_output=True, text=True, check=False, timeout=30
        )
        assert done.returncode == 1
        assert told in done.stderr, done.stderr
