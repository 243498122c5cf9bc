"""What a child can see of its server: as an ordinary user nothing, and no secret in any case."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tests.support.clients import dialled
from tests.support.eventually import eventually
from tests.support.processes import descriptors
from tests.support.servers import server_process
from tests.system.users import ordinary


def shown(pid: int) -> bytes:
    """What /proc shows of how a process was started."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def core_limit(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max core file size")).split()[4]


async def test_a_child_cannot_look_into_its_server(tmp_path: Path) -> None:
    home = tmp_path / "home"
    prefix = ordinary(home)
    token = secrets.token_hex(16)
    env = {"SECRET_OF_THE_SERVER": token, "HANDRAIL_INSPECT": ""}
    with server_process(home / "state", prefix=prefix, env=env) as server:
        keeper = server.keeper()
        async with dialled(server.url) as client:
            for pid in (server.pid, keeper):
                for name in ("environ", "maps", "fd", "mem"):
                    # Not `cat`: what is asked for is whether it may be opened at all.
                    look = f"if [ -d /proc/{pid}/{name} ]; then ls /proc/{pid}/{name};"
                    look += f" else head -c 1 < /proc/{pid}/{name}; fi; echo code $?"
                    key = f"{pid} {name}"
                    # Without the right to read everything that the test has to keep.
                    argv = ["/bin/sh", "-c", look]
                    if prefix:
                        argv = ["setpriv", "--inh-caps=-all", "--ambient-caps=-all", *argv]
                    await client.start(key, *argv)
                    await client.until_closed(key)
                    words = client.output(key)
                    assert b"ermission denied" in words, (name, words)
                    assert not words.endswith(b"code 0\n"), (name, words)


async def test_no_secret_reaches_a_child_or_the_keeper(tmp_path: Path) -> None:
    token = secrets.token_hex(32)
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    args = ("--ws-auth", "capability-token", "--ws-token-file", str(tmp_path / "token"))
    env = {"MY_PASSWORD": token, "HANDRAIL_INSPECT": "1"}
    with server_process(tmp_path / "state", *args, env=env) as server:
        keeper = server.keeper()
        headers = {"Authorization": f"Bearer {token}"}
        async with dialled(server.url, handshake=False, additional_headers=headers) as client:
            result = await client.handshake(resumeSecret=None)
            ours = (token, result["resumeSecret"], result["sessionId"])
            for tty in (False, True):
                name = str(tty)
                await client.shell(name, "cat /proc/self/environ; echo; exec sleep 600", tty=tty)
                await client.until_output(name, b"\n")
                (pid,) = (
                    row["pid"]
                    for row in (await client.call("process/list"))["processes"]
                    if row["processId"] == name
                )
                seen = shown(pid) + shown(keeper) + client.output(name)
                for secret in ours:
                    assert secret.encode() not in seen
                eventually(lambda pid=pid: sorted(descriptors(pid)) == [0, 1, 2], "three of them")
        # Nor is it in what was said, or in any file of the state directory.
        assert token not in server.words()
        for path in files(tmp_path / "state"):
            assert token.encode() not in path.read_bytes()


async def test_a_server_leaves_no_core_file(tmp_path: Path) -> None:
    with server_process(tmp_path / "state", env={"HANDRAIL_INSPECT": ""}) as server:
        assert core_limit(server.pid) == core_limit(server.keeper()) == "0"
        assert os.stat(f"/proc/{server.pid}/environ").st_uid == 0
