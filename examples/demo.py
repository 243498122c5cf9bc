"""The main job in fifteen seconds: run, talk, resize, lose the line, lose the server, go on.

Starts a server of its own, speaks the wire to it with the ``websockets`` package, kills it in the
middle of a build and of an open REPL, and prints what happens.  ``make demo`` runs it.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from websockets.sync.client import ClientConnection, connect

BOLD, DIM, OFF = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")


class Client:
    """Just enough of a client to follow what goes over the wire."""

    def __init__(self, url: str, resume: str | None = None) -> None:
        self.ws: ClientConnection = connect(url, proxy=None).__enter__()
        self.ids = 0
        self.output: dict[str, bytes] = {}
        self.exits: dict[str, int] = {}
        self.last_seq: dict[str, int] = {}
        params = {"clientName": "demo", "resumeSessionId": resume}
        self.session = self.call("initialize", params)["sessionId"]
        self.ws.send(json.dumps({"method": "initialized"}))

    def call(self, method: str, params: dict[str, Any]) -> Any:
        self.ids += 1
        self.ws.send(json.dumps({"id": self.ids, "method": method, "params": params}))
        while (message := self.receive()).get("id") != self.ids:
            pass
        if "error" in message:
            raise SystemExit(f"{method}: {message['error']['message']}")
        return message["result"]

    def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.ws.recv(timeout=10))
        params = message.get("params", {})
        if "seq" in params:
            self.last_seq[params["processId"]] = params["seq"]
        if message.get("method") == "process/output":
            data = base64.b64decode(params["chunk"])
            self.output[params["processId"]] = self.output.get(params["processId"], b"") + data
        elif message.get("method") == "process/exited":
            self.exits[params["processId"]] = params["exitCode"]
        return message

    def start(self, name: str, argv: list[str], **more: Any) -> None:
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "TERM": "dumb"}
        base = {"processId": name, "argv": argv, "cwd": "file:///", "env": env, "tty": False}
        self.call("process/start", {**base, **more})

    def type(self, name: str, text: str) -> None:
        chunk = base64.b64encode(text.encode()).decode()
        self.ids += 1
        params = {"processId": name, "chunk": chunk, "writeId": f"w{self.ids}-{text}"}
        self.call("process/write", params)

    def wait_for(self, name: str, text: bytes) -> None:
        while text not in self.output.get(name, b""):
            self.receive()

    def wait_exit(self, name: str) -> int:
        while name not in self.exits:
            self.receive()
        return self.exits[name]


def say(headline: str, *lines: str) -> None:
    print(f"{BOLD}{headline}{OFF}")
    for line in lines:
        print(f"    {line}")


class Server:
    """``handrail serve`` on one state directory, again and again."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.start()

    def start(self) -> None:
        argv = [sys.executable, "-m", "handrail", "serve", "--state-dir", self.state]
        self.process = subprocess.Popen(
            [*argv, "--log-level", "error"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as state:
        server = Server(state)
        try:
            client = show(server.url, server.process.pid)
            survive(server, client)
        finally:
            code = server.stop()
    say("8. stopped", f"SIGTERM to the server: it ended its children and exited with {code}")
    print(f"{DIM}({time.perf_counter() - began:.1f} s in all){OFF}")


def show(url: str, pid: int) -> Client:
    client = Client(url)
    say("1. connected", f"{url} (server {pid}), session {client.session}")

    client.start("hello", ["sh", "-c", "echo hello from $(uname -s); echo careful >&2; exit 3"])
    code = client.wait_exit("hello")
    say("2. ran a command", *client.output["hello"].decode().splitlines(), f"exit code {code}")

    client.start("repl", [sys.executable, "-q"], tty=True)
    client.wait_for("repl", b">>> ")
    client.type("repl", "6 * 7\n")
    client.wait_for("repl", b"42")
    client.type("repl", "import os; os.get_terminal_size()\n")
    client.wait_for("repl", b"columns=80, lines=24")
    say("3. talked to a Python REPL in a terminal", "6 * 7 -> 42", "its terminal: 80 x 24")

    client.call("process/resize", {"processId": "repl", "rows": 50, "cols": 132})
    client.type("repl", "os.get_terminal_size()\n")
    client.wait_for("repl", b"columns=132, lines=50")
    say("4. resized it", "its terminal: 132 x 50")

    counter = "for i in 1 2 3 4 5 6 7 8; do echo tick $i; sleep 0.1; done"
    client.start("ticker", ["sh", "-c", counter])
    client.wait_for("ticker", b"tick 2")
    seen, after = client.output["ticker"], client.last_seq["ticker"]
    session = client.session
    client.ws.socket.close()
    say("5. lost the line", f"after {seen.decode().split(chr(10))[-2]!r}; nobody is connected now")

    time.sleep(0.3)
    client = Client(url, resume=session)
    text = b""
    while True:
        read = client.call(
            "process/read", {"processId": "ticker", "afterSeq": after, "waitMs": 2000}
        )
        text += b"".join(base64.b64decode(c["chunk"]) for c in read["chunks"])
        after = read["nextSeq"] - 1
        if read["closed"]:
            break
    got = (seen + text).decode().split("\n")[:-1]
    complete = got == [f"tick {i}" for i in range(1, 9)]
    client.type("repl", "6 * 7 + 1\n")
    client.wait_for("repl", b"43")
    say(
        "6. resumed the session",
        f"missed output: {', '.join(text.decode().split(chr(10))[:-1])}",
        f"nothing lost, nothing twice: {complete}",
        "the REPL is still there: 6 * 7 + 1 -> 43",
    )
    print("    the processes of the session:")
    for one in client.call("process/list", {})["processes"]:
        print(f"      {one['processId']:8} {one['state']:8} {' '.join(one['argv'])[:60]}")
    return client


#: Five steps, each of which says so and takes a moment; the last decides over the exit code.
BUILD = "for i in 1 2 3 4 5; do echo step $i of 5; sleep 0.15; done; echo built; exit 0"


def survive(server: Server, client: Client) -> None:
    client.start("build", ["sh", "-c", BUILD])
    client.wait_for("build", b"step 2")
    client.type("repl", "answer = 6 * 7\n")
    client.wait_for("repl", b"answer = 6 * 7")
    seen, after, session = client.output["build"], client.last_seq["build"], client.session
    pids = {one["processId"]: one["pid"] for one in client.call("process/list", {})["processes"]}
    killed = server.process.pid
    server.kill()
    down = time.perf_counter()
    server.start()
    client = Client(server.url, resume=session)
    back = time.perf_counter() - down
    text = b""
    while True:
        asked = {"processId": "build", "afterSeq": after, "waitMs": 2000}
        read = client.call("process/read", asked)
        text += b"".join(base64.b64decode(c["chunk"]) for c in read["chunks"])
        after = read["nextSeq"] - 1
        if read["closed"]:
            break
    lines = (seen + text).decode().split("\n")[:-1]
    complete = lines == [f"step {i} of 5" for i in range(1, 6)] + ["built"]
    client.type("repl", "print(answer + 1)\n")
    client.wait_for("repl", b"43")
    same = pids["repl"] == next(
        one["pid"]
        for one in client.call("process/list", {})["processes"]
        if one["processId"] == "repl"
    )
    say(
        f"7. killed the server (kill -9 {killed}) in the middle of a build and of the REPL",
        f"a new server (pid {server.process.pid}) had everything back in {back:.2f} s",
        f"the build went on from {seen.decode().split(chr(10))[-2]!r} and exited with"
        f" {read['exitCode']}; nothing lost, nothing twice: {complete}",
        f"the REPL is the same process: {same}; it still knows that answer + 1 is 43",
    )
    client.call("session/close", {})
    client.ws.close()


if __name__ == "__main__":
    main()
