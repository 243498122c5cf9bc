"""Hosts by ``ssh://`` and ``wss://``, and hosts of another version of handrail."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from handrail.errors import UsageError
from handrail.fleet import Fleet, FleetError, VersionMismatch
from handrail.version import __version__
from tests.executor.sshd import end_all
from tests.fleet.support import PLAIN, host
from tests.fleet.tasks.killed_runs import HANDRAIL
from tests.support.servers import ServerProcess, server_process

#: Stands for ssh: a host is a directory with a server of its own, on this machine.
_SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
place={room}/$2
[ -d "$place" ] || {{ echo "ssh: no host $2" >&2; exit 255; }}
export HOME="$place" XDG_STATE_HOME="$place/state" XDG_RUNTIME_DIR="$place/run"
exec sh -c "$3"
"""


@contextmanager
def ssh_hosts(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[Path]:
    """Hosts that a program named ssh reaches; short, for the paths of their sockets."""
    room = Path(tempfile.mkdtemp(prefix="hr-ssh-"))
    try:
        for name in names:
            (room / name / "run").mkdir(parents=True, mode=0o700)
        programs = room / "bin"
        programs.mkdir()
        (programs / "ssh").write_text(_SSH.format(room=room))
        (programs / "handrail").write_text(
            f'#!/bin/sh\nexec {sys.executable} -P -m handrail "$@" --socket "$HOME/s"\n'
        )
        for program in programs.iterdir():
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        yield room
    finally:
        asyncio.run(end_all(str(room)))
        shutil.rmtree(room)


async def _use_ssh_hosts(room: Path) -> None:
    urls = ["ssh://one", "ssh://someone@two"]
    async with Fleet(urls, owner="first") as fleet:
        await fleet.wait(2)
        assert {node.id for node in (await fleet.status()).nodes} == {"one", "two"}
        template = room / "template"
        template.mkdir()
        (template / "word").write_text("sent")
        outcomes = await fleet.gather(
            lambda space, task: space.run(f"echo {task} $(cat word) $HOME"),
            range(6),
            concurrency=2,
            template=template,
            **PLAIN,
        )
        said = [one.value.stdout.split() for one in outcomes]
        assert [words[:2] for words in said] == [[str(n), "sent"] for n in range(6)]
        assert {words[2] for words in said} == {f"{room}/one", f"{room}/two"}
        space = await fleet.workspace(node="two", **PLAIN)
        await (await space.start("echo begun; sleep 600")).wait_for("begun")
        await fleet.detach()
    async with Fleet(urls) as other:
        adopted = await other.adopt(space.id)
        (process,) = adopted.processes
        await process.wait_for("begun")
        await adopted.release()
        assert await other.workspaces() == []
        with pytest.raises(FleetError, match="handrail did not start it"):
            await other.logs("one")
        with pytest.raises(UsageError):
            await other.logs("one", lines=0)
        assert other.token("one") is None


def test_hosts_over_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server starts with the first connection, and what runs outlives each."""
    with ssh_hosts(monkeypatch, "one", "two") as room:
        asyncio.run(_use_ssh_hosts(room))
        tasks = tmp_path / "tasks.jsonl"
        tasks.write_text('{"id": "a"}\n{"id": "b"}\n')
        needs = ["--memory", "1MiB", "--sandbox", "off", "--json"]
        words = ["run", "--on", "ssh://one", "ssh://two", "--tasks", str(tasks), *needs]
        done = subprocess.run(
            [*HANDRAIL, "fleet", *words, "--", "echo", "{id}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["ok"] == 2


def _authority(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    cert, key = directory / "host.crt", directory / "host.key"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *command.split(), *more], check=True, capture_output=True)
    return cert, key


async def test_hosts_over_tls_with_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = _authority(tmp_path)
    secret = tmp_path / "token"
    secret.write_text("a token for one host")
    secret.chmod(0o600)
    guarded = ("--ws-auth", "capability-token", "--ws-token-file", str(secret))
    with host(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key), *guarded) as server:
        assert server.url.startswith("wss://")
        times = {"request_timeout": 2.0, "lost_after": 0.5}
        async with Fleet([server.url], token="a token for one host", **times) as stranger:
            (node,) = (await stranger.status()).nodes
            assert node.state in ("joining", "lost")  # no authority that we know has signed it
            assert "certificate" in node.error
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        with pytest.raises(FleetError, match="token"):
            async with Fleet([server.url], token="wrong"):
                pass
        async with Fleet([server.url], token={server.url: "a token for one host"}) as fleet:
            space = await fleet.workspace(**PLAIN)
            assert (await space.run("echo over tls")).stdout == "over tls\n"
            assert fleet.token(space.node) == "a token for one host"
            assert f'node="{space.node}"' in await fleet.metrics()


@contextmanager
def host_of_another_version(place: Path, version: str) -> Iterator[ServerProcess]:
    """A server with workspaces that takes itself for another version."""
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        f"import handrail.version\nhandrail.version.__version__ = {version!r}\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{place}:{os.environ.get('PYTHONPATH', '')}"}
    options = ("--workspaces", str(place / "w"), "--min-free", "0")
    with server_process(place / "s", *options, env=environ) as server:
        yield server


async def test_a_host_of_another_version_is_refused_at_once(tmp_path: Path) -> None:
    major, minor, *_ = __version__.split(".")
    with host_of_another_version(tmp_path / "odd", f"{major}.{int(minor) + 1}.0") as odd:
        with host(tmp_path) as good:
            with pytest.raises(VersionMismatch) as refused:
                async with Fleet([good.url, odd.url]):
                    pass
            assert refused.value.ours == __version__
            assert refused.value.theirs == f"handrail {major}.{int(minor) + 1}.0"
            assert odd.url.endswith(refused.value.node)
    with host_of_another_version(tmp_path / "patch", f"{major}.{minor}.999") as near:
        async with Fleet([near.url]) as fleet:  # a patch of the same version fits
            await fleet.workspace(**PLAIN)
            (node,) = (await fleet.status()).nodes
            assert node.version == f"{major}.{minor}.999"
