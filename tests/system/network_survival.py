"""A server that is killed again and again while a sandboxed command downloads through the porter.

The command has many tunnels to an origin, whose every byte follows from its position; meanwhile it
tries a denied host without end, on a connection that stays and on new ones, and asks for one
unlisted host after the other.  The server is killed while such a question is open; the next server
must ask it again.  From the command line this is the long run
(``python tests/system/network_survival.py --kills 50``); the tests run a small one.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.sandbox.arena import managed_network
from tests.support.eventually import eventually
from tests.system.permissions import sandbox
from tests.system.survival import Followed, Rig, Wrong, expected

DOWNLOADS = 20
#: The command's program: PORT, how many downloads, how many questions.
PROGRAM = """
import http.client, os, socket, sys, threading, time
port, downloads, questions = map(int, sys.argv[1:4])
period = b"".join(b"%07d\\n" % n for n in range(131071)) * 2
said = threading.Lock()
def say(*words):
    with said:
        print(*words, flush=True)
def tunnel(to):
    line = socket.create_connection(("127.0.0.1", 800))
    line.sendall(b"CONNECT %b HTTP/1.1\\r\\nHost: %b\\r\\n\\r\\n" % (to, to))
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        piece = line.recv(1)
        if not piece:
            break
        head += piece
    return line, head.split()[1].decode() if head else "closed"
def download(number):
    line, status = tunnel(b"127.0.0.1:%d" % port)
    if status != "200":
        return say("WRONG download", number, status)
    line.sendall(b"download")
    at, half = 0, len(period) // 2
    while data := line.recv(65536):
        if data != period[at % half : at % half + len(data)]:
            return say("WRONG bytes", number, at)
        at += len(data)
    say("ALL", number, at)
def probe(number, stays):
    count, file, proxy = 0, os.open(f"probes{number}", os.O_CREAT | os.O_WRONLY), None
    while ending.locked():
        proxy = proxy or http.client.HTTPConnection("127.0.0.1", 800)
        try:
            proxy.request("GET", "http://denied.example:%d/" % port)
            answer = proxy.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return say("WRONG probe", error)
        if answer.status != 403 or '"reason":"denied"' not in text:
            return say("WRONG loose", answer.status, text)
        count += 1
        os.pwrite(file, b"%09d" % count, 0)
        if not stays:
            proxy.close()
            proxy = None
        time.sleep(0.002)
def ask():
    for number in range(questions):
        line, status = tunnel(b"127.0.1.%d:%d" % (number + 1, port))
        line.sendall(b"hello")
        say("ASKED", number, status, line.recv(99).decode())
        line.close()
ending = threading.Lock()
ending.acquire()
probes = [threading.Thread(target=probe, args=(n, n == 0)) for n in range(2)]
work = [threading.Thread(target=download, args=(n,)) for n in range(downloads)]
work.append(threading.Thread(target=ask))
for thread in probes + work:
    thread.start()
for thread in work:
    thread.join()
ending.release()
for thread in probes:
    thread.join()
say("DONE")
"""


class Origin:
    """A server on all of loopback: a stream that goes on as far as it is let, and a greeting."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._greeter: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self._let = threading.Condition()
        self._limit = 0
        self._ended = False
        self.streams = 0
        self._threads = [threading.Thread(target=self._accept, args=(self._listener,))]
        self._threads[0].start()

    def listen_on(self, address: str) -> None:
        """Listen there too."""
        listener = socket.create_server((address, self.port))
        self._greeter.append(listener)
        self._threads.append(threading.Thread(target=self._accept, args=(listener,)))
        self._threads[-1].start()

    def let(self, size: int, *, last: bool = False) -> None:
        """Let every stream go on by so many bytes."""
        with self._let:
            self._limit += size
            self._ended = last
            self._let.notify_all()

    @property
    def size(self) -> int:
        return self._limit

    def close(self) -> None:
        self.let(0, last=True)
        for listener in (self._listener, *self._greeter):
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in self._threads:
            thread.join(30)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                line = listener.accept()[0]
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(line,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, line: socket.socket) -> None:
        with line:
            try:
                if line.recv(99) == b"download":
                    self._stream(line)
                else:
                    line.sendall(b"GREETED")
            except OSError:
                pass  # what is missing is missed by the command

    def _stream(self, line: socket.socket) -> None:
        at = 0
        with self._let:
            self.streams += 1
        while True:
            with self._let:
                self._let.wait_for(lambda at=at: self._limit > at or self._ended)  # type: ignore[misc]
                limit = self._limit
            if limit == at:
                return
            while at < limit:
                piece = expected(at, min(limit - at, 65536))
                line.sendall(piece)
                at += len(piece)


class Told(Followed):
    """What the command has printed."""

    def __init__(self) -> None:
        super().__init__("p", 0, 0)
        self.text = ""

    def _check(self, data: bytes) -> None:
        self.text += data.decode()
        if "WRONG" in self.text:
            raise Wrong(self.text[self.text.index("WRONG") :][:300])


class NetworkRig(Rig):
    """A rig whose client writes down what it is asked."""

    def __init__(self, state: Path, seed: int) -> None:
        self.questions: list[dict[str, Any]] = []
        super().__init__(state, seed=seed)

    def receive(self, within: float = 60.0) -> dict[str, Any]:
        message = super().receive(within)
        if message.get("method") == "network/policyRequest":
            self.questions.append(message)
        return message

    def question(self) -> dict[str, Any]:
        """The next question of this connection."""
        while not self.questions:
            self.receive()
        return self.questions.pop(0)

    def allow(self, question: dict[str, Any]) -> None:
        assert self.ws is not None
        answer = {"id": question["id"], "result": {"decision": {"type": "allow"}}}
        self.ws.send(json.dumps(answer))


@contextmanager
def origin() -> Iterator[Origin]:
    made = Origin()
    try:
        yield made
    finally:
        made.close()


def survive(rig: NetworkRig, far: Origin, work: Path, kills: int) -> dict[str, Any]:
    """Kill so many servers during the downloads; raises Wrong, or says what happened."""
    rig.attach()
    rules = {f"127.0.0.1:{far.port}": "allow", "denied.example": "deny"}
    network = managed_network(rules, allowLocalBinding=True)
    network["networkProxy"]["policyDecisionTimeoutMs"] = 60_000
    for number in range(kills):
        far.listen_on(f"127.0.1.{number + 1}")
    told = Told()
    words = [sys.executable, "-I", "-c", PROGRAM, str(far.port), str(DOWNLOADS), str(kills)]
    place = {"cwd": work.as_uri(), "sandbox": sandbox(work)}
    rig.start(told, *words, **place, **network)
    probes = [work / "probes0", work / "probes1"]
    while far.streams < DOWNLOADS or not all(map(count, probes)):
        if not rig.questions:
            rig.receive()
        time.sleep(0.001)
    alone = 0
    for number in range(kills):
        question = rig.question()
        wanted = {"protocol": "https_connect", "host": f"127.0.1.{number + 1}", "port": far.port}
        if question["params"]["request"] != wanted:
            raise Wrong(f"asked {question['params']} instead of {wanted}")
        far.let(rig.rng.randrange(200_000))
        time.sleep(rig.rng.random() * 0.01)
        rig.kill()
        rig._rest()
        rig.questions.clear()
        before = count(probes[0])
        far.let(rig.rng.randrange(200_000))
        # The first of them may have been on its way when the server died.
        alone += eventually(lambda before=before: max(1, count(probes[0]) - before) - 1)  # type: ignore[misc]
        rig.start_server()
        rig.attach()
        again = rig.question()
        if again["params"] != question["params"]:
            raise Wrong(f"asked again {again['params']} instead of {question['params']}")
        rig.allow(again)
        while f"ASKED {number} 200 GREETED" not in told.text:
            rig.receive()
    far.let(1000, last=True)
    while not told.closed:
        rig.receive()
    lines = told.text.splitlines()
    whole = [line for line in lines if line.startswith("ALL") and line.endswith(f" {far.size}")]
    if len(whole) != DOWNLOADS or lines[-1] != "DONE":
        raise Wrong(f"{len(whole)} of {DOWNLOADS} downloads are whole: {told.text[-300:]}")
    return {
        "kills": rig.kills,
        "bytes": far.size * DOWNLOADS,
        "probes": sum(map(count, probes)),
        "probes without a server": alone,
        "questions asked again": kills,
    }


def count(path: Path) -> int:
    """How many probes a thread of the command has made."""
    return int(path.read_bytes() or b"0") if path.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as base, origin() as far:
        work = Path(base) / "work"
        work.mkdir()
        rig = NetworkRig(Path(base) / "state", args.seed)
        try:
            print(survive(rig, far, work, args.kills), flush=True)
        finally:
            rig.stop()


if __name__ == "__main__":
    main()
