"""What the surroundings of a sandboxed start cost: a full ``/tmp``, a large workspace, deny globs.

surroundings.py [--count 40] [--files 200000] [--repositories 200] [--globs 50] [--tmp 10000]

Two servers of this version run in mount namespaces of their own, one with an empty ``/tmp`` and one
with a full one; everything is in memory and goes with them.  Rows are interleaved, and each is
divided by the same profile in an empty workspace: at most 1.2 times that is wanted once the plan
is warm.  The first start has 250 ms, and the event loop of the server goes on meanwhile: the
longest answer of ``environment/status`` beside it says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop
import wire
from peer_binary import cache_folder
from proc import free_port

_CLONE_NEWNS = 0x20000
#: Of a plan that is warm; of the first start.
MOST_TIMES, MOST_FIRST_MS = 1.2, 250
FILES_IN_A_DIRECTORY = 20
#: What a server sees at /tmp; at /var/tmp it would see the private places of other servers.
IN_TMP = "mount -t tmpfs tmpfs /var/tmp && mount -t tmpfs tmpfs /tmp && cd /tmp && "
IN_TMP += 'seq -f d%.0f "$1" | xargs -r mkdir && shift; '
IN_TMP += 'cd / && exec setpriv --ambient-caps=-all --inh-caps=-all "$@"'
#: An ordinary user keeps the number: to one that is root there bubblewrap would not be root's.
AS_USER = ("--user", "--map-current-user", "--keep-caps")


class Server:
    """A server with a ``/tmp`` of its own."""

    def __init__(self, folder: Path, name: str, directories: int) -> None:
        state = folder / f"state-{name}"
        state.mkdir()
        self.url = f"ws://127.0.0.1:{free_port()}"
        serve = [sys.executable, "-m", "handrail", "serve", "--listen", self.url]
        user = () if os.geteuid() == 0 else AS_USER
        keep = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
        keep.pop("TMPDIR", None)
        with open(folder / f"log-{name}", "ab") as log:
            self.process = subprocess.Popen(
                ["unshare", *user, "--mount", "sh", "-c", IN_TMP, "sh", str(directories), *serve],
                env={**keep, "HOME": str(state), "XDG_STATE_HOME": str(state)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    async def connect(self) -> wire.Connection:
        """A session, once it listens."""
        while True:
            try:
                return await wire.session(self.url)
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit("the server ended; see its log") from None
                await asyncio.sleep(0.01)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


def fill(root: Path, files: int, repositories: int, names: tuple[str, ...] = ()) -> None:
    """Make repositories with so many files in all, and with these directories in each."""
    each = files // repositories // FILES_IN_A_DIRECTORY
    for number in range(repositories):
        repository = root / f"group{number % 10}" / f"repository{number}"
        for name in (".git/objects", ".git/refs", *names):
            os.makedirs(repository / name)
        (repository / ".git/HEAD").write_text("ref: refs/heads/main\n")
        for folder in range(each):
            inner = f"{repository}/src{folder % 8}/part{folder}"
            os.makedirs(inner)
            for name in range(FILES_IN_A_DIRECTORY):
                os.close(os.open(f"{inner}/file{name}.py", os.O_CREAT | os.O_WRONLY))
        if number % 20 == 0:
            (repository / f"key.secret{number % 50}").write_text("x")


def sandbox(root: Path, globs: int = 0, tmp: bool = False) -> dict[str, Any]:
    """A profile that may write one workspace, with so many deny patterns."""
    made = wire.workspace_sandbox(f"file://{root}")
    entries = made["permissions"]["file_system"]["entries"]
    if tmp:
        value = {"kind": "slash_tmp"}
        entries.append({"path": {"type": "special", "value": value}, "access": "write"})
    for number in range(globs):
        pattern = {"type": "glob_pattern", "pattern": f"{root}/**/*.secret{number}"}
        entries.append({"path": pattern, "access": "deny"})
    return made


class Row:
    """Starts of ``/bin/true`` under one profile on one server."""

    def __init__(self, name: str, base: str, server: Server, wanted: dict[str, Any]) -> None:
        self.name, self.base, self.server, self.wanted = name, base, server, wanted
        self.seconds: list[float] = []
        self.first = self.longest = 0.0
        self.number = itertools.count()

    async def open(self) -> None:
        """Connect, and make the first start beside small requests."""
        self.connection = await self.server.connect()
        beside = await self.server.connect()
        started = asyncio.ensure_future(self.once())
        while not started.done():
            begin = wire.now()
            await beside.request("environment/status", {})
            self.longest = max(self.longest, wire.now() - begin)
            await asyncio.sleep(0.005)  # else its loop would not leave the interpreter to others
        self.first = await started
        await beside.close()

    async def once(self) -> float:
        """From the request to ``closed``."""
        begin = wire.now()
        process, answer = self.connection.start_request(
            f"p{next(self.number)}", ["/bin/true"], sandbox=self.wanted, cwd=self.wanted["cwd"]
        )
        await answer
        await process.done
        if process.exit_code != 0:
            raise SystemExit(f"{self.name}: exit code {process.exit_code}")
        self.connection.forget(process.pid)
        return wire.now() - begin


async def measure(options: argparse.Namespace, folder: Path) -> None:
    """Print the table."""
    full, empty = folder / "full", folder / "empty"
    names = (".agents", ".codex") if options.named else ()
    for root in (full, empty):
        for name in (".git", *names):
            (root / name).mkdir(parents=True)
    fill(full, options.files, options.repositories, names)
    servers = [Server(folder, "empty", 0), Server(folder, "full", options.tmp)]
    plain, crowded = servers
    rows = [
        Row("empty", "", plain, sandbox(empty)),
        Row(f"{options.tmp} in /tmp", "empty", crowded, sandbox(empty)),
        Row("/tmp writable", "", plain, sandbox(empty, tmp=True)),
        Row(f"{options.tmp} in it", "/tmp writable", crowded, sandbox(empty, tmp=True)),
        Row(f"{options.files} files", "empty", plain, sandbox(full)),
        Row(f"{options.globs} globs, empty", "", plain, sandbox(empty, options.globs)),
        Row(f"{options.globs} globs, files", f"{options.globs} globs, empty", plain,
            sandbox(full, options.globs)),
    ]  # fmt: skip
    if options.only:
        rows = [rows[int(number)] for number in options.only.split(",")]
    try:
        other = folder / "other"
        other.mkdir()
        for server in servers:  # which looks at the machine before its first sandbox
            await Row("", "", server, sandbox(other)).open()
        for row in rows:
            await row.open()
            await row.once()  # watches
        for _ in range(options.count):
            for row in rows:
                await asyncio.sleep(options.pause)
                row.seconds.append(await row.once())
    finally:
        for server in servers:
            server.stop()
    medians = {row.name: statistics.median(row.seconds) * 1e3 for row in rows}
    print(f"{'':22} {'first':>8} {'status':>8} {'warm':>8} {'times':>6}   (ms)")
    for row in rows:
        times = medians[row.name] / medians[row.base] if row.base in medians else 1.0
        missed = times > MOST_TIMES or row.first * 1e3 > MOST_FIRST_MS
        print(
            f"{row.name:22} {row.first * 1e3:8.1f} {row.longest * 1e3:8.1f}"
            f" {medians[row.name]:8.2f} {times:6.2f}   {'MISSED' if missed else 'OK'}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=40, help="starts of each row")
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--repositories", type=int, default=200)
    parser.add_argument("--globs", type=int, default=50)
    parser.add_argument("--tmp", type=int, default=10_000, help="directories in /tmp")
    parser.add_argument(
        "--named", action="store_true", help="no protected name is missing, so none is covered"
    )
    parser.add_argument("--only", default="", metavar="A,B", help="rows by number, from 0")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds before each start")
    parser.add_argument("--ordinary", action="store_true", help="without real-time priority")
    options = parser.parse_args()
    if os.geteuid() == 0 and not options.ordinary:
        # Before the processes of others, so that a busy machine does not decide.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cache = cache_folder() / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="around", dir=cache))
    in_memory = ctypes.CDLL(None).unshare(_CLONE_NEWNS) == 0
    try:
        if in_memory:
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
        uvloop.run(measure(options, folder))
    finally:
        if in_memory:
            subprocess.run(["umount", "-l", str(folder)], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
