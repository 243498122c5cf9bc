"""Questions about hosts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from handrail.orchestrator.approvals import Answer, Choice
from handrail.orchestrator.network import Connection, Hosts
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.settings import Mode, SandboxMode, Settings
from handrail.policy.context import Approval
from handrail.policy.load import load_files
from tests.orchestrator.scripted import Scribe


def to(host: str = "Example.org", call_id: str = "c") -> Connection:
    return Connection(call_id, ("curl",), "/w", "https", host, 443)


def hosts(*answers: Answer | Choice, **settings: Any) -> tuple[Hosts, Scribe]:
    scribe = Scribe(*answers)
    return Hosts(Orchestrator(Settings("/w", **settings), scribe)), scribe


def test_once_is_once_and_session_is_session() -> None:
    async def main(choice: Choice) -> tuple[list[bool], int]:
        desk, scribe = hosts(choice)
        return [await desk.allows(to()) for _ in range(2)], len(scribe.questions)

    assert asyncio.run(main(Choice.APPROVE)) == ([True, True], 2)
    assert asyncio.run(main(Choice.APPROVE_FOR_SESSION)) == ([True, True], 1)
    assert asyncio.run(main(Choice.DENY)) == ([False, False], 2)


def test_others_wait_for_the_answer_to_the_same_question() -> None:
    async def main() -> int:
        desk, scribe = hosts(Choice.APPROVE)
        assert all(await asyncio.gather(*(desk.allows(to()) for _ in range(5))))
        return len(scribe.questions)

    assert asyncio.run(main()) == 1


def test_nobody_is_asked_under_never_or_without_a_sandbox() -> None:
    for settings in (
        {"approval": Approval.NEVER},
        {"sandbox": SandboxMode(Mode.OFF)},
    ):
        desk, scribe = hosts(Choice.APPROVE, **settings)
        assert not asyncio.run(desk.allows(to()))
        assert scribe.questions == []


def test_a_rule_is_written_either_way(tmp_path: Path) -> None:
    file = tmp_path / "default.rules"

    async def main() -> list[bool]:
        desk, _ = hosts(
            Answer(Choice.HOST_RULE),
            Answer(Choice.HOST_RULE, allow=False),
            Choice.APPROVE,
            rules_file=str(file),
        )
        first = [await desk.allows(to("a.org")), await desk.allows(to("b.org"))]
        return [*first, await desk.allows(to("a.org")), await desk.allows(to("b.org"))]

    assert asyncio.run(main()) == [True, False, True, False]
    assert load_files([str(file)]).network_lists() == (
        frozenset({"a.org"}),
        frozenset({"b.org"}),
    )


def test_the_refusal_names_the_place() -> None:
    text = to("example.org").refusal
    assert text == 'Network access to "https://example.org:443" was blocked by policy.'
