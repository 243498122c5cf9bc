"""A real sshd on a loopback port, with keys of its own and nobody else's configuration."""

from __future__ import annotations

import asyncio
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import bearing

_PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


@dataclass(frozen=True)
class Way:
    """How to get to a host."""

    url: str
    ssh: tuple[str, ...]
    proxy: str
    socket: str


def no_sshd() -> str | None:
    """Why there is no sshd to test with."""
    for name in ("sshd", "ssh", "ssh-keygen"):
        if shutil.which(name, path=_PATH) is None:
            return f"{name} is missing; install openssh-server and openssh-client"
    return None


@asynccontextmanager
async def sshd(base: Path) -> AsyncIterator[Way]:
    """An sshd that lets us in by a key of this test; and the server that it may start."""
    # Short and private: sshd looks at who may write above a key, and a socket's path is short.
    room = Path(tempfile.mkdtemp(prefix="hr-ssh-"))
    try:
        port = free_port()
        for key in ("host", "user"):
            await run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(room / key))
        shutil.copy(room / "user.pub", room / "authorized")
        os.chmod(room / "authorized", 0o600)
        config = room / "sshd_config"
        config.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {room}/host\n"
            f"AuthorizedKeysFile {room}/authorized\nPidFile none\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
            "PermitRootLogin prohibit-password\nMaxStartups 100\n"
        )
        host_key = (room / "host.pub").read_text()
        (room / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # where sshd goes before it knows who it is
        daemon = await asyncio.create_subprocess_exec(
            *(shutil.which("sshd", path=_PATH) or "sshd", "-D", "-e", "-f", str(config)),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await listening(port)
            yield Way(
                url=f"ssh://{pwd.getpwuid(os.geteuid()).pw_name}@127.0.0.1:{port}",
                ssh=(
                    *("ssh", "-F", "none", "-i", str(room / "user"), "-o", "IdentitiesOnly=yes"),
                    *("-o", f"UserKnownHostsFile={room}/known"),
                ),
                proxy=shlex.join(
                    [sys.executable, "-m", "handrail", "proxy", "--socket", f"{room}/s/h.sock"]
                ),
                socket=f"{room}/s/h.sock",
            )
        finally:
            daemon.terminate()
            await daemon.wait()
            await end_all(str(room))
    finally:
        shutil.rmtree(room)


async def end_all(token: str) -> None:
    """The server that the proxy has started outlives the connection; end it, and wait."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for _ in range(500):
            left = bearing(token)
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            await asyncio.sleep(0.02)


async def run(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL)
    assert await process.wait() == 0, argv


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def listening(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            await writer.wait_closed()
            return
