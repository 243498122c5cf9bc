"""System calls refused by a seccomp filter, as those of containers do: all is right, or is said.

Each case starts a server under a filter that answers one call with one error, in the server, its
keeper and everything they start.  Either a command has its output, input, terminal, exit and end
as always, or the server refuses to start with a sentence that names the call; nothing is left.
"""

from __future__ import annotations

import base64
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.support.eventually import LIMIT, eventually
from tests.support.processes import bearing, nothing_left
from tests.support.servers import SERVE, ServerProcess
from tests.system import refusal
from tests.system.test_keeper_faults import Client
from tests.system.users import ordinary

pytestmark = [pytest.mark.system, pytest.mark.fault]

ERRORS = ("EPERM", "ENOSYS", "EINVAL")
#: What is done without; of each the error is another one, so that all are tried over time.
REPLACED = (
    "splice",
    "sendfile",
    "memfd_create",
    "fallocate",
    f"prctl:{refusal.PR_SET_CHILD_SUBREAPER}",
    "faccessat2",
    "openat2",
    "close_range",
    "linkat",
    "signalfd4",
    "statx,renameat2,inotify_init1,name_to_handle_at",
    "splice,sendfile,memfd_create,fallocate,copy_file_range",
)
#: Without these nothing can be promised.
NEEDED = ("pidfd_open", "pidfd_send_signal", "eventfd2", "prlimit64", "flock")
EVERY = os.environ.get("HANDRAIL_REFUSE_ALL") == "1"


def filtered(call: str, error: str) -> tuple[str, ...]:
    return (sys.executable, refusal.__file__, error, call)


def cases() -> list[tuple[str, str]]:
    if EVERY:
        return [(call, error) for call in REPLACED for error in ERRORS]
    return [(call, ERRORS[number % 2]) for number, call in enumerate(REPLACED)]


def said(client: Client, name: str) -> tuple[bytes, int | None]:
    """All output of a process until its streams are closed, and its exit code."""
    out, seq = b"", 0
    while True:
        page = client.call("process/read", processId=name, afterSeq=seq, waitMs=5000)
        for chunk in page["chunks"]:
            seq = chunk["seq"]
            out += base64.b64decode(chunk["chunk"])
        if page["closed"]:
            return out, page.get("exitCode")


def write(client: Client, name: str, data: bytes) -> None:
    chunk = base64.b64encode(data).decode()
    client.call("process/write", processId=name, chunk=chunk, writeId=str(random.random()))


@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize(("call", "error"), cases())
def test_a_command_does_not_notice(tmp_path: Path, call: str, error: str, user: str) -> None:
    if user == "root" and os.getuid() != 0:
        pytest.skip("only root can try what root can do")
    home = tmp_path / "home"
    prefix = ordinary(home) if user == "ordinary" else ()
    home.mkdir(exist_ok=True)
    with nothing_left():
        server = ServerProcess(home / "state", prefix=(*prefix, *filtered(call, error)))
        try:
            with connect(server.url, proxy=None, ping_interval=None) as ws:
                client = Client(ws)
                _streams(client)
                _terminal(client)
                _tree(client)
                _files(client, home)
            assert "the keeper is gone" not in server.words()
        finally:
            code, _ = server.stop()
            server.close()
        assert code == 0


def _streams(client: Client) -> None:
    client.start("out", "sh", "-c", "seq 1 20000; exit 3")
    assert said(client, "out") == (b"".join(b"%d\n" % n for n in range(1, 20001)), 3)
    data = os.urandom(300_000)
    client.start("in", "cat", pipeStdin=True)
    for at in range(0, len(data), 100_000):
        write(client, "in", data[at : at + 100_000])
    client.call("process/closeStdin", processId="in")
    assert said(client, "in") == (data, 0)
    env = {"PATH": os.environ["PATH"], **{f"V{n}": "y" * 100_000 for n in range(3)}}
    client.start("large", "sh", "-c", "echo ${#V1}", env=env)
    assert said(client, "large") == (b"100000\n", 0)


def _terminal(client: Client) -> None:
    client.start("tty", "sh", "-c", "stty -echo; read x; echo got $x; seq 1 2000; exit 4", tty=True)
    write(client, "tty", b"it\n")
    out, code = said(client, "tty")
    assert b"got it\r\n" in out
    assert out.endswith(b"\r\n2000\r\n")
    assert code == 4


def _tree(client: Client) -> None:
    word = f"{random.SystemRandom().getrandbits(60):020d}"
    sleeper = "sleep\0" + "1000." + word
    line = f"sleep 1000.{word}"
    client.start("tree", "sh", "-c", f"setsid {line} & (env -i setsid {line} &); exec {line}")
    eventually(lambda: len(bearing(sleeper)) == 3, "the tree is there")
    client.call("process/terminate", processId="tree", tree=True)
    eventually(lambda: not bearing(sleeper), "the tree is gone")


def _files(client: Client, folder: Path) -> None:
    """A new file, one that is replaced, one that has to keep its inode, and a copy."""
    new, linked, copy = folder / "new", folder / "linked", folder / "copy"
    for data in (b"one", b"two"):
        store(client, new, data)
        assert new.read_bytes() == data
    store(client, linked, b"o" * 9000)
    (folder / "second").hardlink_to(linked)
    store(client, linked, b"n" * 8000)
    assert (folder / "second").read_bytes() == b"n" * 8000
    paths = {"sourcePath": new.as_uri(), "destinationPath": copy.as_uri()}
    client.call("fs/copy", recursive=False, **paths)
    assert copy.read_bytes() == b"two"
    assert not [name for name in os.listdir(folder) if name.startswith(".handrail")]


def store(client: Client, path: Path, data: bytes) -> None:
    client.call("fs/writeFile", path=path.as_uri(), dataBase64=base64.b64encode(data).decode())


def test_what_splice_does_better_is_said_to_be_off(tmp_path: Path) -> None:
    for call in ("splice", "sendfile"):
        with nothing_left():
            server = ServerProcess(tmp_path / call, prefix=filtered(call, "EPERM"))
            try:
                with connect(server.url, proxy=None, ping_interval=None) as ws:
                    info = Client(ws).call("environment/info")
                    assert info["capabilities"]["handrail"]["splice"] is False
            finally:
                server.stop()
                server.close()


@pytest.mark.parametrize("call", [*NEEDED, "clone3"])
def test_a_server_without_it_says_so_and_leaves_nothing(tmp_path: Path, call: str) -> None:
    state = tmp_path / "state"
    with nothing_left():
        asked = subprocess.run(
            [*filtered(call, "EPERM"), *SERVE, "--state-dir", str(state)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    assert asked.returncode == 1
    assert call in asked.stderr
    assert "seccomp profile" in asked.stderr
    assert asked.stdout == ""
    assert "Traceback" not in asked.stderr


@pytest.mark.parametrize("call", ["splice", "memfd_create", "pidfd_open"])
@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_a_command_on_the_command_line(tmp_path: Path, call: str, sandbox: str) -> None:
    """With its output, or with a sentence and nothing left."""
    run = [sys.executable, "-m", "handrail", "run", "--json", "--sandbox", sandbox, "--"]
    with nothing_left():
        asked = subprocess.run(
            [*filtered(call, "EPERM"), *run, "sh", "-c", "echo all; exit 5"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            cwd=tmp_path,
            check=False,
        )
    print(asked.returncode, asked.stdout, asked.stderr)
    assert "Traceback" not in asked.stderr
    if asked.returncode != 5:
        assert asked.returncode == 125
        assert len((asked.stderr + asked.stdout).split()) > 8
    else:
        assert "all" in asked.stdout


def test_the_server_after_a_kill_goes_on_without_splice(tmp_path: Path) -> None:
    prefix = filtered("splice,sendfile,memfd_create", "ENOSYS")
    with nothing_left():
        server = ServerProcess(tmp_path / "state", prefix=prefix)
        with connect(server.url, proxy=None, ping_interval=None) as ws:
            client = Client(ws)
            client.start("p", "sh", "-c", "echo one; read x; echo two $x; exit 6", pipeStdin=True)
            client.until("process/output")
            os.kill(server.pid, signal.SIGKILL)
            server.process.wait()
        server.close()
        following = ServerProcess(tmp_path / "state", prefix=prefix)
        try:
            with connect(following.url, proxy=None, ping_interval=None) as ws:
                second = Client(ws, client.session)
                write(second, "p", b"hi\n")
                assert said(second, "p") == (b"one\ntwo hi\n", 6)
        finally:
            following.stop()
            following.close()
