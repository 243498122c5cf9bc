"""Running one case: its steps one after the other, then its expectations."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.wire.checks import Evidence, check
from tests.wire.connections import Connection, StdioConnection, WebSocketConnection
from tests.wire.matching import substitute
from tests.wire.recording import is_response
from tests.wire.servers import Household, WebSocketServer

Case = dict[str, Any]
Step = dict[str, Any]
#: Seconds that a step waits for what it awaits, unless it says otherwise.
TIMEOUT = 15.0
#: Milliseconds for what comes after the last step, unless the case says otherwise.
SETTLE_MS = 150
RESUME_LIMIT = 5.0
#: Between two tries: nothing on the wire says when a server has noticed that a client is gone.
RESUME_PAUSE = 0.05


@dataclass
class Target:
    """The servers that cases run against."""

    #: The URL of the fixture of ``fixture_http``.
    http: str
    #: A listening server, and the command to start another one with further arguments.
    url: str | None = None
    ws_command: Sequence[str] | None = None
    stdio_command: Sequence[str] | None = None
    timeout: float = TIMEOUT
    #: Command lines of processes that servers of single cases left behind.
    leftovers: list[str] = field(default_factory=list)

    def transports(self, case: Case) -> list[str]:
        """On which transports a case can be run here."""
        if case.get("server_args") is not None and self.ws_command is None:
            return []
        there = [("ws", self.url), ("stdio", self.stdio_command)]
        return [kind for kind, way in there if way and case["transport"] in (kind, "any")]


async def run_case(case: Case, transport: str, target: Target) -> list[str]:
    """Run a case; gives what did not fit, nothing if all did.

    Raises AssertionError when something awaited does not come, and whatever a connection
    raises when the server hangs up on a step.
    """
    async with AsyncExitStack() as stack:
        run = CaseRun(case, transport, target, stack)
        run.prepare()
        for step in case["send"]:
            await run.do(substitute(step, run.names))
        await asyncio.sleep(case.get("settle_ms", SETTLE_MS) / 1000)
        evidence = run.evidence()
        return [
            sentence
            for expectation in case["expect"]
            for sentence in check(substitute(expectation, run.names), evidence)
        ]


class CaseRun:
    """One case on its way: a folder, captured names and open connections."""

    def __init__(self, case: Case, transport: str, target: Target, stack: AsyncExitStack) -> None:
        self.case = case
        self.transport = transport
        self.target = target
        self.stack = stack
        self.url = target.url
        self.root = os.path.realpath(tempfile.mkdtemp(prefix="replay-"))
        stack.callback(shutil.rmtree, self.root, ignore_errors=True)
        self.names: dict[str, Any] = {
            "CWD": self.root,
            "CWD_URI": "file://" + self.root,
            "HTTP": target.http,
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        }
        self.connections: dict[str, Connection] = {}
        self.answers: dict[str, tuple[int, str]] = {}

    def prepare(self) -> None:
        """A case with arguments for the server gets one of its own, and files for it to read."""
        arguments = self.case.get("server_args")
        if arguments is None:
            return
        for file in self.case.get("files", []):
            self.write(file["path"], file["text"].encode())
        command = [*self.target.ws_command, *substitute(arguments, self.names)]
        server = WebSocketServer(command)
        self.stack.callback(lambda: self.target.leftovers.extend(server.stop()))
        self.url = server.url

    def evidence(self) -> Evidence:
        """What the expectations are held against."""
        recordings = {name: c.recording for name, c in self.connections.items()}
        return Evidence(self.root, recordings, self.answers)

    # Connections.

    async def connection(self, name: str, headers: dict[str, str] | None = None) -> Connection:
        """The connection of that name, opened when it is first asked for."""
        if name not in self.connections:
            if self.transport == "ws":
                self.connections[name] = await self.open_websocket(headers)
            else:
                self.connections[name] = await self.open_stdio()
        return self.connections[name]

    async def open_websocket(self, headers: dict[str, str] | None = None) -> WebSocketConnection:
        """One more client of the listening server."""
        connection = await WebSocketConnection.open(self.url, headers)
        self.stack.push_async_callback(connection.end)
        return connection

    async def open_stdio(self) -> StdioConnection:
        """A server of its own."""
        household = Household()
        command = self.target.stdio_command
        connection = await StdioConnection.open(command, household.environment())

        async def end() -> None:
            with household.cleared(self.target.leftovers):
                await connection.end()

        self.stack.push_async_callback(end)
        return connection

    # Steps.

    async def do(self, step: Step) -> None:
        """Do one step; the first key of the table that is there says which."""
        for key, act in STEPS.items():
            if key in step:
                try:
                    await act(self, step)
                except FileNotFoundError as e:
                    raise AssertionError(f"an earlier step left something undone: {e}") from e
                return
        raise ValueError(f"a step of no known kind: {step}")

    async def of(self, step: Step) -> Connection:
        """The connection a step is about."""
        return await self.connection(step.get("conn", "a"))

    async def open(self, step: Step) -> None:
        await self.connection(step["open"], step.get("headers"))

    async def send_frame(self, step: Step) -> None:
        await (await self.of(step)).send(json.dumps(step["frame"]))

    async def send_text(self, step: Step) -> None:
        connection = await self.of(step)
        try:
            await connection.send(step["text"] * step.get("repeat", 1))
        except Exception:  # whatever the transport raises when the server has hung up
            if not step.get("may_fail"):
                raise

    async def send_binary(self, step: Step) -> None:
        await (await self.of(step)).send(step["binary"].encode())

    async def close(self, step: Step) -> None:
        await self.connections[step["close"]].close()

    async def abort(self, step: Step) -> None:
        await self.connections[step["abort"]].abort()

    async def sleep(self, step: Step) -> None:
        await asyncio.sleep(step["sleep"] / 1000)

    async def wait(self, step: Step) -> None:
        timeout = step.get("timeout_ms", self.target.timeout * 1000) / 1000
        await (await self.of(step)).wait_for(step["await"], timeout)

    async def capture(self, step: Step) -> None:
        """Keep a piece of an answer under a name that later steps can use."""
        recording = self.connections[step.get("conn", "a")].recording
        answers = (m for m in recording.messages if is_response(m) and m["id"] == step["id"])
        value: Any = next(answers, None)
        for key in step["path"].split("."):
            if not isinstance(value, dict) or key not in value:
                raise AssertionError(f"nothing at {step['path']} of answer {step['id']}")
            value = value[key]
        self.names[step["capture"]] = value

    async def reply(self, step: Step) -> None:
        """Answer a request of the server."""
        connection = self.connections[step.get("conn", "a")]
        selector = "note:" + step["reply"]
        await connection.wait_for(selector, self.target.timeout)
        request = connection.recording.messages[connection.recording.find(selector)]
        outcome = {key: step[key] for key in ("result", "error") if key in step}
        await connection.send(json.dumps({"id": request["id"], **outcome}))

    async def resume_until_ok(self, step: Step) -> None:
        """Try to resume until the server agrees, or the time is over."""
        frame = step["resume_until_ok"]
        deadline = time.monotonic() + RESUME_LIMIT
        while True:
            connection = await self.open_websocket()
            await connection.send(json.dumps(frame))
            await connection.wait_for(f"resp:{frame['id']}", RESUME_LIMIT)
            answer = connection.recording.response(frame["id"])
            if "result" in answer or time.monotonic() > deadline:
                self.connections[step.get("conn", "a")] = connection
                return
            await connection.close()
            await asyncio.sleep(RESUME_PAUSE)

    async def request_http(self, step: Step) -> None:
        self.answers[step["as"]] = await asyncio.to_thread(fetch, self.url, step["http"])

    # Steps in the folder of the case.

    def write(self, path: str, data: bytes) -> None:
        with open(os.path.join(self.root, path), "wb") as f:
            f.write(data)

    async def write_file(self, step: Step) -> None:
        if "base64" in step:
            data = base64.b64decode(step["base64"])
        else:
            data = (step["text"] * step.get("repeat", 1)).encode()
        self.write(step["write_file"], data)

    async def make_folder(self, step: Step) -> None:
        os.makedirs(os.path.join(self.root, step["mkdir"]))

    async def make_symlink(self, step: Step) -> None:
        os.symlink(step["to"], os.path.join(self.root, step["symlink"]))

    async def make_fifo(self, step: Step) -> None:
        os.mkfifo(os.path.join(self.root, step["fifo"]))


#: ``write_file`` has a text of its own, so it stands before ``text``.
STEPS = {
    "open": CaseRun.open,
    "frame": CaseRun.send_frame,
    "write_file": CaseRun.write_file,
    "text": CaseRun.send_text,
    "binary": CaseRun.send_binary,
    "close": CaseRun.close,
    "abort": CaseRun.abort,
    "sleep": CaseRun.sleep,
    "mkdir": CaseRun.make_folder,
    "symlink": CaseRun.make_symlink,
    "fifo": CaseRun.make_fifo,
    "http": CaseRun.request_http,
    "await": CaseRun.wait,
    "capture": CaseRun.capture,
    "reply": CaseRun.reply,
    "resume_until_ok": CaseRun.resume_until_ok,
}


def fetch(url: str, request: dict[str, Any]) -> tuple[int, str]:
    """A plain HTTP request to a WebSocket listener."""
    connection = http.client.HTTPConnection(url.split("//", 1)[1].rstrip("/"), timeout=5)
    try:
        headers = request.get("headers", {})
        connection.request(request.get("method", "GET"), request["path"], headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    finally:
        connection.close()
