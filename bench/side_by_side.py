"""Two versions of handrail side by side, in short blocks in random order, on a busy machine.

side_by_side.py OLD NEW [--rows spawn,echo] [--blocks 60] [--cpus 0,1]
OLD and NEW are folders with a ``.venv`` (``make setup``) each; OLD may be the peer's program, for
rows that speak the wire. A block is a few operations of one row on one version; the two blocks of
a pair follow each other in random order, so that a busy machine is busy for both. Printed: the
median of each, the ratio with the interval that holds it in 95 of 100 cases (bootstrap over pairs),
the same of the CPU time of server, keeper and children, and in how many pairs NEW was slower.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import contextlib
import ctypes
import gc
import logging
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import uvloop
import wire
from peer_binary import cache_folder
from proc import free_port
from side_rows import ROWS, Place

CPUACCT = Path("/sys/fs/cgroup/cpuacct")
_CLONE_NEWNS = 0x20000
KINDS = ("usage", "usage_user", "usage_sys")


class CpuGroup:
    """A control group around one version; counts nothing where there is no ``cpuacct``."""

    def __init__(self, name: str) -> None:
        self.path = CPUACCT / f"side-by-side-{os.getpid()}-{name}"
        with contextlib.suppress(OSError):
            self.path.mkdir()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What is started meanwhile belongs to the group."""
        if not self.path.is_dir():
            yield
            return
        before = next(line for line in Path("/proc/self/cgroup").read_text().splitlines()
                      if "cpuacct" in line.split(":")[1].split(","))  # fmt: skip
        home = CPUACCT / before.split(":", 2)[2].lstrip("/") / "cgroup.procs"
        pid = str(os.getpid())
        (self.path / "cgroup.procs").write_text(pid)
        try:
            yield
        finally:
            home.write_text(pid)

    def seconds(self, which: str = "usage") -> float:
        """CPU time so far; ``usage_user`` and ``usage_sys`` are split by ticks, for long runs."""
        try:
            return int((self.path / f"cpuacct.{which}").read_text()) / 1e9
        except OSError:
            return 0.0

    def remove(self) -> None:
        """Ends what is left in it, and takes it away."""
        with contextlib.suppress(OSError):
            for pid in (self.path / "cgroup.procs").read_text().split():
                if int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
        for _ in range(100):
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                signal.sigtimedwait([], 0.02)
            else:
                return


class Version:
    """One version: its folder, its state home, its server."""

    def __init__(self, name: str, tree: Path, scratch: Path) -> None:
        self.name = name
        self.python = str(tree / ".venv/bin/python")
        self.command = [self.python, "-m", "handrail", "serve"]
        self.peer = tree.is_file()
        if self.peer:
            self.command = [str(tree), "exec-server"]
        else:
            # As an installation leaves it: a start is not to compile what was just edited.
            compileall.compile_dir(tree / "src", quiet=2)
        self.scratch = scratch / name
        home = self.scratch / "home"
        home.mkdir(parents=True)
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "HANDRAIL_"))}
        keep.pop("PYTHONDONTWRITEBYTECODE", None)  # else no start would find its bundle
        state = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        # A probe of the keeper would choose between two ways by what it measures on that day.
        self.env = {**keep, **state, "HANDRAIL_TREES": "walk"}
        self.group = CpuGroup(name)
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def launch(self, stdout: int | None = None) -> tuple[subprocess.Popen[bytes], str]:
        """Start a server."""
        url = f"ws://127.0.0.1:{free_port()}"
        with self.group.inside(), open(self.scratch / "log", "ab") as log:
            process = subprocess.Popen(
                [*self.command, "--listen", url], env=self.env, cwd=self.scratch,
                stdin=subprocess.DEVNULL, stdout=log if stdout is None else stdout, stderr=log,
            )  # fmt: skip
        return process, url

    async def connected(self, process: subprocess.Popen[bytes], url: str) -> None:
        """Wait until it has answered ``initialize``."""
        while True:
            try:
                c = await wire.session(url)
                await c.close()
                return
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"{self.name} ended: see {self.scratch}/log") from None
                await asyncio.sleep(0.0005)

    async def serve(self) -> None:
        """Start the server of the rows."""
        self.process, self.url = self.launch()
        await self.connected(self.process, self.url)

    async def start_once(self) -> float:
        """Seconds from a launch to ``initialize``, of a server that is stopped again.

        A client that tried all the time would have a core that server and keeper share.
        """
        begin = wire.now()

        async def since(_: str) -> float:
            return wire.now() - begin

        return await self.use_fresh(since)

    async def use_fresh(self, use: Callable[[str], Awaitable[float]]) -> float:
        """Start a server, do something with its address and stop it."""
        process, url = self.launch(subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as told:
            told.readline()  # the address, once it listens there
        await self.connected(process, url)
        seconds = await use(url)
        process.terminate()
        await asyncio.to_thread(process.wait, 10)
        return seconds

    def stop(self) -> None:
        """End the server."""
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        self.group.remove()

    def place(self) -> Place:
        """What its rows need."""
        start, fresh = self.start_once, self.use_fresh
        return Place(self.url, self.python, str(self.scratch), start, fresh, self.peer)


class Column:
    """The blocks of one row on one version."""

    def __init__(self) -> None:
        self.medians: list[float] = []
        self.pooled: list[float] = []
        self.cpu: list[float] = []
        self.user = 0.0
        self.system = 0.0


async def measure(row: str, versions: list[Version], blocks: int) -> list[Column]:
    """All blocks of a row on both."""
    factory, count = ROWS[row]
    ready = []
    for version in versions:
        with version.group.inside(), environment(version.env):
            ready.append(await factory(version.place()))
    for block in [*ready, *ready]:
        await block(count)
    columns = [Column() for _ in versions]
    for _ in range(blocks):
        order = list(range(len(versions)))
        random.shuffle(order)
        for i in order:
            gc.collect()
            group = versions[i].group
            before, user, system = (group.seconds(which) for which in KINDS)
            # What a row starts itself is to count; the client, which serves both, is not.
            with group.inside() if outside_server(row) else contextlib.nullcontext():
                with environment(versions[i].env):
                    seconds = await ready[i](count)
            columns[i].medians.append(statistics.median(seconds))
            columns[i].pooled += seconds
            columns[i].cpu.append((group.seconds() - before) / count)
            columns[i].user += group.seconds("usage_user") - user
            columns[i].system += group.seconds("usage_sys") - system
    return columns


def outside_server(row: str) -> bool:
    """Does the row start its processes itself?"""
    return row in ("run", "sandbox", "version")


@contextlib.contextmanager
def environment(env: dict[str, str]) -> Iterator[None]:
    """What is started meanwhile has this environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def ratio(old: list[float], new: list[float]) -> tuple[float, float, float]:
    """The median ratio of the pairs and its interval of 95 %."""
    logs = [math.log(b / a) for a, b in zip(old, new, strict=True) if a > 0 and b > 0]
    if not logs:
        return math.nan, math.nan, math.nan
    found = sorted(statistics.median(random.choices(logs, k=len(logs))) for _ in range(1000))
    return math.exp(statistics.median(logs)), math.exp(found[25]), math.exp(found[974])


def line(row: str, old: Column, new: Column) -> str:
    """One row of the table."""
    words = [f"{row:19}"]
    words.append(pair(old.medians, new.medians))
    words.append(pair(old.cpu, new.cpu))
    for a, b in ((old.user, new.user), (old.system, new.system)):
        words.append(f"{b / a if a else math.nan:5.2f}")
    p99 = [sorted(column.pooled)[int(len(column.pooled) * 0.99)] for column in (old, new)]
    words.append(f"{p99[0] * 1e3:8.3f} {p99[1] * 1e3:8.3f} ({p99[1] / p99[0]:4.2f})")
    slower = sum(b > a for a, b in zip(old.medians, new.medians, strict=True))
    words.append(f"{slower}/{len(new.medians)}")
    return " | ".join(words)


def pair(old: list[float], new: list[float]) -> str:
    """Both medians in milliseconds, and the ratio with its interval."""
    r, low, high = ratio(old, new)
    a, b = statistics.median(old) * 1e3, statistics.median(new) * 1e3
    return f"{a:8.3f} {b:8.3f} {r:5.3f} [{low:5.3f} {high:5.3f}]"


async def main(options: argparse.Namespace, scratch: Path) -> None:
    """Start both, go through the rows, stop both."""
    versions = [Version(name, tree, scratch)
                for name, tree in (("old", options.old), ("new", options.new))]  # fmt: skip
    try:
        for version in versions:
            await version.serve()
        print("ms per operation: old, new, new/old [95 %] | CPU the same", end=" | ")
        print("user | kernel | p99 | slower")
        for row in options.rows.split(","):
            blocks = options.blocks
            old, new = await measure(row, versions, blocks)
            print(line(row, old, new), flush=True)
    finally:
        for version in versions:
            version.stop()


def parse_options() -> argparse.Namespace:
    """The command line."""
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("old", type=Path)
    ap.add_argument("new", type=Path)
    ap.add_argument("--rows", default=",".join(ROWS), metavar="A,B", help=", ".join(ROWS))
    ap.add_argument("--blocks", type=int, default=60, help="blocks of each version")
    ap.add_argument("--cpus", metavar="0,1", help="the cores for everything; default: all")
    ap.add_argument("--disk", action="store_true", help="files on the disk, not on a tmpfs")
    ap.add_argument("--ordinary", action="store_true", help="without real-time priority")
    options = ap.parse_args()
    if unknown := set(options.rows.split(",")) - set(ROWS):
        ap.error(f"unknown rows: {', '.join(unknown)}")
    options.old, options.new = options.old.resolve(), options.new.resolve()
    return options


def in_memory(places: list[str]) -> None:
    """Mount a tmpfs at each for this process and what it starts; an ordinary user does without.

    Not /dev/shm: a sandbox has a /dev of its own.
    """
    if ctypes.CDLL(None).unshare(_CLONE_NEWNS) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        for place in places:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)


if __name__ == "__main__":
    # Clients are cut off on purpose; their library need not report each.
    logging.getLogger("aiofastnet").setLevel(logging.ERROR)
    logging.getLogger("picows").setLevel(logging.ERROR)
    arguments = parse_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends its servers then too
    if arguments.cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in arguments.cpus.split(",")})
    if not arguments.ordinary:
        # Before the processes of others, so that a busy machine does not decide.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    cache = cache_folder() / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="side", dir=cache))
    # In the last one: places of other programs of this user, which every sandbox covers.
    in_memory(["/var/tmp"] if arguments.disk else [str(folder), "/var/tmp"])
    try:
        uvloop.run(main(arguments, folder))
    finally:
        subprocess.run(["umount", str(folder)], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(folder, ignore_errors=True)
