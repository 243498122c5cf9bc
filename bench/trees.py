"""``upload`` and ``download`` of 10,000 small files beside ``tar`` into ``tar`` over the same line.

    python bench/trees.py [--files N] [--rounds N] [--dir DIR] [--ssh] [--line MBIT:MS]

The line is a TCP connection on loopback that is open before the clock starts: a workspace's to
``handrail serve``, and for ``tar`` one whose two ends are its stdout and its stdin, which is the
least that any copy by ``tar`` can cost.  ``--ssh`` puts both through one sshd of this program
instead, ``tar`` by a connection that is open already (ControlMaster); and once more with a
connection of its own for each copy, so that logging in, the remote program that ssh starts and the
end of both are in the time of each (the server itself runs on, as sshd does).  ``--line MBIT:MS``
also makes the ssh line as slow as this, each way.  Beside them the same on one machine: a workspace
without a server, plain and sandboxed, against ``tar`` through a pipe.

In turns, so that a busy machine is busy for all.  Prints median and best of the wall time, and the
processor time of all processes that took part (keepers apart: they copy nothing), each with its
ratio to ``tar``.  With ``--ssh`` the processor time of sshd is in neither.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.executor.sshd import Way

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from handrail import AsyncWorkspace
from handrail.executor.remote import RemoteExecutor

#: Seconds after which a copy counts as hung; the program then ends with an error.
LIMIT = 120.0

Work = Callable[[], Awaitable[None]]


def make_tree(root: Path, files: int) -> None:
    for number in range(files):
        place = root / f"d{number % 100}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"f{number}").write_bytes(b"%d\n" % number * 150)


async def piped(first: list[str], second: list[str], ends: tuple[int, int] | None = None) -> None:
    """Run one command into the other, by a pipe or by ``ends`` (read, write)."""
    begin, end = ends or os.pipe()
    writer = await asyncio.create_subprocess_exec(*first, stdin=subprocess.DEVNULL, stdout=end)
    os.close(end)
    reader = await asyncio.create_subprocess_exec(*second, stdin=begin)
    os.close(begin)
    async with asyncio.timeout(LIMIT):
        codes = await reader.wait(), await writer.wait()
    if codes != (0, 0):
        raise SystemExit(f"{shlex.join(first)} | {shlex.join(second)} ended with {codes}")


def tcp_ends() -> tuple[int, int]:
    """The two ends of a connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
    return served.detach(), client.detach()


@asynccontextmanager
async def serving(base: Path) -> AsyncIterator[tuple[str, int]]:
    """A server of this program: its address and its pid."""
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "handrail", "serve", "--state-dir", str(base / "state")),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert server.stdout is not None
        async with asyncio.timeout(LIMIT):
            address = (await server.stdout.readline()).decode().strip()
        yield address, server.pid
    finally:
        server.terminate()
        await server.wait()


def processor_seconds(*pids: int) -> dict[int, float]:
    """Of this process with its children that have ended (0), and of others by pid if they live."""
    found = {0: 0.0}
    for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(kind)
        found[0] += usage.ru_utime + usage.ru_stime
    for pid in pids:
        with suppress(FileNotFoundError):
            # With the threads that have ended, unlike the sum over those that live.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def helper_pids() -> list[int]:
    """All descendants of this process that live: file helpers in their sandboxes among them."""
    found, todo = [], [os.getpid()]
    while todo:
        with suppress(FileNotFoundError):  # it has ended
            for task in Path(f"/proc/{todo.pop()}/task").iterdir():
                below = [int(pid) for pid in (task / "children").read_text().split()]
                found += below
                todo += below
    return found


class Copies:
    """The ways to copy one tree, by their names."""

    def __init__(self, base: Path, files: int) -> None:
        self.source, self.target = base / "source", base / "target"
        self.files = files
        make_tree(self.source, files)

    def upload(self, ws: AsyncWorkspace) -> Work:
        async def work() -> None:
            async with asyncio.timeout(LIMIT):
                copied = await ws.files.upload(self.source, self.target)
            assert copied.files == self.files

        return work

    def download(self, ws: AsyncWorkspace) -> Work:
        async def work() -> None:
            async with asyncio.timeout(LIMIT):
                copied = await ws.files.download(self.source, self.target)
            assert copied.files == self.files

        return work

    @property
    def _pack(self) -> list[str]:
        return ["tar", "c", "-C", str(self.source), "."]

    @property
    def _unpack(self) -> list[str]:
        return ["tar", "x", "-C", str(self.target)]

    async def tar_pipe(self) -> None:
        self.target.mkdir()
        await piped(self._pack, self._unpack)

    async def tar_tcp(self) -> None:
        self.target.mkdir()
        await piped(self._pack, self._unpack, tcp_ends())

    def tar_up(self, line: list[str]) -> Work:
        async def work() -> None:
            self.target.mkdir()
            await piped(self._pack, [*line, shlex.join(self._unpack)])

        return work

    def tar_down(self, line: list[str]) -> Work:
        async def work() -> None:
            self.target.mkdir()
            await piped([*line, shlex.join(self._pack)], self._unpack)

        return work


async def measure(
    title: str, copies: Copies, work: dict[str, tuple[Work, str]], rounds: int
) -> None:
    """Print the rows of one line; each has the name of the ``tar`` it is compared with."""
    walls: dict[str, list[float]] = {name: [] for name in work}
    costs: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, (one, _) in work.items():
            pids = helper_pids()
            used, began = processor_seconds(*pids), time.perf_counter()
            await one()
            walls[name].append(time.perf_counter() - began)
            after = processor_seconds(*pids)
            costs[name].append(sum(seconds - used[pid] for pid, seconds in after.items()))
            shutil.rmtree(copies.target)
    print(title)
    for name, (_, beside) in work.items():
        row = f"  {name:22}"
        for what, times in (("wall", walls), ("cpu", costs)):
            middle, best = statistics.median(times[name]), min(times[name])
            ratio = middle / statistics.median(times[beside])
            row += f"  {what} median {middle:6.3f} s ({ratio:4.2f} x) best {best:6.3f} s"
        print(row)


async def near(base: Path, copies: Copies, rounds: int) -> None:
    async with AsyncWorkspace(base, sandbox="off") as ws, AsyncWorkspace(base) as held:
        await held.files.write("warm", "")  # its file helper is started
        rows = {
            "tar | tar": (copies.tar_pipe, "tar | tar"),
            "upload": (copies.upload(ws), "tar | tar"),
            "download": (copies.download(ws), "tar | tar"),
            "upload, sandboxed": (copies.upload(held), "tar | tar"),
            "download, sandboxed": (copies.download(held), "tar | tar"),
        }
        await measure("on this machine, beside tar through a pipe", copies, rows, rounds)


async def far(base: Path, copies: Copies, rounds: int) -> None:
    async with serving(base) as (address, _), AsyncWorkspace(base, sandbox="off", at=address) as ws:
        await ws.files.write("warm", "")
        rows = {
            "tar, TCP, tar": (copies.tar_tcp, "tar, TCP, tar"),
            "upload": (copies.upload(ws), "tar, TCP, tar"),
            "download": (copies.download(ws), "tar, TCP, tar"),
        }
        await measure("to a server, beside tar over a bare TCP line", copies, rows, rounds)


class Line:
    """What ssh connects to: the sshd itself, or a slow line to it."""

    def __init__(self, way: Way, port: int) -> None:
        user, _, own = way.url.removeprefix("ssh://").rpartition(":")
        self.port = port or int(own)
        self.user = user
        # The host key is known by the port of the sshd.
        alias = ("-o", f"HostKeyAlias=[{user.rpartition('@')[2]}]:{own}")
        self.ssh = (*way.ssh, *alias)
        self.url = f"ssh://{user}:{self.port}"
        self.proxy = way.proxy

    async def connect(self) -> RemoteExecutor:
        async with asyncio.timeout(LIMIT):
            return await RemoteExecutor.connect(self.url, ssh=self.ssh, ssh_command=self.proxy)

    def command(self, *options: str) -> list[str]:
        # Options end before the host: ssh takes what follows it for the command.
        return [*self.ssh, *options, "-p", str(self.port), self.user]

    @asynccontextmanager
    async def opened(self, base: Path) -> AsyncIterator[list[str]]:
        """A connection that commands share."""
        path = base / f"mux{self.port}"
        shared = ("-o", f"ControlPath={path}")
        master = subprocess.Popen(
            self.command(*shared, "-o", "ControlMaster=yes", "-N"), stdin=subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(LIMIT):
                while not path.exists():
                    if master.poll() is not None:
                        raise SystemExit(f"ssh ended with {master.returncode} before it connected")
                    await asyncio.sleep(0.01)
            yield self.command(*shared)
        finally:
            master.terminate()
            master.wait()


@asynccontextmanager
async def slow_line(port: int, mbit: float, delay: float) -> AsyncIterator[int]:
    """A port that leads to another one, with this rate and delay each way; in a process."""
    program = str(Path(__file__).with_name("slow_line.py"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, program, str(port), str(mbit), str(delay)), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


async def by_ssh(base: Path, copies: Copies, rounds: int, slow: str | None) -> None:
    from tests.executor.sshd import no_sshd, sshd

    if missing := no_sshd():
        raise SystemExit(f"--ssh cannot be measured: {missing}")
    async with sshd(base) as way:
        await over(Line(way, 0), base, copies, rounds, "by ssh")
        if slow is not None:
            mbit, _, delay = slow.partition(":")
            port = int(way.url.rpartition(":")[2])
            async with slow_line(port, float(mbit), float(delay or 0) / 1000) as near:
                title = f"by ssh, {mbit} Mbit/s and {delay or 0} ms each way"
                await over(Line(way, near), base, copies, rounds, title)


async def over(line: Line, base: Path, copies: Copies, rounds: int, title: str) -> None:
    async with AsyncExitStack() as stack:
        shared = await stack.enter_async_context(line.opened(base))
        executor = await line.connect()
        stack.push_async_callback(executor.close)
        ws = await stack.enter_async_context(AsyncWorkspace(base, sandbox="off", executor=executor))
        rows = {
            "tar | ssh": (copies.tar_up(shared), "tar | ssh"),
            "upload": (copies.upload(ws), "tar | ssh"),
            "ssh | tar": (copies.tar_down(shared), "ssh | tar"),
            "download": (copies.download(ws), "ssh | tar"),
        }
        await measure(f"{title}: over an open line", copies, rows, rounds)

        def connecting(work: Callable[[AsyncWorkspace], Work]) -> Work:
            async def whole() -> None:
                executor = await line.connect()
                try:
                    async with AsyncWorkspace(base, sandbox="off", executor=executor) as ws:
                        await work(ws)()
                finally:
                    await executor.close()

            return whole

        rows = {
            "tar | ssh": (copies.tar_up(line.command()), "tar | ssh"),
            "upload": (connecting(copies.upload), "tar | ssh"),
            "ssh | tar": (copies.tar_down(line.command()), "ssh | tar"),
            "download": (connecting(copies.download), "ssh | tar"),
        }
        await measure(f"{title}: with a connection of its own", copies, rows, rounds)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", help="where the trees are; a tmpfs says most about the copying")
    parser.add_argument("--ssh", action="store_true", help="also through an sshd of this program")
    parser.add_argument("--line", metavar="MBIT:MS", help="and by a line that is as slow as this")
    parser.add_argument("--only-ssh", action="store_true", help="nothing else than by ssh")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        base = Path(directory)
        copies = Copies(base, options.files)
        if not options.only_ssh:
            await near(base, copies, options.rounds)
            await far(base, copies, options.rounds)
        if options.ssh or options.only_ssh:
            await by_ssh(base, copies, options.rounds, options.line)


if __name__ == "__main__":
    asyncio.run(main())
