"""A server that is killed again and again: its clients lose nothing and hear nothing twice."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import signal
import time
from pathlib import Path

import pytest
import uvloop

from handrail.executor.remote import RemoteExecutor
from tests.executor.places import Room
from tests.executor.sshd import free_port
from tests.executor.test_chaos import DEADLINE, SECONDS, SEED, SLACK, Load
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("handrail.server.recovery.adopt") is None,
    reason="this server does not take over what one before it has left",
)


class Phoenix:
    """A server on one port and one state directory, however often it dies."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._listen = f"ws://127.0.0.1:{free_port()}"
        self.server = self._start()
        self.deaths = 0

    def _start(self) -> ServerProcess:
        return ServerProcess(self._base / "state", listen=self._listen)

    def die(self) -> None:
        self.server.stop(signal.SIGKILL)
        self.server.close()
        self.server = self._start()
        self.deaths += 1

    def stop(self) -> None:
        self.server.stop()
        self.server.close()


@pytest.mark.timeout(SECONDS + 120)
def test_every_byte_arrives_once_through_crashes(tmp_path: Path) -> None:
    async def dying(phoenix: Phoenix, until: float) -> None:
        rng = random.Random(SEED)
        while time.monotonic() < until:
            await asyncio.sleep(rng.uniform(0.2, 0.8))
            await asyncio.to_thread(phoenix.die)

    async def main() -> None:
        phoenix = await asyncio.to_thread(Phoenix, tmp_path)
        try:
            executor = await RemoteExecutor.connect(
                phoenix.server.url, request_timeout=DEADLINE, detach_ttl=60
            )
            load = Load(Room(executor, "websocket", tmp_path), time.monotonic() + SECONDS)
            async with asyncio.timeout(SECONDS + 2 * (DEADLINE + SLACK)):
                await asyncio.gather(
                    dying(phoenix, load.until),
                    *(load.talkers(n) for n in range(3)),
                    *(load.dialogue(n) for n in range(3)),
                )
            print(f"seed {SEED}: {load.done} pieces of work, {phoenix.deaths} deaths")
            assert executor.client.resumed > 0
            await executor.close()
        finally:
            await asyncio.to_thread(phoenix.stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
