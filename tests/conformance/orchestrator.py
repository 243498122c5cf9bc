"""Cases of decisions and of denials: real commands in a real sandbox, every question answered.

Rules are read as the peer means them (an allow rule without ``sandbox=`` leaves the sandbox).
Sentences are ours, so of reasons and refusals the class is compared, not the wording; the words
of the caller and the question for a retry are kept as they are.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from handrail.agent.shell import AgentShell
from handrail.agent.tool_answer import ToolAnswer
from handrail.orchestrator.approvals import Answer, Choice, Kind, Question
from handrail.orchestrator.audit import Event, Outcome, RunEnded
from handrail.orchestrator.settings import SandboxMode, Settings, read_approval, read_mode
from handrail.policy.dangerous import Danger
from handrail.policy.decide import Cause
from handrail.policy.load import parse_rules
from handrail.policy.rules import Sandbox
from handrail.sandbox.denial import likely_denied
from handrail.unified_exec import settings as unified
from tests.conformance.comparison import difference

#: Where the rule says something else than a case, on purpose: id -> why.
DEVIATIONS: dict[str, str] = {}

#: Reasons in our own words of questions that no rule asks.
GROUNDS = {one.value for one in (*Cause, *Danger)}

_SHELL = "/bin/bash"
_ANSWERS = {
    "decline": Choice.DENY,
    "cancel": Choice.ABORT,
    "accept": Choice.APPROVE,
    "acceptForSession": Choice.APPROVE_FOR_SESSION,
}


def denial_heuristic(case: dict[str, Any]) -> str | None:
    found = likely_denied(case["sandbox"], case["exit_code"], case["output"])
    return difference(likely_denied=(case["expect"]["likely_denied"], found))


def orchestrator_decisions(case: dict[str, Any]) -> str | None:
    expected = case["expect"]
    found = decided(case)
    wanted = expected.get("intended_outcome", expected["outcome"])
    pairs: dict[str, tuple[object, object]] = {"outcome": (wanted, found["outcome"])}
    if wanted == expected["outcome"]:
        for name in ("proposed_prefix", "exit_code", "sandbox_blocked_write"):
            if name in expected:
                pairs[name] = (expected[name], found.get(name))
        if "reason" in expected:
            pairs["reason"] = (_class(case, expected["reason"]), _class(case, found.get("reason")))
        if wanted == "rejected":
            pairs["message"] = (True, bool(found.get("message")))
    return difference(**pairs)


def _class(case: dict[str, Any], reason: str | None) -> str | None:
    """A reason that is somebody's words is those words; one of ours is only there or not."""
    own = (None, case["args"].get("justification"), "command failed; retry without sandbox?")
    return reason if reason in own else "a rule"


def decided(case: dict[str, Any]) -> dict[str, Any]:
    """What became of the call of a case."""
    with tempfile.TemporaryDirectory() as name:
        return asyncio.run(_decided(case, Path(os.path.realpath(name))))


async def _decided(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    asked: list[Question] = []
    ends: list[RunEnded] = []

    class Somebody:
        async def ask(self, question: Question) -> Answer:
            asked.append(question)
            return Answer(_ANSWERS[case.get("user_answer", "decline")])

    def heard(event: Event) -> None:
        if isinstance(event, RunEnded):
            ends.append(event)

    approval, granular = read_approval(case["approval_policy"])
    settings = Settings(
        str(folder),
        approval,
        granular,
        SandboxMode(read_mode(case["sandbox_mode"])),
        parse_rules(case["rules"], "case.rules"),
        shell=_SHELL,
        unset_sandbox=Sandbox.OFF,
    )
    shell = AgentShell(
        str(folder),
        approver=Somebody(),
        policy=settings,
        on_audit=heard,
        exec_settings=unified.Settings(str(folder), shell=_SHELL, allow_login=False),
    )
    async with shell:
        given = {"yield_time_ms": 30_000, **case["args"]}
        answer = await shell.call("exec_command", given)
    if asked:
        first = asked[0]
        return {
            "outcome": "prompt_retry" if first.kind is Kind.RETRY else "prompt",
            # The peer has no reason of its own where no rule asks, and shows the caller's words;
            # here they have a field of their own.
            "reason": first.justification if first.reason in GROUNDS else first.reason,
            "proposed_prefix": list(first.proposed_prefix) if first.proposed_prefix else None,
        }
    return _ran(answer, ends)


def _ran(answer: ToolAnswer, ends: list[RunEnded]) -> dict[str, Any]:
    if answer.answer is None:
        return {"outcome": "rejected", "message": answer.text}
    return {
        "outcome": "ran",
        "exit_code": answer.answer.exit_code,
        "sandbox_blocked_write": any(end.outcome is Outcome.DENIED for end in ends),
    }
