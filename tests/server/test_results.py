"""session/detach and session/result: what a server stores of processes that were left."""

from __future__ import annotations

import base64
import errno
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from handrail.results import store
from handrail.results.record import Decoder
from handrail.server_settings import ResultBounds
from tests.support.clients import MemoryClient
from tests.support.eventually import eventually_so, spin
from tests.support.gates import gate
from tests.support.processes import alive, until_ended
from tests.support.servers import serving

pytestmark = pytest.mark.both_loops


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))


async def leave(client: MemoryClient, **params: Any) -> None:
    await client.call("session/detach", **params)
    client.transport.close()
    await client.until_ended()


async def stored_end() -> store.Stored:
    found = await eventually_so(lambda: [one for one in store.every() if one.about.exit])
    (one,) = found
    return one


async def test_a_session_that_was_left_ends_with_its_processes() -> None:
    async with serving(results=ResultBounds(), detach_ttl=0.0, retention=0.05) as served:
        client = await served.client()
        await client.start("p", "sh", "-c", "read x; echo $x; exit 7", pipeStdin=True)
        session = client.session
        await leave(client)
        back = await served.client(resumeSessionId=session)  # not ended after detach_ttl
        await back.write("p", b"late\n", "1")
        await back.until_exited("p")
        back.transport.close()
        await spin(lambda: not len(served.server.sessions))
        other = await served.client()
        answer = await other.call("session/result", sessionId=session, processId="p")
        assert answer["about"]["exit"] == {"kind": "exited", "code": 7, **_usage(answer)}
        records = list(Decoder().feed(base64.b64decode(answer["data"])))
        assert b"".join(record.data for record in records) == b"late\n"
        end = await other.call(
            "session/result", sessionId=session, processId="p", offset=len(answer["data"])
        )
        assert end["data"] == ""
        stranger = await served.client("theirs")
        hidden = await stranger.call("session/result", sessionId=session, processId="p")
        assert hidden == {"about": None, "data": ""}
        await other.call("session/result", sessionId=session, processId="p", forget=True)
        assert list(store.every()) == []


def _usage(answer: dict[str, Any]) -> dict[str, Any]:
    return {"usage": answer["about"]["exit"]["usage"]}


async def test_what_keep_says_is_the_end() -> None:
    async with serving(results=ResultBounds()) as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        (row,) = (await client.call("process/list"))["processes"]
        await leave(client, keepMs=50)
        await until_ended(row["pid"])
        assert (await stored_end()).about.exit == store.Exit(
            "terminated",
            143,
            "SIGTERM",
            usage=(await stored_end()).about.exit.usage,  # type: ignore[union-attr]
        )


async def test_a_process_that_was_not_left_is_not_stored() -> None:
    async with serving(results=ResultBounds(), retention=0.05) as served:
        client = await served.client()
        await client.start("q", "true")
        await client.start("p", "sleep", "600")
        await client.until_closed("q")
        await client.call("session/detach", processes=["p"])
        await eventually_so(lambda: list(store.every()))
        (one,) = store.every()
        assert one.about.process_id == "p"
        await client.call("session/close")  # its client has had it
        await eventually_so(lambda: not list(store.every()))


async def test_a_detached_process_is_stored_when_it_outlives_its_session(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving(results=ResultBounds(), retention=0.05) as served:
            for number in range(2):
                client = await served.client()
                script = f"read x < {held.path}; exit {number}"
                await client.shell("p", script, detach=True)
                await client.call("session/close")
            held.open(2)
            await eventually_so(lambda: [one for one in store.every() if one.about.exit][1:])
            await _check_codes(await served.client(), {"p": 0, "p (2)": 1})


async def _check_codes(client: MemoryClient, codes: dict[str, int]) -> None:
    for key, code in codes.items():
        answer = await client.call("session/result", sessionId="", processId=key)
        assert answer["about"]["exit"]["code"] == code


async def test_a_full_disk_is_announced_and_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.ResultFile, "write", full)
    async with serving(results=ResultBounds(), detach_ttl=0.0) as served:
        client = await served.client()
        # More than the retention: it would wait for ever if it waited for the disk or a reader.
        script = "head -c 5000000 /dev/zero; exit 9"
        await client.shell("p", script, onLag="block")
        with caplog.at_level(logging.ERROR):
            await leave(client)
            about = (await stored_end()).about
        assert about.exit is not None
        assert (about.exit.code, about.output_bytes, about.omitted) == (9, 5_000_000, 5_000_000)
        assert about.problem == "No space left on device"
        assert "make room with `handrail prune`" in caplog.text


async def test_a_result_that_is_fetched_while_its_exit_is_written_is_no_problem(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = store.ResultFile.write_about

    def fetched(file: store.ResultFile, about: store.About, *, sync: bool = False) -> None:
        if sync:
            for one in store.every():
                one.remove()
        write(file, about, sync=sync)

    monkeypatch.setattr(store.ResultFile, "write_about", fetched)
    async with serving(results=ResultBounds(), detach_ttl=0.0) as served:
        client = await served.client()
        await client.start("p", "cat", pipeStdin=True)
        await client.call("session/detach")
        await eventually_so(lambda: list(store.every()))
        with caplog.at_level(logging.ERROR):
            await client.call("process/closeStdin", processId="p")
            await eventually_so(lambda: not list(store.every()))
            await client.call("session/close")
        assert list(store.every()) == []  # nor does it come back
    assert "cannot be stored" not in caplog.text


async def test_single_bytes_take_no_more_disk_than_others() -> None:
    bounds = ResultBounds(each=4096)
    async with serving(results=bounds, detach_ttl=0.0) as served:
        client = await served.client()
        write = "import os, sys, time\nsys.stdin.read()\n"
        write += "for _ in range(300): os.write(1, b'x'); time.sleep(0.002)"
        await client.start("p", sys.executable, "-c", write, pipeStdin=True)
        await client.call("process/closeStdin", processId="p")
        await leave(client)
        stored = await stored_end()
        assert len(stored.read(0)) <= bounds.each
        data = stored.read(0)
        told = sum(record.size + record.omitted for record in Decoder().feed(data))
        assert told + stored.about.omitted == stored.about.output_bytes == 300


async def test_labels_and_costs_are_listed() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600", labels={"task": "42"}, name="build")

        async def listed() -> dict[str, Any]:
            (row,) = (await client.call("process/list", usage=True))["processes"]
            return dict(row)

        row = await listed()
        assert (row["name"], row["labels"]) == ("build", {"task": "42"})
        while not row["usage"]["maxRssBytes"]:  # it is not yet the program that was started
            row = await listed()
        assert alive(row["pid"])
        code, text = await client.refused(
            "process/start",
            processId="q",
            argv=["true"],
            cwd="file:///",
            env={},
            tty=False,
            labels={"": "x"},
        )
        assert (code, "labels" in text) == (-32602, True)
        status = await client.call("server/status")
        assert (status["sessions"], status["processes"]) == (0, 1)
