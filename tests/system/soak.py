"""Ten minutes of everything at once: ``make soak`` (``ARGS="--minutes 1 --seed 7"``).

Floods, echoes, short commands, families with daemons and commands that end by the clock, on pipes
and terminals, sandboxed and not, while the server is killed, stopped or upgraded, runs out of room
or descriptors, and its keeper is killed.  Always: every stream is right by content, every exit is
right or said to be lost, no number comes twice, a family that was terminated is gone.  Sometimes:
each of the faults has struck, or the run has shown nothing.  In the end nothing is left: no
process, no zombie, no descriptor, and the memory of server and keeper does not grow.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from websockets.exceptions import ConnectionClosed

from tests.support.processes import children, descriptors, ended, keepers, nothing_left
from tests.system.permissions import sandbox
from tests.system.survival import ECHO, LIMIT, WRITER, Followed, Rig, Wrong, expected

MIB = 1024 * 1024
FAULTS = ("kill", "kill", "kill", "trouble", "stop", "upgrade", "keeper")
#: What a server may suffer from until it is killed.
TROUBLES = (
    "spool.open:EMFILE@3",
    "spool.fill:ENOSPC@40",
    "spool.fill:short@777",
    "stdin.send:short@100",
    "output.numbered:delay=0.002",
)
#: How much more memory the same work may leave behind when it is done once more.
GROWTH = 1.1
#: Tells the pids of two daemons of its own, and waits.
FAMILY = """
import os, signal
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.write(1, b"%d " % os.getpid())
        os.closerange(0, 3)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os.wait()
os.write(1, b"%d " % os.getpid())
signal.pause()
"""


#: Writes the beginning of the stream, and the rest when it is asked to end; asked twice, too much.
LATE = """
import os, signal, sys, time
size, code = map(int, sys.argv[1:3])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
period = b"".join(b"%07d\\n" % n for n in range(131071))
os.write(1, period[:1])
while not asked:
    time.sleep(0.01)
os.write(1, period[1:size])
time.sleep(0.1)
os.write(1, period[size:size + len(asked) - 1])
os._exit(code)
"""
WAYS = ("open", "open", "sandboxed")


class Soak:
    """One run."""

    def __init__(self, rig: Rig, ws: Path) -> None:
        self.rig = rig
        self.ws = ws
        self.rng = rig.rng
        self.number = 0
        self.bytes = 0
        self.finished = 0
        self.lost = 0
        self.uncertain = False  # exits may be lost since the keeper was killed
        self.heir: int | None = None  # a server that is nobody's child of ours
        self.troubled = False  # the server of the moment
        self.families: dict[str, list[int]] = {}

    # --- work ------------------------------------------------------------------------------

    def begin(self) -> None:
        """One more process of a random kind."""
        self.number += 1
        tty = self.rng.random() < 0.4
        size = self.rng.choice((0, 1, 5000, 300_000, 4 * MIB, 16 * MIB // (4 if tty else 1)))
        code = self.rng.randrange(1, 100)
        one = Followed(f"p{self.number}", size, code)
        argv = (sys.executable, "-I", "-S", "-c", WRITER, str(self.number), str(size), str(code))
        self.rig.start(one, *argv, tty=tty, **self.way())

    def way(self) -> dict[str, Any]:
        """Contained or not."""
        if self.rng.choice(WAYS) == "open":
            return {}
        self.rig.reached["sandboxed"] += 1
        return {"cwd": self.ws.as_uri(), "sandbox": sandbox(self.ws)}

    def late(self) -> None:
        """One that ends only when it is asked to, by its time limit or by us, and once."""
        self.number += 1
        one = Followed(f"p{self.number}", self.rng.choice((2, 900, 30_000)), 8)
        argv = (sys.executable, "-I", "-S", "-c", LATE, str(one.size), str(one.code))
        if self.rng.random() < 0.5:
            self.rig.start(one, *argv, timeoutMs=3000, **self.way())
            return
        self.rig.start(one, *argv, **self.way())
        while not one.at:
            self.rig.receive()
        self.rig.call("process/terminate", processId=one.name, graceMs=int(LIMIT * 1000))

    def echo(self) -> None:
        """Write to one, and have it all back."""
        self.number += 1
        sizes = [self.rng.choice((1, 700, 30_000)) for _ in range(3)]
        one = Followed(f"p{self.number}", sum(sizes), 9)
        argv = (sys.executable, "-I", "-S", "-c", ECHO, str(sum(sizes)))
        self.rig.start(one, *argv, pipeStdin=True, **self.way())
        at = 0
        for n, size in enumerate(sizes):
            write = self.rig.write(one.name, f"w{n}", expected(at, size))
            self.rig.call("process/write", **write)
            self.rig.call("process/write", **write)  # twice: it counts once
            at += size

    def family(self) -> None:
        """Start one with daemons, or end the oldest with all of its own."""
        if len(self.families) > 3:
            name = next(iter(self.families))
            self.rig.call("process/terminate", processId=name, tree=True)
            for pid in self.families.pop(name):
                if not ended(pid, LIMIT):
                    raise Wrong(f"{name}: {pid} has outlived its family")
            return
        if self.troubled:
            return  # it may never be heard
        self.number += 1
        name, said = f"p{self.number}", b""
        params = {"argv": [sys.executable, "-I", "-S", "-c", FAMILY], "cwd": "file:///"}
        env = {"PATH": os.environ["PATH"]}
        self.rig.call("process/start", processId=name, **params, env=env, tty=False)
        while said.count(b" ") < 3:
            page = self.rig.call("process/read", processId=name, waitMs=1000)
            said = b"".join(base64.b64decode(chunk["chunk"]) for chunk in page["chunks"])
        self.families[name] = [int(pid) for pid in said.split()]

    def end_session(self) -> dict[str, tuple[int, int]]:
        """After some processes without any trouble; what server and keeper take without it."""
        for _ in range(40):
            self.begin()
            while self.rig.followed:
                self.rig.receive()
                self.settle()
        self.rig.call("session/close")
        assert self.rig.ws is not None
        self.rig.ws.close_socket()
        self.rig.session = None
        return at_rest(self.server())

    def listen(self) -> None:
        """Take what comes; a server in trouble may have nothing to say."""
        try:
            self.rig.receive(0.2 if self.troubled else LIMIT)
        except TimeoutError:
            if not self.troubled:
                raise

    def settle(self) -> None:
        """Check and forget what has closed."""
        for name, one in list(self.rig.followed.items()):
            if one.closed:
                if self.uncertain and one.exit_code == -1:
                    one.exit_code = one.code
                    self.lost += 1
                one.verdict()
                self.bytes += one.size
                self.finished += 1
                del self.rig.followed[name]

    # --- faults ----------------------------------------------------------------------------

    def server(self) -> int:
        assert self.rig.server is not None
        return self.heir or self.rig.server.pid

    def strike(self, fault: str) -> None:
        rig = self.rig
        rig.reached[fault] += 1
        if fault == "keeper":
            for pid in (*keepers(self.server()), *keepers()):  # an orphan is ours
                os.kill(pid, signal.SIGKILL)
                self.uncertain = True
            # The children are with the next keeper when that starts one.
            while "error" in rig.try_call("process/start", **probe(self.number)):
                pass
            return
        if fault == "upgrade":
            os.kill(self.server(), signal.SIGUSR2)
            before = self.server()
            rig._rest()
            rig.attach()
            self.heir = next(
                pid for pid in servers(str(rig.state)) if pid != before and not ended(pid, 0.0)
            )
            assert rig.server is not None
            rig.server.wait(LIMIT)
            return
        self.replace(fault)

    def replace(self, fault: str) -> None:
        """Another server after this one was killed or stopped."""
        rig = self.rig
        if fault == "stop":
            os.kill(self.server(), signal.SIGSTOP)
        else:
            os.kill(self.server(), signal.SIGKILL)
        old = self.server()
        if fault != "stop":
            ended(old, LIMIT)
        self.heir = None
        previous, rig.server = rig.server, None
        self.troubled = fault == "trouble"
        rig.start_server(self.rng.choice(TROUBLES) if self.troubled else "")
        ended(old, LIMIT)
        if previous is not None and previous.stdout is not None:
            previous.wait(LIMIT)
            previous.stdout.close()
        rig._rest()
        rig.attach()

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        next_fault = time.monotonic() + self.rng.uniform(0.5, 2)
        last_keeper = 0.0
        told = time.monotonic()
        while time.monotonic() < end or self.rig.followed:
            try:
                self.settle()
                if time.monotonic() < end and len(self.rig.followed) < 6:
                    work = (self.echo, self.begin, self.begin, self.family, self.late)
                    self.rng.choice(work[: 4 if self.troubled else 5])()
                elif self.troubled and time.monotonic() > end:
                    self.replace("kill")
                elif self.rig.followed:
                    self.listen()
                now = time.monotonic()
                if now > next_fault and now < end:
                    fault = self.rng.choice(FAULTS)
                    if fault == "keeper" and now < last_keeper + 25:
                        fault = "kill"  # three a minute are too many
                    elif fault == "keeper":
                        last_keeper = now
                    self.strike(fault)
                    next_fault = time.monotonic() + self.rng.uniform(0.2, 3)
            except ConnectionClosed:
                raise Wrong("the line broke although nobody had cut it") from None
            if time.monotonic() > told + 30:
                told = time.monotonic()
                print(f"  {self.summary()}", flush=True)

    def summary(self) -> str:
        return (
            f"{self.finished} processes, {self.bytes >> 20} MiB, faults {dict(self.rig.reached)},"
            f" exits lost with a keeper: {self.lost}"
        )


def probe(number: int) -> dict[str, object]:
    env = {"PATH": os.environ["PATH"]}
    return {
        "processId": f"probe{number}",
        "argv": ["true"],
        "cwd": "file:///",
        "env": env,
        "tty": False,
    }


def servers(state: str) -> list[int]:
    """Servers on that directory, whoever started them."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"serve" in words and state.encode() in words:
                found.append(int(name))
    return found


def is_zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def size_of(pid: int) -> tuple[int, int]:
    """Resident memory in KiB, and open descriptors."""
    status = Path(f"/proc/{pid}/status").read_text()
    rss = int(status.split("VmRSS:")[1].split()[0])
    return rss, len(os.listdir(f"/proc/{pid}/fd"))


def check_growth(first: dict[str, tuple[int, int]], last: dict[str, tuple[int, int]]) -> None:
    """Raises Wrong when server or keeper have become larger than they were."""
    for name, (rss, _) in last.items():
        if rss > first[name][0] * GROWTH:
            raise Wrong(f"the {name} has grown from {first[name][0]} to {rss} KiB")


def at_rest(server: int) -> dict[str, tuple[int, int]]:
    """What server and keeper take with nothing left to do; raises Wrong when that is too much."""
    deadline = time.monotonic() + LIMIT
    while True:
        (keeper,) = (*keepers(server), *keepers())
        sizes = {"server": size_of(server), "keeper": size_of(keeper)}
        dead = [pid for pid in (*children(server), *children(keeper)) if is_zombie(pid)]
        if sizes["server"][1] < 40 and sizes["keeper"][1] < 30 and not dead:
            return sizes
        if time.monotonic() > deadline:
            held = Counter(re.sub(r"\d+", "N", one) for one in descriptors(server).values())
            raise Wrong(f"descriptors are left open, or zombies: {sizes}, {dead}, {held}")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Everything at once, for a while.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory() as state, nothing_left():
        rig = Rig(Path(state) / "state", seed=args.seed)
        ws = Path(state) / "ws"
        ws.mkdir()
        soak = Soak(rig, ws)
        try:
            rig.attach()
            soak.run(args.minutes * 60)
            first = soak.end_session()
            rig.attach()
            sizes = soak.end_session()  # the same once more
            for name, pids in soak.families.items():
                if not all(ended(pid, LIMIT) for pid in pids):
                    raise Wrong(f"{name} has outlived its session")
            check_growth(first, sizes)
        finally:
            if soak.heir is not None:
                os.kill(soak.heir, signal.SIGTERM)
                ended(soak.heir, LIMIT)
            rig.stop()
    missing = {*FAULTS, "sandboxed"} - {*rig.reached}
    print(f"{soak.summary()}; KiB and descriptors at the end: {sizes}")
    if missing and args.minutes >= 5:
        raise SystemExit(f"never struck: {', '.join(sorted(missing))}; the run shows too little")


if __name__ == "__main__":
    main()
