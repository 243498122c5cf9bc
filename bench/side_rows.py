"""The rows of ``side_by_side.py``: one small operation each, repeated on a server that lives on."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from side_file_rows import FILE_ROWS
from wire import Connection, connect, now, session, workspace_sandbox
from workloads.echo import Cat
from workloads.files import WALK, make_files

MIB = 1 << 20
TRUE = ["/bin/true"]
#: Part of it comes while the client is away, as in ``workloads/resume.py``.
AWAY = "head -c 400000 /dev/zero; sleep 0.05; head -c 500000 /dev/zero"


@dataclass
class Place:
    """One version as a row sees it: where it listens, its Python, its folder."""

    url: str
    python: str
    scratch: str
    start: Callable[[], Awaitable[float]]
    #: Does something with the address of a server that is started for it and stopped again.
    use_fresh: Callable[[Callable[[str], Awaitable[float]]], Awaitable[float]]
    #: Whether it is the peer's program.
    peer: bool

    def path(self, *parts: str) -> str:
        """A path in its own folder."""
        return os.path.join(self.scratch, *parts)

    def uri(self, *parts: str) -> str:
        """The same as the wire wants it."""
        return "file://" + self.path(*parts)


#: Does its operation that often and gives the seconds of each.
Block = Callable[[int], Awaitable[list[float]]]
Row = Callable[[Place], Awaitable[Block]]


async def timed(count: int, once: Callable[[], Awaitable[Any]]) -> list[float]:
    """The seconds of each of ``count`` calls."""
    seconds = []
    for _ in range(count):
        begin = now()
        await once()
        seconds.append(now() - begin)
    return seconds


def spawn(quickack: bool = False, width: int = 1, **options: Any) -> Row:
    """/bin/true from the request to ``closed``; with a width the seconds are those per process."""

    async def row(place: Place) -> Block:
        c = await session(place.url, quickack=quickack)
        number = 0

        async def once() -> None:
            nonlocal number
            number += 1
            process, answer = c.start_request(f"s{number}", TRUE, **options)
            await answer
            await process.done
            if process.exit_code != 0:
                raise RuntimeError(f"exit code {process.exit_code}")
            c.forget(process.pid)

        async def lane(count: int) -> None:
            for _ in range(count):
                await once()

        async def block(count: int) -> list[float]:
            if width == 1:
                return await timed(count, once)
            begin = now()
            await asyncio.gather(*(lane(count) for _ in range(width)))
            return [(now() - begin) / count / width]

        return block

    return row


def sandboxed(width: int = 1, quickack: bool = False) -> Row:
    """The same in a sandbox that may write one folder."""

    async def row(place: Place) -> Block:
        os.makedirs(place.path("ws"), exist_ok=True)
        root = place.uri("ws")
        return await spawn(quickack, width, sandbox=workspace_sandbox(root), cwd=root)(place)

    return row


def echo(quickack: bool = False, tty: bool = False) -> Row:
    """A line written to ``cat`` and seen again."""

    async def row(place: Place) -> Block:
        c = await session(place.url, quickack=quickack)
        cat = await Cat.start(c, tty)
        number = 0

        async def block(count: int) -> list[float]:
            nonlocal number
            seconds = []
            for _ in range(count):
                number += 1
                seconds.append((await cat.round_trip(number))[0])
            return seconds

        return block

    return row


def call(
    method: str, params: Callable[[Place], dict[str, Any]], quickack: bool = False, path: str = ""
) -> Row:
    """One request after the other."""

    async def row(place: Place) -> Block:
        os.makedirs(place.path("ws"), exist_ok=True)
        if path:
            make_files(place)
        c = await session(place.url, quickack=quickack)
        ready = params(place)
        return lambda count: timed(count, lambda: c.request(method, ready))

    return row


def file(name: str) -> Callable[[Place], dict[str, Any]]:
    """The params of a call on a file, not sandboxed."""
    return lambda place: {"path": place.uri(name), "sandbox": None}


async def small_read(place: Place) -> Block:
    """``process/read`` of a process that has no more to give."""
    c = await session(place.url)
    process, _ = await c.start("done", TRUE)
    await process.done
    params = {"processId": "done", "afterSeq": 2, "maxBytes": 65536, "waitMs": 0}
    return lambda count: timed(count, lambda: c.request("process/read", params))


async def big_read(place: Place) -> Block:
    """``process/read`` of 1 MiB."""
    c = await session(place.url)
    process, _ = await c.start("mib", ["/usr/bin/head", "-c", str(MIB), "/dev/zero"])
    await process.done
    params = {"processId": "mib", "afterSeq": None, "maxBytes": None, "waitMs": 0}
    return lambda count: timed(count, lambda: c.request("process/read", params))


async def burst(place: Place) -> Block:
    """1,000 requests sent at once; the seconds of one."""
    c = await session(place.url)

    async def block(count: int) -> list[float]:
        begin = now()
        for _ in range(count):
            await asyncio.gather(*(c.request("environment/status", {}) for _ in range(1000)))
        return [(now() - begin) / count / 1000]

    return block


def stream(argv: list[str], tty: bool = False, width: int = 1) -> Row:
    """Much output; the seconds of one process that writes it."""

    async def row(place: Place) -> Block:
        c = await session(place.url)
        number = 0

        async def once() -> None:
            nonlocal number
            processes = []
            for _ in range(width):
                number += 1
                process, _ = await c.start(f"o{number}", argv, tty=tty)
                processes.append(process)
            for process in processes:
                await process.done
                c.forget(process.pid)

        return lambda count: timed(count, once)

    return row


async def resume(place: Place) -> Block:
    """A lost connection: from the new one to the last byte that was missed."""

    async def once() -> float:
        c = await session(place.url)
        process, _ = await c.start("res", ["/bin/sh", "-c", AWAY])
        while process.bytes < 400_000:
            await asyncio.sleep(0.002)
        session_id = c.session_id
        await c.close()
        await asyncio.sleep(0.12)
        begin = now()
        c = await connect(place.url)
        await c.initialize(session_id)
        await read_all(c, 900_000)
        seconds = now() - begin
        await c.close()
        return seconds

    async def block(count: int) -> list[float]:
        return [await once() for _ in range(count)]

    return block


async def read_all(c: Connection, size: int) -> None:
    """Read until all of it was there."""
    got, after = 0, 0
    while got < size:
        params = {"processId": "res", "afterSeq": after, "maxBytes": None, "waitMs": 200}
        result = await c.call("process/read", params)
        got += sum(len(chunk["chunk"]) // 4 * 3 - chunk["chunk"].count("=", -2)
                   for chunk in result["chunks"])  # fmt: skip
        after = result["nextSeq"] - 1


async def start(place: Place) -> Block:
    """Another server of the version, from its launch to the answer of ``initialize``."""

    async def block(count: int) -> list[float]:
        return [await place.start() for _ in range(count)]

    return block


def command(*argv: str) -> Row:
    """A command line of the version, from its start to its end."""

    async def row(place: Place) -> Block:
        os.makedirs(place.path("ws"), exist_ok=True)
        program = [place.python, "-m", "handrail", *argv]

        async def once() -> None:
            await asyncio.to_thread(
                subprocess.run, program, check=True, cwd=place.path("ws"), capture_output=True
            )

        return lambda count: timed(count, once)

    return row


#: Runs in the Python of the version: what a user of the library writes, timed where it is called.
LIBRARY = """
import sys, time
from handrail import Workspace
how, folder = sys.argv[1:]
with Workspace(folder) as ws:
    data = b'x' * 1000
    ws.files.write('small', data)
    calls = {
        'run': lambda: ws.run(['/bin/true']),
        'read': lambda: ws.files.read('small'),
        'write': lambda: ws.files.write('small', data),
    }
    print('ready', flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            calls[how]()
            seconds.append(time.perf_counter() - begin)
        print(*seconds, flush=True)
"""


def library(how: str) -> Row:
    """A call of the Python API on a local workspace."""

    async def row(place: Place) -> Block:
        os.makedirs(place.path("ws"), exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            place.python, "-c", LIBRARY, how, place.path("ws"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        await stdout.readline()

        async def block(count: int) -> list[float]:
            stdin.write(b"%d\n" % count)
            return [float(word) for word in (await stdout.readline()).split()]

        return block

    return row


def metadata_sandboxed(place: Place) -> dict[str, Any]:
    """The params of a sandboxed file call."""
    return {"path": place.uri("ws"), "sandbox": workspace_sandbox(place.uri("ws"))}


def write(size: int) -> Callable[[Place], dict[str, Any]]:
    """The params of a write; the content is zeros."""
    text = "AAAA" * (size // 3)
    return lambda place: {"path": place.uri("out"), "dataBase64": text, "sandbox": None}


def walk(place: Place) -> dict[str, Any]:
    """The params of a walk of 20,000 entries."""
    return {"path": place.uri("walk"), "options": WALK, "sandbox": None}


#: Name -> the row, and how many operations make a block.
ROWS: dict[str, tuple[Row, int]] = {
    "spawn": (spawn(), 20),
    "spawn_quickack": (spawn(quickack=True), 20),
    "spawn_pty": (spawn(tty=True), 20),
    "spawn_8": (spawn(width=8), 10),
    "spawn_64": (spawn(width=64), 4),
    "sandboxed": (sandboxed(), 5),
    "sandboxed_quickack": (sandboxed(quickack=True), 5),
    "sandboxed_64": (sandboxed(width=64), 1),
    "echo": (echo(), 60),
    "echo_quickack": (echo(quickack=True), 60),
    "echo_pty": (echo(tty=True), 60),
    "status": (call("environment/status", lambda _: {}), 100),
    "status_quickack": (call("environment/status", lambda _: {}, quickack=True), 100),
    "small_read": (small_read, 100),
    "big_read": (big_read, 10),
    "burst": (burst, 1),
    "stream": (stream(["/usr/bin/head", "-c", str(64 * MIB), "/dev/zero"]), 1),
    "stream_pty": (stream(["/usr/bin/head", "-c", str(4 * MIB), "/dev/zero"], tty=True), 1),
    "stream_32": (stream(["/usr/bin/head", "-c", str(MIB // 4), "/dev/zero"], width=32), 1),
    "lines": (stream(["/usr/bin/seq", "100000"]), 1),
    "resume": (resume, 2),
    "metadata": (call("fs/getMetadata", file("ws")), 100),
    "metadata_sandboxed": (call("fs/getMetadata", metadata_sandboxed), 50),
    "read_16MiB": (call("fs/readFile", file("file16"), path="file16"), 2),
    "readdir": (call("fs/readDirectory", file("dir5000"), path="dir5000"), 5),
    "walk": (call("fs/walk", walk, path="walk"), 2),
    "write_8MiB": (call("fs/writeFile", write(8 * MIB)), 2),
    "write_1kB": (call("fs/writeFile", write(1000)), 50),
    **FILE_ROWS,
    "start": (start, 1),
    "run": (command("run", "--", "/bin/true"), 2),
    "sandbox": (command("sandbox", "--", "/bin/true"), 2),
    "version": (command("--version"), 2),
    "ws_run": (library("run"), 5),
    "ws_read": (library("read"), 50),
    "ws_write": (library("write"), 50),
}
