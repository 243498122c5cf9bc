"""The server of a share without Ray: its certificate, its log, and that it outlives its starter."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail.fleet.errors import FleetError
from handrail.fleet.metrics import fetch
from handrail.fleet.shares import tokens
from handrail.fleet.shares.server import ShareOptions, ShareServer
from handrail.fleet.shares.usage import usage_of
from handrail.transport.tls import pinned_context

KEY = tokens.share_key(tokens.new_secret(), "n-1")


def options(**more: Any) -> ShareOptions:
    given: dict[str, Any] = {
        "share": "n-1",
        "key": KEY,
        "address": "127.0.0.1",
        "cpu_millis": 2000,
        "memory_bytes": 1 << 20,
        "min_free": 0,
        "orphan_after": 60.0,
        "tls": "auto",
    }
    return ShareOptions(**{**given, **more})


@contextmanager
def share(place: Path, **more: Any) -> Iterator[ShareServer]:
    server = ShareServer(str(place / "fleet" / "n-1"), options(**more))
    try:
        server.begin()
        yield server
    finally:
        server.stop()


def signed_by_an_authority(place: Path) -> tuple[Path, Path]:
    """A certificate of a machine that an authority has signed, as Ray wants them, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    for words in (
        f"req -x509 {new} -days 2 -subj /CN=authority -keyout ca.key -out ca.crt",
        f"req {new} -subj /CN=machine -keyout ray.key -out ray.csr",
        "x509 -req -in ray.csr -CA ca.crt -CAkey ca.key -set_serial 7 -days 2 -out ray.crt",
    ):
        subprocess.run([openssl, *words.split()], cwd=place, check=True, capture_output=True)
    return place / "ray.crt", place / "ray.key"


async def test_with_tls_of_ray_its_certificate_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = signed_by_an_authority(tmp_path)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", str(certificate))
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", str(key))
    with share(tmp_path) as server:
        assert server.url.startswith("wss://127.0.0.1:")
        assert server.certificate == certificate.read_text()
        assert "cert.pem" not in os.listdir(server.of())
        assert await usage_of(server.url, options(), server.certificate) == []  # drivers pin it
    monkeypatch.setenv("RAY_USE_TLS", "0")
    with share(tmp_path) as server:
        assert server.url.startswith("ws://")  # loopback


def test_without_openssl_nothing_goes_beyond_loopback_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    for more in ({"tls": "on"}, {"address": "192.0.2.7"}):
        server = ShareServer(str(tmp_path / "fleet" / "n-1"), options(**more))
        with pytest.raises(FleetError, match="openssl"):
            server.begin()


def test_a_certificate_of_its_own_stays_the_same(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    with share(tmp_path, tls="on") as server:
        assert server.url.startswith("wss://")
        token = tokens.sign(KEY, "n-1", "", 60.0)
        text = fetch(server.url, token, pinned_context(server.certificate))
        assert "handrail_workspaces" in text
        again = ShareServer(str(tmp_path / "fleet" / "n-1"), options(tls="on"))
        again.begin()  # another supervisor finds the server that runs
        assert (again.running, again.certificate) == (server.running, server.certificate)
    assert not os.path.exists(tmp_path / "fleet")


def test_the_last_lines_of_a_log_are_found_however_long_they_are(tmp_path: Path) -> None:
    server = ShareServer(str(tmp_path), options())
    assert server.log(5) == ""
    lines = [f"{number} {'x' * 9000}" for number in range(50)]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    for count in (1, 30, 50, 99):
        assert server.log(count).split("\n") == lines[-count:]
