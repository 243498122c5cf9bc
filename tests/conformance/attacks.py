"""Cases of the sandbox: a trap is set, a command runs inside, and from outside one looks for its
effect.  The commands go through our own server, as those of any client do.

``tests/cases/README.md`` has the form of a case.  Cases that need an ordinary user are left out
for root, and so are those that kill the program that started the command: with us that is no end.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conformance.comparison import NotRunError

#: Not under /tmp, which profiles may make writable.
BASE = "/var/tmp"
LIMIT = 25.0
GIT = (
    "git init -q . && rm -f .git/hooks/* && git add f0"
    " && git -c user.name=a -c user.email=a@b commit -qm init"
)


class Server:
    """Our server in a process of its own, and one client of it."""

    def __init__(self, home: str, fds: dict[int, int] | None = None) -> None:
        from websockets.sync.client import connect

        wanted = fds or {}

        def hand_down() -> None:
            for number, descriptor in wanted.items():
                os.dup2(descriptor, number)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "handrail", "serve", "--listen", "ws://127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": home, "XDG_RUNTIME_DIR": home},
            pass_fds=tuple(wanted),
            preexec_fn=hand_down if wanted else None,  # noqa: PLW1509 (one thread here)
        )
        assert self.process.stdout is not None
        self._socket = connect(
            self.process.stdout.readline().strip(), max_size=None, ping_interval=None
        )
        self._last = 0
        self.call("initialize", {"clientName": "attacks"})
        self._socket.send(json.dumps({"method": "initialized", "params": {}}))

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": params}))
        while True:
            message: dict[str, Any] = json.loads(self._socket.recv(timeout=40))
            if "method" in message and "id" in message:
                # The server asks whether a host may be reached.
                refusal = {"decision": {"type": "deny", "reason": "no"}}
                self._socket.send(json.dumps({"id": message["id"], "result": refusal}))
            elif message.get("id") == self._last:
                return message

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it may have gone already
            self._socket.close()
        self.process.terminate()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Range:
    """Where the cases are run: a folder and a server, made for the first of them."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="attacks-", dir=BASE)
        os.chmod(self.folder, 0o755)
        self.server = Server(self.folder)
        self.count = 0

    def close(self) -> None:
        self.server.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_range: list[Range] = []


def close() -> None:
    """End the server, if there is one."""
    while _range:
        _range.pop().close()


atexit.register(close)


def sandbox_attacks(case: dict[str, Any]) -> str | None:
    if case.get("unpriv_only") and os.geteuid() == 0:
        raise NotRunError("only for an ordinary user")
    if case.get("kill_launcher_after_ms"):
        raise NotRunError("a command outlives the program that started it here, by design")
    if not _range:
        _range.append(Range())
    place = _range[0]
    place.count += 1
    with _laid_out(case, place.folder) as (here, names, env):
        try:
            with _server(case, place, names) as server:
                code, output, said = _command(server, case, names, env, f"attack-{place.count}")
        except (OSError, TimeoutError, EOFError):
            close()  # the next case gets a new server
            raise
        (here / "cmdout").write_bytes(output)
        check = subprocess.run(
            ["bash", "-c", case["check"]],
            cwd=here,
            env={**env, "CMD_OUT": str(here / "cmdout"), "CMD_RC": str(code)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
    happened = check.returncode == 0
    if happened == (case["must"] == "succeed"):
        return None
    return f"must {case['must']}, the effect {'happened' if happened else 'did not'}: {said!r}"


@contextlib.contextmanager
def _laid_out(
    case: dict[str, Any], base: str
) -> Iterator[tuple[Path, dict[str, str], dict[str, str]]]:
    here = Path(tempfile.mkdtemp(prefix="case-", dir=base))
    work, out = here / "ws", here / "out"
    work.mkdir()
    out.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    names = {"WS": str(work), "OUT": str(out), "PORT": port}
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": base, "LANG": "C.UTF-8", **names}
    env["WANT_UID"] = str(os.geteuid())
    (out / "secret").write_text("TOPSECRET\n")
    (work / "f0").write_text("0\n")
    if not case.get("nogit"):
        subprocess.run(GIT, shell=True, cwd=work, env=env, check=True)
    helper = None
    try:
        if case.get("setup"):
            helper = subprocess.Popen(
                ["bash", "-c", case["setup"]],
                cwd=here,
                env=env,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            helper.wait()
        yield here, names, env
    finally:
        if helper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(helper.pid, signal.SIGKILL)
        subprocess.run(["chmod", "-R", "u+rwx", here], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(here, ignore_errors=True)


@contextlib.contextmanager
def _server(case: dict[str, Any], place: Range, names: dict[str, str]) -> Iterator[Server]:
    """The server, or one that was started with the descriptors a case asks for."""
    if not case.get("fds"):
        yield place.server
        return
    opened: dict[int, int] = {}
    for number, what in _filled(case["fds"], names).items():
        kind, _, path = what.partition(":")
        flags = os.O_WRONLY if kind == "w" else os.O_RDONLY | os.O_DIRECTORY
        opened[int(number)] = os.open(path, flags)
    with tempfile.TemporaryDirectory(dir=place.folder) as home:
        server = Server(home, opened)
        try:
            yield server
        finally:
            server.close()
            for descriptor in opened.values():
                os.close(descriptor)


def _command(
    server: Server,
    case: dict[str, Any],
    names: dict[str, str],
    env: dict[str, str],
    process_id: str,
) -> tuple[int | None, bytes, str]:
    """Run the command of a case: exit code, stdout, and the end of what it said."""
    answer = server.call("process/start", _start(case, names, env, process_id))
    if "error" in answer:
        return None, b"", f"refused: {answer['error']}"
    writes = 0

    def write(text: str) -> None:
        nonlocal writes
        writes += 1
        chunk = base64.b64encode(text.encode()).decode()
        params = {"processId": process_id, "chunk": chunk, "writeId": f"w{writes}"}
        server.call("process/write", params)

    if case.get("stdin"):
        write(case["stdin"])
    later = [(ms / 1000 + 0.5, text) for ms, text in case.get("tty_send", [])]
    stdout, said, after = b"", b"", 0
    begun = time.monotonic()
    while time.monotonic() - begun < LIMIT:
        while later and time.monotonic() - begun > later[0][0]:
            write(later.pop(0)[1])
        read = {"processId": process_id, "afterSeq": after, "maxBytes": 1 << 20, "waitMs": 200}
        got = server.call("process/read", read).get("result") or {}
        for chunk in got.get("chunks", []):
            after, data = chunk["seq"], base64.b64decode(chunk["chunk"])
            said = (said + data)[-300:]
            if chunk["stream"] != "stderr":
                stdout += data
        if got.get("closed"):
            return got.get("exitCode"), stdout, said.decode(errors="replace")
        if case.get("stdin") and case["stdin"].strip().encode() in stdout:
            break  # it holds its stdin open; what was to be seen was seen
    server.call("process/terminate", {"processId": process_id})
    return None, stdout, said.decode(errors="replace")


def _start(
    case: dict[str, Any], names: dict[str, str], env: dict[str, str], process_id: str
) -> dict[str, Any]:
    work = names["WS"]
    shell = "/bin/" + case.get("shell", "sh")
    argv = _filled(case["argv"], names) if "argv" in case else [shell, "-c", case["command"]]
    params: dict[str, Any] = {
        "processId": process_id,
        "argv": argv,
        "cwd": "file://" + _filled(case.get("cwd", "$WS"), names),
        "env": {**env, **_filled(case.get("env", {}), names)},
        "tty": bool(case.get("tty")),
        "pipeStdin": bool(case.get("stdin")),
        "arg0": None,
        "sandbox": {
            "permissions": _filled(case["profile"], names),
            "cwd": f"file://{work}",
            "workspaceRoots": [f"file://{work}"],
            "windowsSandboxLevel": "disabled",
        },
    }
    if "domains" in case:
        proxy = {
            "enabled": True,
            "enableSocks5": True,
            "enableSocks5Udp": False,
            "allowUpstreamProxy": False,
            "dangerouslyAllowAllUnixSockets": False,
            "mode": "full",
            "domains": case["domains"],
            "unixSockets": None,
            "allowLocalBinding": False,
        }
        params |= {"enforceManagedNetwork": True, "networkProxy": {"proxy": proxy}}
    return params


def _filled(value: Any, names: dict[str, str]) -> Any:
    """``value`` with the names of the places put in."""
    if isinstance(value, str):
        return string.Template(value).safe_substitute(names)
    if isinstance(value, list):
        return [_filled(part, names) for part in value]
    if isinstance(value, dict):
        return {key: _filled(part, names) for key, part in value.items()}
    return value
