"""The approvers to choose from."""

from __future__ import annotations

import asyncio
import os
import select
from dataclasses import replace
from typing import Any

import pytest

from handrail.errors import UsageError
from handrail.orchestrator.approvals import (
    Answer,
    Choice,
    Kind,
    Question,
    command_choices,
    retry_choices,
)
from handrail.orchestrator.approvers import (
    AllowListApprover,
    CallbackApprover,
    DenyAllApprover,
    QueueApprover,
    TerminalApprover,
    as_approver,
    prompt,
    read_answer,
)
from handrail.orchestrator.settings import Grants

QUESTION = Question(
    "c",
    Kind.COMMAND,
    ("make", "all\x1b[2J"),
    "/w",
    command_choices(with_rule=True),
    reason="why",
    proposed_prefix=("make",),
)


def test_fixed() -> None:
    answer = asyncio.run(DenyAllApprover("no").ask(QUESTION))
    assert answer == Answer(Choice.DENY, "no")


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (True, Choice.APPROVE),
        (False, Choice.DENY),
        (Choice.ABORT, Choice.ABORT),
        (Answer(Choice.APPROVE_FOR_SESSION), Choice.APPROVE_FOR_SESSION),
    ],
)
def test_a_callback_plain_or_async(given: Answer | Choice | bool, choice: Choice) -> None:
    async def later(question: Question) -> Answer | Choice | bool:
        return given

    assert asyncio.run(CallbackApprover(lambda q: given).ask(QUESTION)).choice is choice
    assert asyncio.run(CallbackApprover(later).ask(QUESTION)).choice is choice


def test_a_callback_that_answers_nonsense_is_an_error() -> None:
    with pytest.raises(UsageError, match="answered with str; give True"):
        asyncio.run(CallbackApprover(lambda q: "yes").ask(QUESTION))  # type: ignore[arg-type,return-value]


class Asks:
    async def ask(self, question: Question) -> Answer:
        return Answer(Choice.ABORT)


class AsksAtOnce:
    def ask(self, question: Question) -> bool:
        return True


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (lambda question: True, Choice.APPROVE),
        (Asks(), Choice.ABORT),
        (AsksAtOnce(), Choice.APPROVE),
        (Asks().ask, Choice.ABORT),
    ],
)
def test_a_function_and_an_object_are_approvers(given: object, choice: Choice) -> None:
    approver = as_approver(given)
    assert approver is not None
    assert asyncio.run(approver.ask(QUESTION)).choice is choice


@pytest.mark.parametrize(
    "given", [True, "yes", Choice.APPROVE, Asks, object(), lambda: True, lambda a, b: True]
)
def test_anything_else_is_refused_at_once(given: object) -> None:
    with pytest.raises(UsageError, match="question"):
        as_approver(given)
    assert as_approver(None) is None


def listed(approver: AllowListApprover, *argv: str, **more: Any) -> bool:
    question = replace(QUESTION, argv=argv, **more)
    return asyncio.run(approver.ask(question)).choice is Choice.APPROVE


def test_a_list_allows_commands_word_by_word() -> None:
    approver = AllowListApprover(["npm install", ("make", "all")])
    assert listed(approver, "npm", "install", "x")
    assert listed(approver, "/bin/bash", "-lc", "npm install x && make all")
    for script in ("npm run x", "make all; ls", "make all $X", "make all > f", "./make all", "npm"):
        assert not listed(approver, "/bin/bash", "-lc", script), script
    make = ("make", "all")
    assert not listed(approver, *make, outside=True)
    assert not listed(approver, *make, wants=Grants(network=True))
    assert not listed(approver, *make, kind=Kind.PATCH)
    assert listed(AllowListApprover(["make all"], outside=True), *make, outside=True)
    assert listed(AllowListApprover(["make all"], otherwise=lambda q: True), "ls")


@pytest.mark.parametrize("prefixes", ["make", [""], ["bash"], ["'"], [[1]], ["git"]])
def test_a_list_that_cannot_be_meant_is_refused(prefixes: Any) -> None:
    with pytest.raises(UsageError):
        AllowListApprover(prefixes)


def test_a_queue_is_worked_through_by_somebody_else() -> None:
    async def main() -> list[Choice]:
        approver = QueueApprover()
        asked = [asyncio.create_task(approver.ask(QUESTION)) for _ in range(3)]
        given_up = asyncio.create_task(approver.ask(QUESTION))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        answers = iter((Choice.APPROVE, Choice.DENY, Choice.ABORT))
        for _ in range(3):
            pending = await approver.next()
            pending.answer(next(answers))
            pending.answer(Choice.APPROVE)  # too late
        return [answer.choice for answer in await asyncio.gather(*asked)]

    assert asyncio.run(main()) == [Choice.APPROVE, Choice.DENY, Choice.ABORT]


def test_a_terminal_asks_one_after_the_other() -> None:
    master, slave = os.openpty()
    out_read, out_write = os.pipe()
    try:

        async def main() -> tuple[list[Answer], str]:
            approver = TerminalApprover(slave, out_write)
            asked = [asyncio.create_task(approver.ask(QUESTION)) for _ in range(2)]
            said = await asyncio.to_thread(os.read, out_read, 65536)
            os.write(master, b"what\nn not this way\n")
            first = await asked[0]
            said += await asyncio.to_thread(os.read, out_read, 65536)
            while said.count(b"make") < 2 * prompt(QUESTION).count("make"):
                said += await asyncio.to_thread(os.read, out_read, 65536)
            os.write(master, b"y\n")
            return [first, await asked[1]], said.decode()

        answers, said = asyncio.run(main())
    finally:
        for fd in (master, slave, out_read, out_write):
            os.close(fd)
    assert answers == [Answer(Choice.DENY, "not this way"), Answer(Choice.APPROVE)]
    assert "\x1b" not in said
    assert "start with `make`" in said


def test_what_was_typed_before_a_question_is_no_answer() -> None:
    master, slave = os.openpty()
    out_read, out_write = os.pipe()
    try:

        async def main() -> Answer:
            os.write(master, b"y\n")
            await asyncio.to_thread(select.select, [slave], [], [])
            approver = TerminalApprover(slave, out_write)
            asked = asyncio.create_task(approver.ask(QUESTION))
            await asyncio.to_thread(os.read, out_read, 65536)
            os.write(master, b"n late\n")
            return await asked

        assert asyncio.run(main()) == Answer(Choice.DENY, "late")
    finally:
        for fd in (master, slave, out_read, out_write):
            os.close(fd)


def test_lines_read_behind_an_answer_do_not_answer_the_next_question() -> None:
    reader, writer = os.pipe()
    out_read, out_write = os.pipe()
    try:

        async def main() -> list[Answer]:
            approver = TerminalApprover(reader, out_write)
            os.write(writer, b"n first\ny\n")
            first = await approver.ask(QUESTION)
            asked = asyncio.create_task(approver.ask(QUESTION))
            await asyncio.sleep(0)
            os.write(writer, b"n second\n")
            return [first, await asked]

        answers = asyncio.run(main())
        assert answers == [Answer(Choice.DENY, "first"), Answer(Choice.DENY, "second")]
    finally:
        for fd in (reader, writer, out_read, out_write):
            os.close(fd)


def test_a_terminal_that_is_gone_is_no() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    sink, out = os.pipe()
    try:
        answer = asyncio.run(TerminalApprover(reader, out).ask(QUESTION))
    finally:
        for fd in (reader, sink, out):
            os.close(fd)
    assert answer.choice is Choice.DENY


def test_a_waiting_terminal_can_be_cancelled() -> None:
    reader, writer = os.pipe()
    sink, out = os.pipe()
    try:

        async def main() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await TerminalApprover(reader, out).ask(QUESTION)

        asyncio.run(main())
    finally:
        for fd in (reader, writer, sink, out):
            os.close(fd)


def test_a_retry_question_names_the_path_and_the_side_effects() -> None:
    question = Question(
        "c",
        Kind.RETRY,
        ("touch", "/usr/x"),
        "/w",
        retry_choices(free=True, with_grant=True, with_rule=False),
        notes=("what the first run did stays",),
        grant="/usr",
    )
    shown = prompt(question)
    assert shown.index("[g]") < shown.index("[y]")
    assert "/usr\n" in shown
    assert "outside the sandbox" not in shown
    assert "note: what the first run did stays" in shown
    assert read_answer(question, "g") == Answer(Choice.GRANT_AND_RERUN)
    assert read_answer(question, "a") is None
