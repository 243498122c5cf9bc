"""Questions about hosts: for the call, for the session, for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from handrail.network.managed.start import NetworkQuestion
from handrail.network.settings import Managed
from handrail.orchestrator.approvals import Answer, Choice, Question, Reviewers
from handrail.orchestrator.audit import Event, RuleAdded
from handrail.orchestrator.network_call import MOST_HOSTS, CallFacts, NetworkApprovals
from handrail.policy.load import load_files
from handrail.policy.rules import Decision, NetworkRule
from tests.support.eventually import eventually_so

FACTS = CallFacts("c", ("npm", "install"), "/w")


def asked(host: str, port: int = 443, **more: Any) -> NetworkQuestion:
    return NetworkQuestion(1, "https_connect", host, port, **more)


class Session:
    """Approvals with answers that a test gives, and what happened."""

    def __init__(self, *answers: Answer | Choice, rules_file: Path | None = None) -> None:
        self.questions: list[Question] = []
        self.events: list[Event] = []
        self.rules: list[NetworkRule] = []
        self._answers = list(answers)
        self.approvals = NetworkApprovals(
            Reviewers(self),
            timeout=20.0,
            rules_file=None if rules_file is None else str(rules_file),
            listener=self.events.append,
            rule_added=self.rules.append,
        )

    async def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        answer = self._answers.pop(0)
        return Answer(answer) if isinstance(answer, Choice) else answer

    def call(self, facts: CallFacts = FACTS, **more: Any) -> Any:
        return self.approvals.call(facts, Managed(), **more)


async def test_once_is_for_the_call() -> None:
    session = Session(Choice.APPROVE, Choice.DENY, Choice.APPROVE)
    call = session.call()
    ask = call.request().ask
    answers = [await ask(asked("a.example")) for _ in range(40)]
    assert all(answer.allow and answer.lasts == "process" for answer in answers)
    assert not (await ask(asked("a.example", 8443))).allow
    assert not (await ask(asked("a.example", 8443))).allow
    assert len(session.questions) == 2
    assert call.request().approved == (("a.example", 443),)
    assert call.request().denied == (("a.example", 8443),)
    assert session.call().request().approved == ()
    assert (await session.call().request().ask(asked("a.example"))).allow
    assert len(session.questions) == 3


async def test_a_question_says_everything() -> None:
    session = Session(Choice.DENY)
    await session.call().request().ask(asked("a.example", method="GET", pid=7, comm="node"))
    (question,) = session.questions
    assert question.host == ("https_connect", "a.example", 443)
    assert (question.method, question.program, question.pid) == ("GET", "node", 7)
    assert (question.argv, question.cwd) == (FACTS.argv, FACTS.cwd)
    assert question.reason == "Network access to a.example requires approval"
    assert Choice.HOST_RULE not in question.choices  # there is no file for it


async def test_answers_for_the_session() -> None:
    session = Session(Choice.APPROVE_FOR_SESSION, Choice.DENY_FOR_SESSION)
    ask = session.call().request().ask
    assert (await ask(asked("yes.example"))).allow
    assert not (await ask(asked("no.example"))).allow
    later = session.call().request()
    assert later.approved == (("yes.example", 443),)
    assert later.denied == (("no.example", 443),)
    denial = {"kind": "network", "source": "proxy", "port": 443, "reason": "not_allowed"}
    (note,) = session.call().notes([{**denial, "host": "no.example"}])
    assert note == 'Network access to "no.example" was blocked: not approved.'
    assert "not on the allowlist" in session.call().notes([{**denial, "host": "x"}])[0]
    elsewhere = session.call(CallFacts("d", ("x",), "/w", environment_id="other")).request()
    assert elsewhere.approved == elsewhere.denied == ()


async def test_always_writes_the_rule_that_was_shown(tmp_path: Path) -> None:
    file = tmp_path / "my.rules"
    session = Session(Choice.HOST_RULE, Choice.HOST_DENY_RULE, rules_file=file)
    call = session.call()
    ask = call.request().ask
    assert (await ask(asked("yes.example"))).allow
    assert not (await ask(asked("never.example", 80))).allow
    shown = [question.host_rules for question in session.questions]
    assert shown[0] is not None
    assert shown[1] is not None
    assert file.read_text().splitlines() == [shown[0][0], shown[1][1]]
    saved = load_files([str(file)]).network
    assert [(rule.host, rule.port, rule.decision) for rule in saved] == [
        ("yes.example", 443, Decision.ALLOW),
        ("never.example", 80, Decision.FORBIDDEN),
    ]
    assert [rule.port for rule in session.rules] == [443, 80]
    assert sum(isinstance(event, RuleAdded) for event in session.events) == 2
    assert call.notes([]) == (
        "Allowed network rule saved in execpolicy (allowlist): yes.example",
        "Denied network rule saved in execpolicy (denylist): never.example",
    )
    assert session.call().request().denied == (("never.example", 80),)


async def test_a_rule_that_was_not_offered_is_none() -> None:
    session = Session(Choice.HOST_RULE, Answer(Choice.HOST_RULE, allow=False))
    ask = session.call().request().ask
    assert not (await ask(asked("a.example"))).allow
    assert not (await ask(asked("b.example"))).allow
    assert session.rules == []


async def test_no_more_than_twenty_hosts() -> None:
    session = Session(*[Choice.APPROVE] * MOST_HOSTS)
    ask = session.call().request().ask
    for number in range(MOST_HOSTS):
        assert (await ask(asked(f"h{number}.example"))).allow
    beyond = await ask(asked("one.example"))
    assert (beyond.allow, beyond.reason) == (False, "too_many")
    assert (await ask(asked("h0.example"))).allow


async def test_one_answer_for_the_session_withdraws_the_other_question() -> None:
    first: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    void = asyncio.Event()
    questions: list[Question] = []

    class Slow(Session):
        async def ask(self, question: Question) -> Answer:
            questions.append(question)
            if question.call_id == "c":
                return await first
            try:
                return await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                void.set()
                raise

    session = Slow()
    one = asyncio.ensure_future(session.call().request().ask(asked("a.example")))
    other = session.call(CallFacts("d", ("curl",), "/w")).request().ask
    two = asyncio.ensure_future(other(asked("a.example")))
    await eventually_so(lambda: len(questions) == 2)  # each call has its own question
    first.set_result(Answer(Choice.APPROVE_FOR_SESSION))
    assert (await one).allow
    assert (await two).allow
    await void.wait()


async def test_nothing_is_asked_where_it_may_not_be() -> None:
    session = Session()
    assert session.call(may_ask=False).request().ask is None
    silent = NetworkApprovals(None, timeout=1.0, listener=session.events.append)
    assert silent.call(FACTS, Managed()).request().ask is None
