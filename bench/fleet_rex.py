"""SWE-ReX over HTTP, for bench/fleet.py: its server and client, in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from proc import free_port

#: Runs in that environment as `python -c CLIENT PORT`: a line `LANES COMMANDS` in, seconds out.
CLIENT = """
import asyncio, json, sys, time
from swerex.runtime.abstract import Command
from swerex.runtime.remote import RemoteRuntime
runtime = RemoteRuntime(host="http://127.0.0.1", port=int(sys.argv[1]), auth_token="bench")

async def lane(count):
    for _ in range(count):
        done = await runtime.execute(Command(command=["true"]))
        assert done.exit_code == 0

async def measured(lanes, count):
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(lane(count // lanes) for _ in range(lanes)))
    return time.perf_counter() - wall, time.process_time() - cpu

async def main():
    await runtime.wait_until_alive(timeout=60) if hasattr(runtime, "wait_until_alive") else None
    while not (await runtime.is_alive()).is_alive:
        await asyncio.sleep(0.1)
    print("ready", flush=True)
    for line in sys.stdin:
        lanes, count = map(int, line.split())
        print(json.dumps(await measured(lanes, count)), flush=True)

asyncio.run(main())
"""


def environment() -> Path | None:
    """Where it is installed: $SWE_REX, or a cache that is filled by pip; None: it cannot be."""
    given = os.environ.get("SWE_REX")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = Path(given) if given else Path(cache, "handrail", "swe-rex")
    if (place / "bin" / "swerex-remote").exists():
        return place
    print(f"installing swe-rex into {place}", file=sys.stderr, flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        words = [str(place / "bin" / "pip"), "install", "-q", "swe-rex", "aiohttp"]
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"swe-rex cannot be installed ({error}); its rows are left out", file=sys.stderr)
        return None
    return place


class Rex:
    """A server of SWE-ReX and a client that is told how many commands to run."""

    def __init__(self, place: Path) -> None:
        port = str(free_port())
        self._server = subprocess.Popen(
            [str(place / "bin" / "swerex-remote"), "--port", port, "--auth-token", "bench"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._client = subprocess.Popen(
            [str(place / "bin" / "python"), "-c", CLIENT, port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._client.stdout is not None
        if self._client.stdout.readline() != "ready\n":
            self.close()
            raise OSError("the client of SWE-ReX does not reach its server")

    def seconds(self, lanes: int, count: int) -> float:
        """How long so many commands take, on so many lanes."""
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        print(lanes, count, file=self._client.stdin, flush=True)
        wall, _ = json.loads(self._client.stdout.readline())
        return float(wall)

    def close(self) -> None:
        for process in (self._client, self._server):
            process.terminate()
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
