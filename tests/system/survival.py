"""A server that is killed again and again, a client that comes back each time, and a checker.

Children write a stream whose every byte follows from its position, so loss, doubling and
reordering are seen by content.  A run is named by its seed.  From the command line this is the
long run (``python tests/system/survival.py --kills 200 --mib 1024``); the tests run small ones.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

LIMIT = 30.0
PERIOD = b"".join(b"%07d\n" % n for n in range(131_071))  # a prime: no power of two divides it
_TWICE = PERIOD * 2

#: ``child SEED BYTES EXIT``: writes the stream in pieces of all sizes, then exits with that code.
WRITER = """
import os, random, sys
seed, size, code = map(int, sys.argv[1:4])
if os.isatty(1):
    import tty
    tty.setraw(1)
period = b"".join(b"%07d\\n" % n for n in range(131071))
twice = period * 2
rng, at = random.Random(seed), 0
while at < size:
    want = min(rng.choice((1, 7, 100, 4096, 5000, 65536, 300000)), size - at)
    view = memoryview(twice)[at % len(period):][:want]
    while view:
        done = os.write(1, view)
        view, at = view[done:], at + done
os._exit(code)
"""

#: Sends back what it gets, to the end of its input or for so many bytes.
ECHO = """
import os, sys
left = int(sys.argv[1])
if os.isatty(0):
    import tty
    tty.setraw(0)
    os.write(1, b"!")
while left:
    data = os.read(0, min(65536, left))
    if not data:
        break
    left -= len(data)
    while data:
        data = data[os.write(1, data):]
os._exit(9)
"""


def expected(at: int, size: int) -> bytes:
    """The bytes of the stream at a position; of one period at most."""
    start = at % len(PERIOD)
    return _TWICE[start : start + size]


class Wrong(AssertionError):
    """The checker has found something."""


@dataclass
class Followed:
    """One process as its client has seen it."""

    name: str
    size: int
    code: int
    seq: int = 0
    at: int = 0
    skip: int = 0  # bytes before the stream begins
    exit_code: int | None = None
    closed: bool = False
    ahead: dict[int, dict[str, Any]] = field(default_factory=dict)

    def take(self, seq: int, event: dict[str, Any]) -> None:
        """An event, from a notification or an answer; each number counts once, in order."""
        if seq <= self.seq:
            return
        self.ahead[seq] = event
        while (event := self.ahead.pop(self.seq + 1, None)) is not None:  # type: ignore[assignment]
            self.seq += 1
            if "chunk" in event:
                self._check(base64.b64decode(event["chunk"]))
            elif "exitCode" in event:
                self.exit_code = event["exitCode"]
            else:
                self.closed = True

    def _check(self, data: bytes) -> None:
        if self.skip:
            data, self.skip = data[self.skip :], max(0, self.skip - len(data))
        for at in range(0, len(data), len(PERIOD)):
            piece = data[at : at + len(PERIOD)]
            if piece != expected(self.at, len(piece)):
                raise Wrong(f"{self.name}: other bytes than expected near {self.at}")
            self.at += len(piece)

    def verdict(self) -> None:
        if (self.at, self.exit_code, self.closed) != (self.size, self.code, True):
            raise Wrong(
                f"{self.name}: {self.at} of {self.size} bytes, exit {self.exit_code} instead of"
                f" {self.code}, closed: {self.closed}"
            )


class Rig:
    """A state directory, its server of the moment, and a client that follows."""

    def __init__(self, state: Path | None, *flags: str, seed: int = 0, faults: str = "") -> None:
        self.state = state
        self.flags = flags
        self.rng = random.Random(seed)
        self.server: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.ws: ClientConnection | None = None
        self.session: str | None = None
        self.ids = 0
        self.followed: dict[str, Followed] = {}
        self.reached: Counter[str] = Counter()  # what a run has come across
        self.kills = 0
        self.start_server(faults)

    # --- the server ----------------------------------------------------------------------------

    def start_server(self, faults: str = "") -> None:
        if self.server is not None and self.server.stdout is not None:
            self.server.stdout.close()
        level = os.environ.get("RIG_LOG", "error")
        argv = [sys.executable, "-m", "handrail", "serve", "--log-level", level, *self.flags]
        if self.state is not None:
            argv += ["--state-dir", str(self.state)]
        env = {**os.environ, "HANDRAIL_FAULTS": faults}
        self.server = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env)
        assert self.server.stdout is not None
        ready = select.select([self.server.stdout], [], [], LIMIT)[0]
        self.url = self.server.stdout.readline().decode().strip() if ready else ""
        if not self.url:
            raise Wrong(f"the server did not start: exit {self.server.poll()}")

    def kill(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait(LIMIT)
        assert self.server.stdout is not None
        self.server.stdout.close()
        self.kills += 1

    def stop(self) -> None:
        """Everything of it is gone afterwards."""
        if self.ws is not None:
            self.ws.close_socket()
        server = self.server
        if server is not None:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
            server.wait(LIMIT)
            if server.stdout is not None:
                server.stdout.close()

    # --- the client ----------------------------------------------------------------------------

    def attach(self) -> None:
        """Connect, and ask each process for what was missed."""
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                self.ws = connect(
                    self.url, proxy=None, max_size=None, compression=None, ping_interval=None
                ).__enter__()
                params = {"clientName": "survival", "resumeSessionId": self.session}
                self.session = self.call("initialize", **params)["sessionId"]
                break
            except (OSError, ConnectionClosed):
                if time.monotonic() > deadline:
                    raise
        self.ws.send('{"method":"initialized"}')
        for one in self.followed.values():
            self.catch_up(one)

    def catch_up(self, one: Followed) -> None:
        """Read from the last number we have, as far as there is something."""
        while True:
            answer = self.call("process/read", processId=one.name, afterSeq=one.seq)
            if "omitted" in answer:
                raise Wrong(f"{one.name}: {answer['omitted']} were dropped")
            before = one.seq
            for chunk in answer["chunks"]:
                one.take(chunk["seq"], chunk)
                self.reached["read back"] += 1
            last = answer["nextSeq"] - 1
            if answer["exited"]:
                self._fill(one, last, answer)
            if one.seq >= last or one.seq == before:
                return

    def _fill(self, one: Followed, last: int, answer: dict[str, Any]) -> None:
        """The exit and the close have numbers of their own and are not among the chunks."""
        if answer["closed"] and one.seq < last:
            one.take(last, {})
        missing = [n for n in range(one.seq + 1, last + 1) if n not in one.ahead]
        if one.exit_code is None and len(missing) == 1:
            one.take(missing[0], {"exitCode": answer["exitCode"]})

    def call(self, method: str, **params: Any) -> Any:
        answer = self.try_call(method, **params)
        if "error" in answer:
            raise Wrong(f"{method}: {answer['error']}")
        return answer["result"]

    def try_call(self, method: str, **params: Any) -> Any:
        serial = self.send(method, **params)
        while (message := self.receive()).get("id") != serial:
            pass
        return message

    def send(self, method: str, **params: Any) -> int:
        assert self.ws is not None
        self.ids += 1
        self.ws.send(json.dumps({"id": self.ids, "method": method, "params": params}))
        return self.ids

    def receive(self, within: float = LIMIT) -> dict[str, Any]:
        assert self.ws is not None
        message: dict[str, Any] = json.loads(self.ws.recv(timeout=within))
        params = message.get("params", {})
        one = self.followed.get(params.get("processId", ""))
        if one is not None and "seq" in params:
            one.take(params["seq"], params)
        return message

    def start(self, one: Followed, *argv: str, **more: Any) -> None:
        self.followed[one.name] = one
        env = {"PATH": os.environ["PATH"]}
        base = {"processId": one.name, "argv": list(argv), "cwd": "file:///", "env": env}
        self.call("process/start", **{**base, "tty": False, "onLag": "block", **more})

    def write(self, name: str, write_id: str, data: bytes) -> dict[str, Any]:
        chunk = base64.b64encode(data).decode()
        return {"processId": name, "writeId": write_id, "chunk": chunk}

    def restart(self) -> None:
        """Kill the server at a moment of its own and come back."""
        time.sleep(self.rng.random() * 0.01)
        self.kill()
        self.reached["killed"] += 1
        self._rest()
        self.start_server()
        self.attach()

    def _rest(self) -> None:
        """What was on its way when the line broke is read like everything else."""
        assert self.ws is not None
        try:
            while True:
                self.receive()
        except (ConnectionClosed, OSError, TimeoutError):
            pass
        self.ws.close_socket()


def flood(rig: Rig, kills: int, pipes: list[int], terminals: list[int]) -> dict[str, Any]:
    """Follow floods through that many kills; raises Wrong, or says what happened."""
    rig.attach()
    for n, size in enumerate((*pipes, *terminals)):
        one = Followed(f"flood{n}", size, 20 + n)
        argv = (sys.executable, "-I", "-S", "-c", WRITER, str(n), str(size), str(one.code))
        rig.start(one, *argv, tty=n >= len(pipes))
    total = sum(pipes) + sum(terminals)
    share = total / (kills + 1)
    next_kill = share * rig.rng.uniform(0.3, 1.7)
    began = time.monotonic()
    while not all(one.closed for one in rig.followed.values()):
        rig.receive()
        got = sum(one.at for one in rig.followed.values())
        if got >= next_kill and rig.kills < kills:
            rig.restart()
            left = (total - got) / (kills - rig.kills + 1)
            next_kill = got + left * rig.rng.uniform(0.3, 1.7)
    while rig.kills < kills:  # the rest falls on processes that have ended
        rig.restart()
    for one in rig.followed.values():
        one.verdict()
    return {
        "kills": rig.kills,
        "bytes": total,
        "seconds": round(time.monotonic() - began, 1),
        "wrong bytes": 0,
        **rig.reached,
    }


def typing(rig: Rig, kills: int, *, tty: bool) -> dict[str, Any]:
    """Write through that many kills, repeating what was not answered; each byte arrives once."""
    rig.attach()
    # About eight writes a kill, of all sizes.
    sizes = [rig.rng.choice((1, 10, 500, 5000, 40_000)) for _ in range(8 * kills)]
    total = sum(sizes)
    one = Followed("echo", total, 9, skip=1 if tty else 0)
    rig.start(one, sys.executable, "-I", "-S", "-c", ECHO, str(total), tty=tty, pipeStdin=not tty)
    while tty and one.skip:
        rig.receive()
    at = 0
    doomed = set(rig.rng.sample(range(len(sizes)), kills))
    for number, size in enumerate(sizes):
        write = rig.write("echo", f"w{number}", expected(at, size))
        if number in doomed:
            serial = rig.send("process/write", **write)
            if rig.rng.random() < 0.3:  # answered, and sent again all the same
                while rig.receive().get("id") != serial:
                    pass
                rig.reached["answered before the kill"] += 1
            rig.restart()
            rig.reached["repeated"] += 1
        answer = rig.call("process/write", **write)
        if answer != {"status": "accepted"}:
            raise Wrong(f"write {number}: {answer}")
        at += size
    while not one.closed:
        rig.receive()
    one.verdict()
    return {"kills": rig.kills, "bytes": total, "writes": len(sizes), **rig.reached}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--stdin-kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    share = args.mib * 1024 * 1024 // 16
    runs: list[tuple[str, Any]] = [
        ("output", lambda rig: flood(rig, args.kills, [7 * share, 6 * share], [2 * share, share])),
        ("stdin, pipe", lambda rig: typing(rig, args.stdin_kills // 2, tty=False)),
        ("stdin, terminal", lambda rig: typing(rig, args.stdin_kills // 2, tty=True)),
    ]
    for name, run in runs:
        with tempfile.TemporaryDirectory() as state:
            rig = Rig(Path(state), seed=args.seed)
            try:
                print(f"{name}: {run(rig)}", flush=True)
            finally:
                rig.stop()


if __name__ == "__main__":
    main()
