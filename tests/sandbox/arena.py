"""The contract of a case in ``attacks.jsonl`` and ``more_attacks.jsonl``, and two ways to run one.

A case gets a fresh workspace ``$WS`` (a repository with one commit unless ``nogit``) and a
sibling ``$OUT`` that holds a secret, neither under the system's temporary directory.  ``setup``
and ``check`` are bash, outside; ``command`` runs inside.  ``check`` exits 0 if the effect
happened, and that must be so exactly if ``must`` is ``succeed``.  A refusal to start holds an
attack.
"""

from __future__ import annotations

import base64
import functools
import itertools
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect

#: The recorded ones, and our own.
CASES = [Path(__file__).with_name(name) for name in ("attacks.jsonl", "more_attacks.jsonl")]
PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
ORDINARY_UID = 1000
SOURCE = Path(__file__).parents[2] / "src"

Case = dict[str, Any]
_processes = itertools.count(1)


def load() -> list[Case]:
    return [json.loads(line) for file in CASES for line in file.read_text().splitlines()]


def fill(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return string.Template(value).safe_substitute(names)
    if isinstance(value, list):
        return [fill(item, names) for item in value]
    if isinstance(value, dict):
        return {key: fill(item, names) for key, item in value.items()}
    return value


class Room:
    """The surroundings of one case, made and cleared by the user it runs as."""

    def __init__(self, case: Case, base: str, uid: int) -> None:
        self.case = case
        self.uid = uid
        self.here = tempfile.mkdtemp(prefix="c", dir=base)
        self.ws, self.out = f"{self.here}/ws", f"{self.here}/out"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.names = {"WS": self.ws, "OUT": self.out, "PORT": port}
        self.env = {"PATH": PATH, "HOME": base, "LANG": "C.UTF-8", **self.names}
        self.env["WANT_UID"] = str(uid)
        os.mkdir(self.ws)
        os.mkdir(self.out)
        Path(self.out, "secret").write_text("TOPSECRET\n")
        Path(self.ws, "f0").write_text("0\n")
        for place in (self.here, self.ws, self.out, f"{self.out}/secret", f"{self.ws}/f0"):
            os.chown(place, uid, uid if uid != os.getuid() else -1)
        self.helper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if not self.case.get("nogit"):
            self.outside(
                "git init -q . && rm -f .git/hooks/*; git add f0 &&"
                " git -c user.name=a -c user.email=a@b commit -qm init",
                self.ws,
            ).check_returncode()
        if self.case.get("setup"):
            self.helper = subprocess.Popen(
                self._as_user(["bash", "-c", self.case["setup"]]),
                cwd=self.here,
                env=self.env,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.helper.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        if self.helper is not None:
            try:
                os.killpg(self.helper.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        subprocess.run(["chmod", "-R", "u+rwx", self.here], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.here, ignore_errors=True)

    def outside(self, script: str, cwd: str, **extra: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self._as_user(["bash", "-c", script]),
            cwd=cwd,
            env={**self.env, **extra},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )

    def _as_user(self, argv: list[str]) -> list[str]:
        return argv if self.uid == os.getuid() else [*as_uid(self.uid), *argv]

    def argv(self) -> list[str]:
        if "argv" in self.case:
            words: list[str] = fill(self.case["argv"], self.names)
            return words
        return ["/bin/" + self.case.get("shell", "sh"), "-c", self.case["command"]]

    def command_env(self) -> dict[str, str]:
        return {**self.env, **fill(self.case.get("env", {}), self.names)}

    def holds(self, output: bytes, code: int | None, **seen: str) -> bool:
        """Whether what happened is what had to; ``seen``: names of files with more to look at."""
        path = Path(self.here, "cmdout")
        path.write_bytes(output)
        seen |= {"CMD_OUT": str(path), "CMD_RC": str(code)}
        found = self.outside(self.case["check"], self.here, **seen)
        return (found.returncode == 0) == (self.case["must"] == "succeed")


def users() -> list[int]:
    """Ourselves, and an ordinary user if we can become one."""
    own = os.getuid()
    return [own, ORDINARY_UID] if own == 0 and python_for(ORDINARY_UID) else [own]


def as_uid(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


class Wire:
    """A client that runs cases through ``process/start``."""

    def __init__(self, url: str, session: str | None = None, *, home: str = "") -> None:
        self.port = url.rpartition(":")[2]
        self.home = home
        self._socket = connect(url, max_size=None, legacy=True, ping_interval=None)
        self._last = 0
        answer = self.call("initialize", {"clientName": "arena", "resumeSessionId": session})
        self.session: str = answer["result"]["sessionId"]
        self._socket.send(json.dumps({"method": "initialized", "params": {}}))

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": params}))
        while True:
            message: dict[str, Any] = json.loads(self._socket.recv(timeout=40))
            if message.get("id") == self._last and "method" not in message:
                return message
            if "method" in message:
                self.heard(message)

    def heard(self, message: dict[str, Any]) -> None:
        """A request or notification of the server."""

    def write(self, process: str, data: bytes, write_id: str) -> None:
        chunk = base64.b64encode(data).decode()
        self.call("process/write", {"processId": process, "chunk": chunk, "writeId": write_id})

    def run(self, room: Room) -> tuple[bytes, int | None, str]:
        """Output, exit code, and the last that was said."""
        case = room.case
        process = f"a{next(_processes)}"
        stdin = case.get("stdin")
        cwd = fill(case.get("cwd", "$WS"), room.names)
        params = {
            "processId": process,
            "argv": room.argv(),
            "cwd": f"file://{cwd}",
            "env": room.command_env(),
            "tty": bool(case.get("tty")),
            "pipeStdin": bool(stdin),
            "arg0": None,
            "sandbox": {
                "permissions": fill(case["profile"], room.names),
                "cwd": f"file://{room.ws}",
                "workspaceRoots": [f"file://{room.ws}"],
                "windowsSandboxLevel": "disabled",
            },
        }
        if "domains" in case:
            params |= managed_network(fill(case["domains"], room.names))
        self.prepare(case, params)
        answer = self.call("process/start", params)
        if "error" in answer:
            return b"", -999, f"refused: {answer['error']}"
        if stdin:
            self.write(process, stdin.encode(), "w")
        return self._follow(process, case, stdin)

    def read(self, page: dict[str, Any]) -> None:
        """Look at what was read of a process, and at the time."""

    def prepare(self, case: Case, params: dict[str, Any]) -> None:
        """Change what is asked for, before it is."""

    def _follow(self, process: str, case: Case, stdin: str | None) -> tuple[bytes, int | None, str]:
        output, said, after = b"", b"", 0
        sends = list(case.get("tty_send", []))
        start = time.monotonic()
        while time.monotonic() - start < 20:
            if sends and (time.monotonic() - start) * 1000 > sends[0][0] + 500:
                self.write(process, sends.pop(0)[1].encode(), f"s{len(sends)}")
            wanted = {"processId": process, "afterSeq": after, "maxBytes": 1 << 20, "waitMs": 200}
            page = self.call("process/read", wanted).get("result") or {}
            self.read(page)
            for chunk in page.get("chunks", []):
                after, data = chunk["seq"], base64.b64decode(chunk["chunk"])
                said += data
                if chunk["stream"] != "stderr":
                    output += data
            if stdin and stdin.encode().strip() in output:
                self.call("process/terminate", {"processId": process})
                stdin = None
            if page.get("closed"):
                return output, page.get("exitCode"), said.decode(errors="replace")[-300:]
        self.call("process/terminate", {"processId": process})
        return output, None, "it took too long"


def managed_network(domains: Mapping[str, str], **members: Any) -> dict[str, Any]:
    """The members of a start with a managed network."""
    proxy = {
        "enabled": True,
        "enableSocks5": True,
        "enableSocks5Udp": False,
        "allowUpstreamProxy": False,
        "dangerouslyAllowAllUnixSockets": False,
        "mode": "full",
        "domains": domains,
        "unixSockets": None,
        "allowLocalBinding": False,
        **members,
    }
    return {"enforceManagedNetwork": True, "networkProxy": {"proxy": proxy}}


def run_by_command_line(room: Room) -> tuple[bytes, int, str]:
    """The same case through ``handrail sandbox``, with the descriptors it asks for."""
    case = room.case
    numbers = {int(n): fill(what, room.names) for n, what in case.get("fds", {}).items()}
    words = [sys.executable, "-m", "handrail", "sandbox"]
    words += ["--profile", json.dumps(fill(case["profile"], room.names)), "--root", room.ws]
    words += ["--cwd", fill(case.get("cwd", "$WS"), room.names), "--", *room.argv()]
    actions: list[Any] = []
    for number, what in numbers.items():
        kind, _, path = what.partition(":")
        flags = os.O_WRONLY if kind == "w" else os.O_RDONLY | os.O_DIRECTORY
        actions.append((os.POSIX_SPAWN_OPEN, number, path, flags, 0))
    out = os.open(f"{room.here}/cli-out", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        actions += [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, out, 2)]
        env = {**room.command_env(), "PYTHONPATH": str(SOURCE)}
        pid = os.posix_spawn(words[0], words, env, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        output = os.pread(out, 1 << 20, 0)
    finally:
        os.close(out)
    return output, os.waitstatus_to_exitcode(status), output.decode(errors="replace")[-300:]


@functools.cache
def python_for(uid: int) -> dict[str, Any] | None:
    """An interpreter and its path with which another user can run us; None where there is none."""
    packages = [path for path in sys.path if path.endswith("-packages")]
    env = {"PATH": PATH, "PYTHONPATH": os.pathsep.join([str(SOURCE), *packages])}
    # It must be able to start itself, as a server starts its keeper.
    script = "import handrail.server.app, os, sys; os.execv(sys.executable, ['python', '-c', ''])"
    for python in (sys.executable, "/usr/bin/python3"):
        argv = [*as_uid(uid), python, "-c", script]
        try:
            tried = subprocess.run(argv, env=env, cwd="/", capture_output=True, check=False)
        except OSError:
            return None
        if tried.returncode == 0:
            return {"python": python, "env": env}
    return None


@contextmanager
def serving(base: str, uid: int, *options: str, warm: str = "") -> Iterator[tuple[str, str]]:
    """A server of this user, with a home of its own; gives its URL and that home.

    ``warm``: whether commands start from sandboxes that wait, ``on`` or ``off``.
    """
    home = tempfile.mkdtemp(prefix="home", dir=base)
    os.chown(home, uid, -1)
    argv = [sys.executable, "-m", "handrail", "serve", "--listen", "ws://127.0.0.1:0", *options]
    env = {**os.environ, "HOME": home}
    env.pop("XDG_STATE_HOME", None)
    if uid != os.getuid():
        found = python_for(uid)
        assert found is not None
        argv = [*as_uid(uid), found["python"], *argv[1:]]
        env = {**found["env"], "HOME": home}
    if warm:
        env["HANDRAIL_WARM"] = warm
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd="/")
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip(), home
    finally:
        server.terminate()
        server.wait(20)
        server.stdout.close()
        shutil.rmtree(home, ignore_errors=True)
