"""Run recorded cases of a managed network in a private world: ``world_cases.py FILE NAME...``

Prints one JSON object for each case: its name, whether it holds, and the last that was said.  A
program of its own, for a world needs namespaces of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.network import world
from tests.sandbox.arena import Case, Room, Wire, fill

#: Milliseconds that the client of a case has for an answer.
DECISION_MS = 4000
_SERVE = [sys.executable, "-m", "handrail", "serve", "--listen", "ws://127.0.0.1:0", "--state-dir"]


class Server:
    """A server of the world; crashes on request."""

    def __init__(self, state: str, env: dict[str, str] | None = None) -> None:
        self._words = [*_SERVE, state]
        self._env = {**os.environ, **(env or {})}
        self._begin()

    def _begin(self) -> None:
        self._process = subprocess.Popen(
            self._words,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._env,
            cwd="/",
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def crash(self) -> None:
        self._process.kill()
        self._process.wait()
        self._begin()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)


class WorldWire(Wire):
    """A client that answers questions about hosts, and writes down what it is told."""

    def __init__(self, server: Server, case: Case) -> None:
        self._server = server
        self._case = case
        self._crash: float | None = case.get("crash_after_ms")
        self.asked: list[Any] = []
        self.decisions: list[Any] = []
        self.denials: list[Any] = []
        self.errors = b""
        super().__init__(server.url)
        self._began = time.monotonic()

    def heard(self, message: dict[str, Any]) -> None:
        params = message["params"]
        if message["method"] == "network/policyDecision":
            self.decisions.append(params)
        elif "id" in message:
            self.asked.append(params)
            answers = self._case.get("answers", {})
            said = answers.get(params["request"]["host"], answers.get("*", "deny"))
            decision = {"type": "allow"} if said == "allow" else {"type": "deny", "reason": "no"}
            if said != "silent":
                answer = {"id": message["id"], "result": {"decision": decision}}
                self._socket.send(json.dumps(answer))

    def prepare(self, case: Case, params: dict[str, Any]) -> None:
        names = {"FAR": world.FAR, "FAR2": world.FAR2, "FAR6": world.FAR6, "OWN": world.OWN}
        proxy = params["networkProxy"]["proxy"]
        proxy["domains"] = fill_keys(proxy["domains"], names)
        proxy |= fill(case.get("network", {}), names)
        if "answers" in case:
            params["networkProxy"]["policyDecisionTimeoutMs"] = DECISION_MS
        if case.get("no_proxy_data"):
            del params["networkProxy"]

    def read(self, page: dict[str, Any]) -> None:
        self.denials = page.get("denials") or self.denials
        if self._crash is not None and (time.monotonic() - self._began) * 1000 > self._crash:
            self._crash = None
            self._server.crash()
            again = Wire(self._server.url, self.session)
            self._socket, self._last = again._socket, again._last


def fill_keys(values: dict[str, str], names: dict[str, str]) -> dict[str, str]:
    return {str(fill(key, names)): value for key, value in values.items()}


def run(case: Case, base: str, around: world.World, server: Server) -> dict[str, Any]:
    """Run one case; what it saw of the world begins here."""
    begun = [len(log.read_text()) for log in (around.far_log, around.names_log)]
    with Room(case, base, os.getuid()) as room:
        room.env |= {"FAR": world.FAR, "FAR2": world.FAR2, "FAR6": world.FAR6, "OWN": world.OWN}
        wire = WorldWire(server, case)
        output, code, said = wire.run(room)
        wire.close()
        seen = {
            "FARLOG": around.far_log.read_text()[begun[0] :],
            "DNSLOG": around.names_log.read_text()[begun[1] :],
            "ASKED": "".join(json.dumps(one) + "\n" for one in wire.asked),
            "DECISIONS": "".join(json.dumps(one) + "\n" for one in wire.decisions),
            "DENIALS": json.dumps(wire.denials),
            "CMD_ERR": said,
        }
        places = {}
        for name, text in seen.items():
            places[name] = f"{room.here}/{name}"
            Path(places[name]).write_text(text)
        return {"name": case["name"], "holds": room.holds(output, code, **places), "said": said}


def main(file: str, names: list[str]) -> None:
    cases = [json.loads(line) for line in Path(file).read_text().splitlines()]
    base = tempfile.mkdtemp(prefix="handrail-world-", dir="/var/tmp")
    os.chmod(base, 0o755)
    around = world.World(Path(base))
    server = Server(f"{base}/state")
    try:
        for case in cases:
            if case["name"] not in names:
                continue
            own = (
                Server(f"{base}/{case['name']}", case["server_env"])
                if "server_env" in case
                else None
            )
            try:
                print(json.dumps(run(case, base, around, own or server)), flush=True)
            finally:
                if own is not None:
                    own.end()
    finally:
        server.end()
        around.close()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    world.enter()
    main(sys.argv[1], sys.argv[2:])
