"""No room for output: no descriptor free, a full disk, a limit on files.  It comes, or it waits.

Output that cannot be stored stays in its pipe.  The server says so, and the process is not closed
before the last byte of it has been numbered.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from websockets.sync.client import connect

from handrail.process.child_end import DRAIN_SECONDS
from tests.support.eventually import LIMIT, eventually
from tests.support.gates import gate
from tests.support.processes import nothing_left
from tests.support.servers import SERVE, ServerProcess
from tests.system.test_keeper_faults import Client, listed
from tests.system.test_refused_calls import filtered, said

pytestmark = pytest.mark.system

NO_ROOM = "there is no room for its stdout"


def prlimit(*flags: str) -> tuple[str, ...]:
    tool = shutil.which("prlimit")
    if tool is None:
        pytest.skip("no prlimit on this machine")
    return (tool, *flags)


def test_output_waits_for_a_descriptor(tmp_path: Path) -> None:
    """Those that have said something have all descriptors; the last one exits and has none."""
    script = "read x <{}; echo out; echo err >&2; [ $x = stay ] && exec sleep 1000; exit 3"
    with nothing_left(), gate(tmp_path / "stay") as stay, gate(tmp_path / "leave") as leave:
        server = ServerProcess(tmp_path / "state", prefix=prlimit("--nofile=128:128"))
        try:
            with connect(server.url, proxy=None, ping_interval=None) as ws:
                client = Client(ws)
                client.start("last", "sh", "-c", script.format(leave.path))
                count = 0
                while start(client, f"p{count}", script.format(stay.path)):
                    count += 1
                os.write(stay._fd, b"stay\n" * count)
                eventually(lambda: NO_ROOM in server.words(), "some have to wait", LIMIT)
                leave.open()
                eventually(lambda: listed(client, "last")["state"] != "running", "it has exited")
                exited = client.call("process/read", processId="last")["nextSeq"] - 1
                # Longer than a stream that a descendant holds open is waited for.
                wait = int(DRAIN_SECONDS * 1500)
                page = client.call("process/read", processId="last", afterSeq=exited, waitMs=wait)
                assert (page["chunks"], page["closed"]) == ([], False)
                for number in range(count):
                    client.call("process/terminate", processId=f"p{number}")
                out, code = said(client, "last")
                assert (sorted(out.split()), code) == ([b"err", b"out"], 3)
        finally:
            server.stop()
            server.close()


def start(client: Client, name: str, script: str) -> bool:
    """Start one; False when there are too many."""
    answer = client.try_call(
        "process/start",
        processId=name,
        argv=["sh", "-c", script],
        cwd="file:///",
        env={"PATH": os.environ["PATH"]},
        tty=False,
    )
    return "error" not in answer


@pytest.mark.parametrize("refused", ["memfd_create", "memfd_create,splice"])
@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "terminal"])
def test_output_waits_for_room_on_a_disk(tmp_path: Path, refused: str, tty: bool) -> None:
    """Without memory files a spool is on a disk, and that may be full when it is half written."""
    prefix = (*small_disk(), *filtered(refused, "EPERM"))
    with nothing_left():
        server = ServerProcess(tmp_path / "state", prefix=prefix)
        try:
            with (
                connect(server.url, proxy=None, ping_interval=None) as other,
                connect(server.url, proxy=None, ping_interval=None) as ws,
            ):
                filling, client = Client(other), Client(ws)
                for number in range(6):
                    filling.start(f"p{number}", "sh", "-c", "seq 100001 200000; exec sleep 1000")
                eventually(lambda: "there is no room" in server.words(), "it is full", LIMIT)
                client.start("last", "sh", "-c", "stty -onlcr 2>&-; seq 1 100000; exit 3", tty=tty)
                eventually(lambda: "'last': there is no room" in server.words(), "it waits", LIMIT)
                filling.call("session/close")
                wanted = b"".join(b"%d\n" % number for number in range(1, 100_001))
                assert said(client, "last") == (wanted, 3)
        finally:
            server.stop()
            server.close()


def small_disk() -> tuple[str, ...]:
    """What to put before a command so that its ``/dev/shm`` holds 3 MiB."""
    script = 'mount -t tmpfs -o size=3m none /dev/shm && exec "$@"'
    tool = shutil.which("unshare")
    if tool is None:
        pytest.skip("no unshare on this machine")
    words = (tool, "--mount", "sh", "-c", script, "sh")
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system here")
    return words


def test_a_server_with_limited_files_says_so_and_starts_nothing(tmp_path: Path) -> None:
    argv = [*prlimit("--fsize=1000000"), *SERVE, "--state-dir", str(tmp_path / "state")]
    with nothing_left():
        asked = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert asked.returncode == 1
    assert "files are limited to 1000000 bytes here (ulimit -f)" in asked.stderr
    assert "Traceback" not in asked.stderr


def test_a_command_may_have_a_limit_that_the_server_has_not(tmp_path: Path) -> None:
    with nothing_left():
        server = ServerProcess(tmp_path / "state")
        try:
            with connect(server.url, proxy=None, ping_interval=None) as ws:
                client = Client(ws)
                code = "import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE)[0])"
                limits = {"fileBytes": 1_000_000}
                client.start("p", sys.executable, "-c", code, limits=limits)
                assert said(client, "p") == (b"1000000\n", 0)
        finally:
            server.stop()
            server.close()
