"""``process/start``: what is checked, in which order, and what a refusal says."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from handrail.process.child import Child
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.starting import Starting
from handrail.server.request_queue import GATHER_SECONDS, RequestQueue
from handrail.transport.memory import MemoryTransport
from tests.support.clients import MemoryClient, Refused, chunks_of
from tests.support.eventually import spin
from tests.support.processes import PATH
from tests.support.servers import serving


async def ends_with(client: MemoryClient, process_id: str) -> tuple[int, bytes]:
    """The exit code and the output of a process that ends by itself."""
    events = await client.until_closed(process_id)
    code = next(event["exitCode"] for event in events if event["kind"] == "exited")
    return code, client.output(process_id)


async def test_a_process_starts_and_says_so() -> None:
    async with serving() as served:
        client = await served.client()
        result = await client.shell("p", "echo out; echo err >&2; exit 3")
        assert result == {"processId": "p", "sandboxType": "none"}
        assert (await ends_with(client, "p"))[0] == 3
        assert client.output("p", "stdout") == b"out\n"
        assert client.output("p", "stderr") == b"err\n"


async def test_any_text_is_a_process_id() -> None:
    ids = ["", " ", "ü€😀", 'a"b\\c', "\x00\x1b[31m\n", "x" * 1000, "x" * 4096, "ü" * 2048]
    async with serving() as served:
        client = await served.client()
        for process_id in ids:
            result = await client.start(process_id, "echo", "hi")
            assert result["processId"] == process_id
        for process_id in ids:
            assert await ends_with(client, process_id) == (0, b"hi\n")
            assert chunks_of(await client.read(process_id)) == b"hi\n"
        listing = (await client.call("process/list"))["processes"]
        assert [process["processId"] for process in listing] == ids


async def test_a_process_id_has_an_end() -> None:
    async with serving() as served:
        client = await served.client()
        for process_id in ("x" * 4097, "ü" * 2048 + "x", "x" * 1_000_000):
            code, text = await client.refused(
                "process/start", client.start_params(process_id, "true")
            )
            assert code == -32602
            assert "processId" in text
            assert len(text) < 200
        code, text = await client.refused(
            "process/start", client.start_params("p", "true", name="n" * 4097)
        )
        assert code == -32602
        assert "name" in text
        await client.start("p", "true", name="n" * 4096)


async def test_the_order_of_the_checks() -> None:
    """Each row has all faults of the rows below it."""
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        params: dict[str, Any] = {
            "processId": "p", "argv": ["/nosuch"], "cwd": "file:///nosuch", "env": {}, "tty": False,
        }  # fmt: skip
        entry = {"path": {"type": "path", "path": "/native"}, "access": "read"}
        files = {"type": "restricted", "entries": [entry]}
        managed = {"type": "managed", "file_system": files, "network": "restricted"}
        strange = {"permissions": managed, "windowsSandboxLevel": "disabled"}
        faults: list[tuple[dict[str, Any], int, str]] = [
            ({"processId": "q"}, -32603, "nosuch"),
            ({}, -32600, "process p already exists"),
            ({"argv": [""]}, -32600, "process p already exists"),
            ({"sandbox": strange}, -32602, "permission path"),
            ({"sandbox": {}}, -32602, "permissions"),
            ({"argv": []}, -32602, "argv must not be empty"),
            ({"argv": [], "cwd": "http://x"}, -32602, "unsupported path URI scheme `http`"),
            ({"argv": [], "cwd": "http://x", "tty": None}, -32602, "tty"),
        ]
        for changes, code, says in faults:
            answer = await client.refused("process/start", {**params, **changes})
            assert answer[0] == code, changes
            assert says in answer[1]


async def test_an_id_is_taken_until_its_process_is_forgotten() -> None:
    taken = (-32600, "process p already exists")
    async with serving(retention=0.05) as served:
        client = await served.client()
        params = client.start_params("p", "cat", pipeStdin=True)
        await client.call("process/start", params)
        assert await client.refused("process/start", params) == taken
        await client.call("process/closeStdin", processId="p")
        await client.until_closed("p")
        await spin(lambda: not served.server.sessions.children())
        assert await client.refused("process/read", processId="p") == (
            -32600,
            "unknown process id p",
        )
        assert await client.write("p", b"", "1") == "unknownProcess"
        client.messages.clear()
        await client.shell("p", "echo second")
        assert await ends_with(client, "p") == (0, b"second\n")


async def test_the_id_of_a_start_that_failed_is_free() -> None:
    async with serving() as served:
        client = await served.client()
        for argv in (["/nosuch"], [""], ["nosuch"]):
            code, _ = await client.refused("process/start", client.start_params("p", *argv))
            assert code == -32603
        assert await client.refused("process/read", processId="p") == (
            -32600,
            "unknown process id p",
        )
        await client.shell("p", "echo well")
        assert await ends_with(client, "p") == (0, b"well\n")


@pytest.mark.parametrize("tty", [False, True])
async def test_a_program_that_cannot_run(tmp_path: Path, tty: bool) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    async with serving() as served:
        client = await served.client()
        for program, number in (
            ("/nosuch/program", 2),
            ("nosuch-program", 2),
            (str(plain), 13),
            (str(tmp_path), 13),
            ("./nosuch", 2),
            (f"{plain}/below", 20),
        ):
            with pytest.raises(Refused) as caught:
                await client.start("p", program, tty=tty)
            assert caught.value.code == -32603
            assert program in caught.value.message
            assert f"(os error {number})" in caught.value.message
            assert caught.value.data == {"errno": number, "path": program}
        code, text = await client.refused("process/start", client.start_params("p", "", tty=tty))
        assert code == -32603
        assert "missing program" in text


@pytest.mark.parametrize("tty", [False, True])
async def test_a_directory_that_cannot_be_started_in(tmp_path: Path, tty: bool) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    async with serving() as served:
        client = await served.client()
        for name, number in (("missing", 2), ("file", 20), ("dangling", 2), ("file/x", 20)):
            path = tmp_path / name
            with pytest.raises(Refused) as caught:
                await client.start("p", "true", cwd=path.as_uri(), tty=tty)
            assert caught.value.code == -32603
            assert str(path) in caught.value.message
            assert f"(os error {number})" in caught.value.message
            assert caught.value.data == {"errno": number, "path": str(path)}


async def test_a_directory_that_is_none_of_ours() -> None:
    async with serving() as served:
        client = await served.client()
        for cwd in ("file:///C:/x", "file://host/tmp"):
            code, text = await client.refused(
                "process/start", client.start_params("p", "true", cwd=cwd)
            )
            assert code == -32602
            assert text.startswith(f"cwd URI `{cwd}` is not valid on this exec-server host: ")
        for cwd in ("/tmp", "", "http://x/", "file:///tmp?x", "file:///tmp#x", "file:///a%00b"):
            code, _ = await client.refused(
                "process/start", client.start_params("p", "true", cwd=cwd)
            )
            assert code == -32602


async def test_the_directory_is_where_the_child_is(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/a b\xff%"
    os.mkdir(odd)
    os.symlink(odd, tmp_path / "link")
    async with serving() as served:
        client = await served.client()
        for number, uri in enumerate(
            (f"{tmp_path.as_uri()}/a%20b%FF%25", f"{tmp_path.as_uri()}/x/../link")
        ):
            await client.start(str(number), "/bin/pwd", "-P", cwd=uri)
            assert await ends_with(client, str(number)) == (0, odd + b"\n")
        # It may go while the child runs.
        await client.start("p", "cat", cwd=f"{tmp_path.as_uri()}/link", pipeStdin=True)
        os.rmdir(odd)
        assert await client.write("p", b"still here", "1") == "accepted"
        await client.call("process/closeStdin", processId="p")
        assert await ends_with(client, "p") == (0, b"still here")


async def test_names_no_environment_can_hold() -> None:
    policy = {
        "inherit": "none",
        "ignoreDefaultExcludes": True,
        "exclude": [],
        "set": {},
        "includeOnly": [],
    }
    async with serving() as served:
        client = await served.client()
        for name in ("", "=", "A=B", "=A", "A\0B", "\0"):
            for members in ({"env": {name: "x"}}, {"envPolicy": {**policy, "set": {name: "x"}}}):
                code, text = await client.refused(
                    "process/start", client.start_params("p", "true", **members)
                )
                assert code == -32602
                assert "env" in text
        for members in (
            {"env": {"A": "x\0y"}},
            {"argv": ["true", "a\0b"]},
            {"argv": ["tr\0ue"]},
            {"arg0": "\0"},
        ):
            code, text = await client.refused(
                "process/start", {**client.start_params("p", "true"), **members}
            )
            assert code == -32602  # -32603 from the peer, which tries to start it
            assert "NUL" in text


async def test_members_that_an_ordinary_start_only_reads() -> None:
    """What they must look like and may leave out was observed on the Codex exec-server 0.169."""
    shell = {"name": "bash", "path": "/bin/bash"}
    good: list[dict[str, Any]] = [
        {"managedNetwork": {}},
        {"managedNetwork": {"loopbackPorts": [0, 65_535]}},
        {"managedNetwork": {"allowLocalBinding": True}},
        {"shellSnapshot": {"scopeId": "ü" * 128, "shell": shell, "x": 1}},
    ]
    bad: list[dict[str, Any]] = [
        {"managedNetwork": {"loopbackPorts": [65_536]}},
        {"managedNetwork": {"loopbackPorts": None}},
        {"shellSnapshot": {}},
        {"shellSnapshot": {"scopeId": "a"}},
        {"shellSnapshot": {"scopeId": "a", "shell": {"name": "bash"}}},
        {"shellSnapshot": {"scopeId": 1, "shell": shell}},
        {"shellSnapshot": {"scopeId": "", "shell": shell}},
        {"shellSnapshot": {"scopeId": "ü" * 129, "shell": shell}},
    ]
    async with serving() as served:
        client = await served.client()
        for number, members in enumerate(good):
            await client.start(str(number), "true", **members)
        for members in bad:
            code, _ = await client.refused(
                "process/start", client.start_params("p", "true", **members)
            )
            assert code == -32602, members


async def test_odd_names_and_words_arrive() -> None:
    odd = {"A B": "1", "é": "ü€😀", "1": "", "-": "a=b", "n\n": "x\ny"}
    async with serving() as served:
        client = await served.client()
        await client.start("p", "/usr/bin/env", "-0", env=odd)
        code, output = await ends_with(client, "p")
        assert code == 0
        assert dict(
            line.decode().split("=", 1) for line in output.split(b"\0") if line
        ) == odd  # fmt: skip
        await client.start("q", "printf", "%s|", "", " ", "a\nb", "ü", "*", "$HOME")
        assert await ends_with(client, "q") == (0, "| |a\nb|ü|*|$HOME|".encode())


async def test_the_environment_is_put_together_by_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_TOKEN", "secret")
    monkeypatch.setenv("OUR_WORD", "word")
    async with serving() as served:
        client = await served.client()

        async def env(policy: dict[str, Any] | None, overlay: dict[str, str]) -> dict[str, str]:
            process_id = f"p{next(client.ids)}"
            await client.start(process_id, "/usr/bin/env", "-0", env=overlay, envPolicy=policy)
            _, output = await ends_with(client, process_id)
            lines = [line.decode().split("=", 1) for line in output.split(b"\0") if line]
            return dict(lines)

        policy = {
            "inherit": "all",
            "ignoreDefaultExcludes": False,
            "exclude": ["our_w*"],
            "set": {"SET": "1", "OUR_TOKEN": "set"},
            "includeOnly": [],
        }
        assert await env(None, {"A": "1"}) == {"A": "1"}
        everything = await env(policy, {"A": "1"})
        assert everything["OUR_TOKEN"] == "set"
        assert everything["PATH"] == PATH
        assert "OUR_WORD" not in everything
        assert await env({**policy, "inherit": "none"}, {}) == policy["set"]
        assert await env({**policy, "includeOnly": ["s?t"]}, {"A": "1"}) == {"SET": "1", "A": "1"}
        assert set(await env({**policy, "inherit": "core"}, {})) >= {"PATH", "SET"}
        bad = {**client.start_params("p", "true"), "envPolicy": {**policy, "inherit": "some"}}
        assert (await client.refused("process/start", bad))[0] == -32602


@pytest.mark.parametrize("where", ["argv", "env"])
async def test_too_much_for_the_kernel(where: str) -> None:
    limit = os.sysconf("SC_ARG_MAX")
    async with serving() as served:
        client = await served.client()
        big = {str(number): "x" * 100_000 for number in range(40)}
        members = {"argv": ["true", *big.values()]} if where == "argv" else {"env": big}
        with pytest.raises(Refused) as caught:
            await client.call("process/start", {**client.start_params("p", "true"), **members})
        assert caught.value.code == -32603
        assert "Argument list too long" in caught.value.message
        assert str(limit) in caught.value.message
        assert "(os error 7)" in caught.value.message
        await client.shell("p", "echo well")
        assert await ends_with(client, "p") == (0, b"well\n")


async def test_a_large_command_that_fits() -> None:
    async with serving() as served:
        client = await served.client()
        words = ["x" * 100_000] * 5
        await client.shell("p", 'printf %s "$*" | wc -c', env={"PATH": PATH, "BIG": "y" * 100_000})
        await client.start("q", "sh", "-c", 'printf %s "$*" | wc -c', "sh", *words)
        assert await ends_with(client, "p") == (0, b"0\n")
        assert (await ends_with(client, "q"))[1].strip() == b"500004"


@pytest.mark.parametrize("tty", [False, True])
async def test_arg0_is_what_the_program_sees_and_not_what_is_looked_up(tty: bool) -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sh", "-c", "echo $0", arg0="/nosuch/other", tty=tty)
        assert (await ends_with(client, "p"))[1].strip() == b"/nosuch/other"


async def test_programs_are_looked_up_in_the_childs_own_path(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho mine\n")
    tool.chmod(0o755)
    async with serving() as served:
        client = await served.client()
        await client.start("p", "tool", env={"PATH": f"/nosuch:{tmp_path}"})
        assert await ends_with(client, "p") == (0, b"mine\n")
        await client.start("q", "./tool", cwd=tmp_path.as_uri(), env={})
        assert await ends_with(client, "q") == (0, b"mine\n")
        await client.start("r", "sh", "-c", "echo default", env={})
        assert await ends_with(client, "r") == (0, b"default\n")
        code, _ = await client.refused("process/start", client.start_params("s", "tool"))
        assert code == -32603


async def test_stdin_is_empty_unless_asked_for() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "cat")
        assert await ends_with(client, "p") == (0, b"")


async def test_a_terminal_has_the_size_that_was_asked_for() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "stty size; test -t 0 -a -t 1 -a -t 2 && echo tty", tty=True)
        assert await ends_with(client, "p") == (0, b"24 80\r\ntty\r\n")
        assert {e["stream"] for e in client.events("p") if e["kind"] == "output"} == {"pty"}
        await client.shell("q", "stty size", tty=True, size={"rows": 7, "cols": 300})
        assert await ends_with(client, "q") == (0, b"7 300\r\n")


async def test_requests_behind_a_start_wait_for_it_in_order() -> None:
    async with serving() as served:
        client = await served.client()
        answered: list[str] = []

        def post(what: str, *args: Any, **params: Any) -> asyncio.Future[Any]:
            future = client.post(what, *args, **params)
            future.add_done_callback(lambda _: answered.append(what))
            return future

        keeper = served.server.launcher.link._pid
        os.kill(keeper, signal.SIGSTOP)
        try:
            cat = client.start_params("p", "cat", pipeStdin=True)
            start = post("process/start", cat)
            chunk = base64.b64encode(b"x").decode()
            write = post("process/write", processId="p", chunk=chunk, writeId="1")
            read = post("process/read", processId="p", afterSeq=0, waitMs=0)
            second = post("process/start", cat)
            end = post("process/terminate", processId="p")
            # Other requests do not wait, nor do those for other processes.
            assert await client.call("process/terminate", processId="q") == {"running": False}
            assert await client.call("environment/info")
            assert answered == []
        finally:
            os.kill(keeper, signal.SIGCONT)
        async with asyncio.timeout(30):
            assert (await start)["processId"] == "p"
            assert await write == {"status": "accepted"}
            assert (await read)["exited"] is False
            with pytest.raises(Refused, match="process p already exists"):
                await second
            assert await end == {"running": True}
        assert answered == [
            "process/start",
            "process/write",
            "process/read",
            "process/start",
            "process/terminate",
        ]
        assert (await ends_with(client, "p"))[0] == 137


async def test_what_waits_behind_a_start_that_fails_is_answered() -> None:
    async with serving() as served:
        client = await served.client()
        start = client.post("process/start", client.start_params("p", "/no/such/program"))
        read = client.post("process/read", processId="p")
        again = client.post("process/start", client.start_params("p", "true"))
        for refused in (start, read):
            with pytest.raises(Refused):
                await asyncio.wait_for(refused, 30)
        await asyncio.wait_for(again, 30)
        assert await ends_with(client, "p") == (0, b"")


async def test_a_start_whose_client_is_gone_is_there_when_it_resumes() -> None:
    async with serving() as served:
        client = await served.client()
        keeper = served.server.launcher.link._pid
        os.kill(keeper, signal.SIGSTOP)
        try:
            client.post("process/start", client.start_params("p", "sleep", "600"))
            (session,) = served.server.sessions._sessions.values()
            await spin(lambda: isinstance(session.table.get("p"), Starting))
            client.abort()
            await client.until_ended()
            again = await served.client(resumeSessionId=client.session)
        finally:
            os.kill(keeper, signal.SIGCONT)
        await spin(lambda: isinstance(session.table.get("p"), Child))
        assert await again.call("process/terminate", processId="p") == {"running": True}
        assert (await ends_with(again, "p"))[0] == 137


async def test_a_server_that_stops_starts_nothing() -> None:
    async with serving() as served:
        client = await served.client()
        served.server.draining = True
        code, text = await client.refused("process/start", client.start_params("p", "true"))
        assert code == -32603
        assert "stopping" in text


@pytest.mark.parametrize("sandbox", [{}, {"sandbox": None}, {"sandbox": {}}])
async def test_a_managed_network_is_never_an_open_one(sandbox: dict[str, Any]) -> None:
    """Without a proxy or without a sandbox nothing could be enforced: it does not start."""
    async with serving() as served:
        client = await served.client()
        wanted = client.start_params("p", "/bin/echo", enforceManagedNetwork=True, **sandbox)
        code, message = await client.refused("process/start", wanted)
        assert code == -32602
        assert "managed network" in message
        await client.start("p", "/bin/echo", enforceManagedNetwork=False)
        assert (await ends_with(client, "p"))[0] == 0


async def test_the_answer_is_held_back_for_a_client_that_wants_the_end_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not without another process, which keeps the machine busy, nor for one that asks more."""
    told: list[str] = []

    def gather(queue: RequestQueue, *, at_once: bool) -> None:
        told.append("held")
        really(queue, at_once=at_once)

    def write_gathered(transport: MemoryTransport) -> None:
        told.append("written")

    really = RequestQueue.gather
    monkeypatch.setattr(RequestQueue, "gather", gather)
    monkeypatch.setattr(MemoryTransport, "write_gathered", write_gathered)
    async with serving() as served:
        client, other = await served.client(), await served.client()
        await client.start("alone", "true", gather=True)
        await client.until_closed("alone")
        assert "held" not in told
        await other.start("busy", "sleep", "600")
        await client.start("not asked", "true")
        await client.until_closed("not asked")
        assert "held" not in told
        told.clear()
        await client.start("held", "true", gather=True)
        await client.until_closed("held")
        assert told[0] == "held"
        assert told[-1] == "written"
        await client.start("long", "sleep", "600")
        told.clear()
        await client.start("beside it", "true", gather=True)
        await client.until_closed("beside it")
        assert "held" not in told
        await client.call("process/terminate", processId="long")
        await client.until_closed("long")
        told.clear()
        await client.start("asked meanwhile", "sleep", "600", gather=True)
        assert told == ["held"]
        await client.call("environment/status")
        assert told == ["held", "written"]


@pytest.mark.parametrize("known", [True, False])
async def test_an_answer_whose_news_are_there_is_held_back_without_a_timer(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[float] = []

    def gather(transport: MemoryTransport, seconds: float = 0.0) -> None:
        held.append(seconds)

    monkeypatch.setattr(MemoryTransport, "gather", gather)
    monkeypatch.setattr(Launcher, "knows_exit", lambda *_: known)
    async with serving() as served:
        client, other = await served.client(), await served.client()
        await other.start("busy", "sleep", "600")
        await client.start("p", "true", gather=True)
        await client.until_closed("p")
        assert held[0] == (0.0 if known else GATHER_SECONDS)
