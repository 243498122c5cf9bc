"""What ``/metrics`` shows: everything is counted, and once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from handrail.protocol.methods import METHODS
from tests.support.eventually import spin
from tests.support.gates import gate
from tests.support.servers import Served, serving

LONG = 3_600_000


def requests(served: Served) -> dict[tuple[str, str], float]:
    """How often each method ended in each way, without the zeros."""
    found = {}
    for method in (*METHODS, "unknown"):
        for result in ("success", "error", "disconnected"):
            name = f'handrail_requests_total{{method="{method}",result="{result}"}}'
            count = served.metrics().get(name, 0)
            if count:
                found[method, result] = count
    return found


def finished(served: Served) -> dict[str, float]:
    counts = served.metrics()
    found = {}
    for result in ("success", "error", "terminated", "unknown"):
        count = counts.get(f'handrail_processes_finished_total{{result="{result}"}}', 0)
        assert count == counts.get(
            f'handrail_process_duration_seconds_count{{result="{result}"}}', 0
        )
        if count:
            found[result] = count
    return found


async def test_requests_are_counted_once_by_method_and_outcome(tmp_path: Path) -> None:
    with gate(tmp_path / "gate"):
        async with serving() as served:
            client = await served.client()
            await client.call("environment/status")
            await client.refused("environment/status", [])
            await client.start("p", "cat", pipeStdin=True)
            await client.refused("process/start", client.start_params("p", "true"))
            await client.refused("process/start", client.start_params("q", "/nosuch"))
            await client.write("p", b"x", "1")
            await client.read("p", waitMs=LONG)
            await client.refused("process/read", processId="nosuch")
            for method in ("nosuch", "x/y", ""):
                await client.refused(method)
            client.send_text("nonsense")  # no request, so not counted as one
            client.post("process/read", processId="p", afterSeq=99, waitMs=LONG)
            client.post("process/read", processId="p", afterSeq=99, waitMs=LONG)
            await client.call("process/list")
            client.abort()
            await client.until_ended()
            expected = {
                ("initialize", "success"): 1,
                ("environment/status", "success"): 1,
                ("environment/status", "error"): 1,
                ("process/start", "success"): 1,
                ("process/start", "error"): 2,
                ("process/write", "success"): 1,
                ("process/read", "success"): 1,
                ("process/read", "error"): 1,
                ("process/read", "disconnected"): 2,
                ("process/list", "success"): 1,
                ("unknown", "error"): 3,
            }
            await spin(lambda: requests(served) == expected)
            counts = served.metrics()
            for (method, result), count in expected.items():
                labels = f'{{method="{method}",result="{result}"}}'
                for name in ("duration", "total_duration"):
                    assert counts[f"handrail_request_{name}_seconds_count{labels}"] == count
            queued = counts['handrail_request_queue_duration_seconds_count{method="process/read"}']
            assert queued == 4


async def test_connections_are_counted() -> None:
    total = 'handrail_connections_total{transport="memory"}'
    active = 'handrail_connections_active{transport="memory"}'
    async with serving() as served:
        clients = [await served.client() for _ in range(3)]
        assert (served.metrics()[total], served.metrics()[active]) == (3, 3)
        clients[0].abort()
        await clients[1].close()
        await spin(lambda: served.metrics()[active] == 1)
        assert served.metrics()[total] == 3


async def test_processes_are_counted_by_how_they_ended() -> None:
    active = "handrail_processes_active"
    async with serving(detach_ttl=0.0) as served:
        client = await served.client()
        await client.start("good", "true")
        await client.shell("bad", "exit 3")
        await client.shell("killed", "kill -9 $$")
        await client.refused("process/start", client.start_params("never", "/nosuch"))
        await client.start("ended", "sleep", "600")
        await client.start("graceful", "sleep", "600")
        # Exited, its pipe held: counted at the exit, not at the close.
        await client.shell("held", "sleep 600 & exit 0")
        await client.call("process/terminate", processId="ended")
        await client.call("process/terminate", processId="graceful", graceMs=LONG)
        for name in ("good", "bad", "killed", "ended", "graceful"):
            await client.until_closed(name)
        await client.until_exited("held")
        expected = {"success": 2, "error": 2, "terminated": 2}
        assert finished(served) == expected
        assert served.metrics()[active] == 0
        # A terminate after the exit changes nothing.
        await client.call("process/terminate", processId="held", tree=True)
        await client.until_closed("held")
        assert finished(served) == expected
        # What a session takes along was terminated.
        await client.start("one", "sleep", "600")
        await client.start("two", "sleep", "600", tty=True)
        assert served.metrics()[active] == 2
        client.abort()
        await spin(lambda: served.metrics()[active] == 0)
        assert finished(served) == {**expected, "terminated": 4}


async def test_a_start_that_was_cancelled_is_no_process() -> None:
    async with serving() as served:
        client = await served.client()
        start = client.post("process/start", client.start_params("p", "sleep", "600"))
        end = client.post("process/terminate", processId="p")
        await asyncio.wait([start, end], timeout=30)
        if start.exception() is None:
            await client.until_closed("p")
        assert served.metrics()["handrail_processes_active"] == 0
        assert finished(served) in ({}, {"terminated": 1})
