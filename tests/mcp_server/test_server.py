"""The SDK's own client drives every tool over both transports, in both eras of the protocol."""

from __future__ import annotations

import ast
import asyncio
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from tests.mcp_server.hosts import Host, played, text
from tests.support.eventually import eventually_so
from tests.workspace.inner_server import ask, echo

FREE = ("--sandbox", "off")
NAMES = {
    "exec_command", "write_stdin", "list_processes", "kill", "apply_patch", "read_output",
}  # fmt: skip


@pytest.fixture(params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["legacy", "2026-07-28"])
def host(request: pytest.FixtureRequest, transport: str) -> Host:
    return Host(transport, request.param)


@pytest.fixture(params=[("stdio", "legacy"), ("http", "2026-07-28")], ids=["stdio", "http"])
def one_host(request: pytest.FixtureRequest) -> Host:
    """One era for each transport, where the era makes no difference."""
    return Host(*request.param)


def decide(choice: str, seen: list[Any], comment: str = "") -> Any:
    def elicit(params: types.ElicitRequestFormParams) -> types.ElicitResult:
        seen.append(params)
        content: Any = {"decision": choice, "comment": comment}
        return types.ElicitResult(action="accept", content=content)

    return elicit


def test_every_tool(host: Host, tmp_path: Path) -> None:
    async def main() -> None:
        async with host.client(tmp_path, *FREE) as client:
            listed = await client.list_tools()
            assert {tool.name for tool in listed.tools} == NAMES

            patch = "*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch\n"
            done = await client.call_tool("apply_patch", {"patch": patch})
            assert "A a.txt" in text(done)
            assert (tmp_path / "a.txt").read_text() == "hello\n"

            ran = await client.call_tool("exec_command", {"cmd": "cat a.txt; exit 3"})
            assert not ran.is_error
            assert "Process exited with code 3" in text(ran)
            assert ran.structured_content["output"] == "hello\n"

            started = await client.call_tool(
                "exec_command", {"cmd": "echo up; read x; echo $x; sleep 1000", "tty": True,
                                 "yield_time_ms": 250},
            )  # fmt: skip
            session = started.structured_content["session_id"]
            listing = await client.call_tool("list_processes", {})
            assert [p["session_id"] for p in listing.structured_content["processes"]] == [session]

            said = ""
            wrote = await client.call_tool("write_stdin", {"session_id": session, "chars": "one\n"})
            said += text(wrote)
            while "one\r\none" not in said:
                more = {"session_id": session, "chars": "", "yield_time_ms": 5000, "keys": ["up"]}
                said += text(await client.call_tool("write_stdin", more))
            read = await client.call_tool(
                "read_output", {"session_id": session, "offset": 0, "max_bytes": 2}
            )
            assert read.structured_content["output"] == "up"
            assert read.structured_content["next_offset"] == 2

            killed = await client.call_tool("kill", {"session_id": session})
            assert not killed.is_error
            again = await client.call_tool("kill", {"session_id": session})
            assert again.is_error
            assert "No process" in text(await client.call_tool("list_processes", {}))

    played(main())


def test_mistakes_are_errors_with_a_sentence(one_host: Host, tmp_path: Path) -> None:
    async def main() -> None:
        async with one_host.client(tmp_path, *FREE) as client:
            for tool, arguments in (
                ("exec_command", {"workdir": "/"}),
                ("write_stdin", {"session_id": 12}),
                ("write_stdin", {"session_id": "call-none"}),
                ("read_output", {"session_id": 12}),
                ("kill", {}),
                ("apply_patch", {"patch": "nothing"}),
            ):
                result = await client.call_tool(tool, arguments)
                assert result.is_error, tool
                assert text(result), tool

    played(main())


def test_approvals_are_asked_where_the_host_offers_it(host: Host, tmp_path: Path) -> None:
    seen: list[types.ElicitRequestFormParams] = []

    async def main() -> None:
        approve = decide("approved", seen)
        async with host.client(tmp_path, *FREE, elicit=approve) as client:
            (tmp_path / "x").mkdir()
            result = await client.call_tool("exec_command", {"cmd": "rm -rf x"})
            assert not result.is_error, text(result)
            assert not (tmp_path / "x").exists()

    played(main())
    (form,) = seen
    assert "rm -rf x" in form.message
    schema: Any = form.requested_schema
    assert "approved_for_session" in schema["properties"]["decision"]["enum"]


def test_a_no_and_its_comment_reach_the_model(one_host: Host, tmp_path: Path) -> None:
    async def main() -> None:
        deny = decide("denied", [], "keep it")
        async with one_host.client(tmp_path, *FREE, elicit=deny) as client:
            (tmp_path / "x").mkdir()
            result = await client.call_tool("exec_command", {"cmd": "rm -rf x"})
            assert result.is_error
            assert "rejected by user: keep it" in text(result)
            assert (tmp_path / "x").exists()

    played(main())


@pytest.mark.parametrize(("word", "gone"), [("deny", False), ("approve", True)])
def test_without_elicitation_the_setting_decides(
    transport: str, tmp_path: Path, word: str, gone: bool
) -> None:
    async def main() -> None:
        flags = (*FREE, "--without-elicitation", word)
        async with Host(transport, "legacy").client(tmp_path, *flags) as client:
            (tmp_path / "x").mkdir()
            result = await client.call_tool("exec_command", {"cmd": "rm -rf x"})
            assert result.is_error is not gone
            assert (tmp_path / "x").exists() is not gone

    played(main())


def test_progress_is_told_while_a_call_waits(one_host: Host, tmp_path: Path) -> None:
    beats: list[tuple[float, str | None]] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        beats.append((progress, message))

    async def main() -> None:
        async with one_host.client(tmp_path, *FREE) as client:
            started = {"cmd": "sleep 1000", "yield_time_ms": 2500}
            await client.call_tool("exec_command", started, progress_callback=heard)

    played(main())
    assert beats
    assert beats[0][1] == "Still running"


def test_nothing_is_left_when_the_host_goes(one_host: Host, tmp_path: Path) -> None:
    async def main() -> None:
        async with one_host.client(tmp_path, *FREE) as client:
            started = {"cmd": "echo $$ > pid; exec sleep 1000", "yield_time_ms": 250}
            await client.call_tool("exec_command", started)
            pid = tmp_path / "pid"
            await eventually_so(lambda: pid.exists() and pid.read_text().endswith("\n"))

    played(main())
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_calls_run_side_by_side(one_host: Host, tmp_path: Path) -> None:
    async def main() -> None:
        async with one_host.client(tmp_path, *FREE) as client:
            os.mkfifo(tmp_path / "pipe")
            reader, writer = await asyncio.gather(
                client.call_tool("exec_command", {"cmd": "cat pipe"}),
                client.call_tool("exec_command", {"cmd": "echo through > pipe"}),
            )
            assert reader.structured_content["output"] == "through\n"
            assert writer.structured_content["exit_code"] == 0

    played(main())


def test_the_structured_answer_is_no_longer_than_the_text(tmp_path: Path) -> None:
    async def main() -> None:
        async with Host("stdio", "legacy").client(tmp_path, *FREE) as client:
            result = await client.call_tool("exec_command", {"cmd": "seq 200000"})
            assert len(result.structured_content["output"]) < 50_000
            assert "truncated" in text(result)

    played(main())


def test_the_package_itself_imports_none_of_it() -> None:
    source = "import sys, handrail, handrail.agent.shell; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True)
    modules = set(ast.literal_eval(done.stdout.decode()))
    assert not modules & {"mcp", "mcp_types", "starlette", "uvicorn", "pydantic", "anyio"}


def test_a_host_is_a_form_too(tmp_path: Path) -> None:
    """Also one that is asked about after the call of its command was answered."""

    async def main() -> None:
        seen: list[Any] = []
        flags = ("--network", "managed", "--network-allow", "ok.example", "--rules", str(rules))
        host = Host("stdio", "legacy")
        elicit = decide("denied", seen, "use the mirror")
        fetch = "curl -sS -o /dev/null -w '%{http_code}\\n' http://no.example/"
        async with host.client(tmp_path, *flags, elicit=elicit) as client:
            done = await client.call_tool("exec_command", {"cmd": fetch})
            assert text(done).endswith(
                "403\n\n"
                'Network access to "no.example:80" was blocked: not approved: use the mirror.'
            )
            script = f"read line; {fetch}"
            begun = await client.call_tool(
                "exec_command", {"cmd": script, "tty": True, "yield_time_ms": 250}
            )
            number = begun.structured_content["session_id"]
            ended = await client.call_tool(
                "write_stdin", {"session_id": number, "chars": "\n", "yield_time_ms": 30_000}
            )
            assert "not approved: use the mirror" in text(ended)
        assert len(seen) == 2
        assert "Let a command connect to no.example, port 80?" in seen[0].message
        assert "curl" in seen[0].message

    rules = tmp_path / "rules"
    rules.mkdir()
    asyncio.run(main())


def test_one_command_reaches_what_another_listens_on(tmp_path: Path) -> None:
    """All commands of a server have one loopback, in sandboxes that nothing else leads out of."""

    async def main() -> None:
        async with Host("stdio", "legacy").client(tmp_path, "--approval", "never") as client:
            serve = {"cmd": shlex.join(echo("127.0.0.1", 8123)), "yield_time_ms": 250}
            started = await client.call_tool("exec_command", serve)
            session, said = started.structured_content["session_id"], text(started)
            while "ready" not in said:
                more = {"session_id": session, "chars": "", "yield_time_ms": 5000}
                said += text(await client.call_tool("write_stdin", more))
            asked = {"cmd": shlex.join(ask("127.0.0.1", 8123)), "yield_time_ms": 30_000}
            assert "hello there" in text(await client.call_tool("exec_command", asked))
            await client.call_tool("kill", {"session_id": session})

    played(main())
