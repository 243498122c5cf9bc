"""The order of things, with real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from handrail.errors import ApprovalRejected, Forbidden
from handrail.orchestrator.approval_cache import ApprovalCache
from handrail.orchestrator.approvals import Answer, Choice, Kind, Question
from handrail.orchestrator.audit import (
    Notice,
    Outcome,
    RuleAdded,
    RunEnded,
    ToolDecision,
)
from handrail.orchestrator.call import Call, Request
from handrail.orchestrator.call_flow import (
    RETRY_NOTICE,
    RETRY_REASON,
    SIDE_EFFECTS,
    RetryRejected,
    TurnAborted,
)
from handrail.orchestrator.one_shot import Command, run_command
from handrail.orchestrator.result import ExecOutput
from handrail.orchestrator.settings import Grants, Mode, SandboxMode, Settings, Table
from handrail.policy.context import Approval, Granular
from handrail.policy.load import load_files, parse_rules
from handrail.policy.rules import Sandbox
from tests.orchestrator.scripted import PATH, Room, played, sh

GUARDED = "true guarded && echo done"


def workspace(approval: Approval, granular: Granular | None = None, **more: object) -> Settings:
    return Settings("/w", approval, granular, SandboxMode(), **more)  # type: ignore[arg-type]


def run(room: Room, *calls: Call) -> list[ExecOutput]:
    async def main() -> list[ExecOutput]:
        return [
            await run_command(room.orchestrator, room.executor, Command(call, PATH))
            for call in calls
        ]

    outputs: list[ExecOutput] = played(room, main)
    return outputs


def test_what_needs_nothing_runs_in_the_sandbox_and_is_recorded() -> None:
    room = Room(workspace(Approval.ON_REQUEST))
    (output,) = run(room, sh("echo hello"))
    assert (output.exit_code, output.stdout) == (0, b"hello\n")
    assert room.scribe.questions == []
    assert room.executor.requests[0].sandbox is not None
    decision, ended = room.trail.of("c1")
    assert isinstance(decision, ToolDecision)
    assert (decision.choice.value, decision.source.value) == ("approved", "config")
    assert isinstance(ended, RunEnded)
    assert ended.outcome is Outcome.COMPLETED
    assert len(ended.durations) == 1


def test_off_runs_without_a_sandbox() -> None:
    room = Room(Settings("/w", Approval.NEVER, sandbox=SandboxMode(Mode.OFF)))
    run(room, sh("true"))
    assert room.executor.requests[0].sandbox is None


def test_a_forbidden_command_never_starts() -> None:
    room = Room(workspace(Approval.NEVER))
    with pytest.raises(Forbidden):
        run(room, sh("rm -rf ./x"))
    assert room.executor.requests == []
    assert [event.outcome for event in room.trail.events if isinstance(event, RunEnded)] == [
        Outcome.DECLINED
    ]


def test_a_denied_command_tells_the_model_why() -> None:
    room = Room(workspace(Approval.UNTRUSTED), Answer(Choice.DENY, "use make instead"))
    with pytest.raises(ApprovalRejected, match="exec command rejected by user: use make instead"):
        run(room, sh("true"))
    assert room.executor.requests == []


def test_abort_is_more_than_no() -> None:
    room = Room(workspace(Approval.UNTRUSTED), Choice.ABORT)
    with pytest.raises(TurnAborted):
        run(room, sh("true"))


def test_the_models_own_reason_is_shown_for_an_escalation() -> None:
    room = Room(workspace(Approval.ON_REQUEST), Choice.APPROVE)
    call = sh("true", request=Request.REQUIRE_ESCALATED, justification="may I?")
    run(room, call)
    (question,) = room.scribe.questions
    assert question.justification == "may I?"
    assert question.reason == "it wants to leave the sandbox"
    assert (question.outside, question.wants) == (True, Grants())
    assert question.proposed_prefix == ("true",)
    assert room.executor.requests[0].sandbox is None


def test_each_of_both_runs_under_untrusted_is_approved_for_itself() -> None:
    room = Room(workspace(Approval.UNTRUSTED), Choice.APPROVE)
    (output,) = run(room, sh(GUARDED))
    assert output.stdout == b"done\n"
    first, second = room.scribe.questions
    assert (first.kind, first.outside) == (Kind.COMMAND, False)
    assert (second.kind, second.outside) == (Kind.RETRY, True)
    assert [r.sandbox is None for r in room.executor.requests] == [False, True]
    notices = [event.text for event in room.trail.events if isinstance(event, Notice)]
    assert notices[0].startswith("Execution failed: touch: cannot touch")
    assert notices[1] == RETRY_NOTICE
    ended = room.trail.events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.outcome is Outcome.ESCALATED
    assert len(ended.durations) == 2


@pytest.mark.parametrize("granular", [None, Granular()])
def test_a_denial_is_put_to_somebody_with_the_narrow_way_first(granular: Granular | None) -> None:
    approval = Approval.ON_REQUEST if granular else Approval.ON_FAILURE
    room = Room(workspace(approval, granular), Choice.GRANT_AND_RERUN)
    (output,) = run(room, sh(GUARDED))
    assert output.stdout == b"done\n"
    (question,) = room.scribe.questions
    assert question.kind is Kind.RETRY
    assert question.reason == RETRY_REASON
    assert question.notes == (SIDE_EFFECTS,)
    assert question.grant == "/usr"  # the file does not exist: its folder is what can be opened
    assert question.choices[:2] == (Choice.GRANT_AND_RERUN, Choice.APPROVE)
    assert question.proposed_prefix == ("true", "guarded")
    first, second = room.executor.requests
    assert "b'/usr'" not in str(first.sandbox)
    assert "b'/usr'" in str(second.sandbox)


def test_on_request_hands_the_denial_back() -> None:
    room = Room(workspace(Approval.ON_REQUEST))
    (output,) = run(room, sh(GUARDED))
    assert output.exit_code == 1
    assert b"Read-only" in output.stderr
    assert room.scribe.questions == []
    ended = room.trail.events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.outcome is Outcome.DENIED


def test_a_declined_retry_is_a_rejection() -> None:
    room = Room(workspace(Approval.ON_FAILURE), Choice.DENY)
    with pytest.raises(RetryRejected, match="exec command rejected by user"):
        run(room, sh(GUARDED))
    assert len(room.executor.requests) == 1


def test_a_retry_for_the_session_is_not_asked_again() -> None:
    room = Room(workspace(Approval.ON_FAILURE), Choice.APPROVE_FOR_SESSION)
    run(room, sh(GUARDED), sh(GUARDED, "c2"))
    assert len(room.scribe.questions) == 1
    assert len(room.executor.requests) == 4


def test_only_one_retry() -> None:
    room = Room(workspace(Approval.ON_FAILURE), Choice.GRANT_AND_RERUN)
    room.executor.opens = "nothing opens it"
    (output,) = run(room, sh(GUARDED))
    assert len(room.executor.requests) == 2
    assert output.exit_code == 1
    assert len(room.scribe.questions) == 1


def test_an_answer_that_was_not_on_offer_is_no_yes() -> None:
    room = Room(workspace(Approval.UNTRUSTED), Choice.GRANT_AND_RERUN)
    with pytest.raises(ApprovalRejected, match="not on offer"):
        run(room, sh("true"))


def test_for_the_session_means_the_same_command_in_the_same_place() -> None:
    room = Room(workspace(Approval.UNTRUSTED), Choice.APPROVE_FOR_SESSION)
    same = Call("c2", ("/bin/bash", "-lc", "echo a"), "/")
    run(room, sh("echo a"), same, sh("echo a", "c3", cwd="/tmp"), sh("echo b", "c4"))
    assert len(room.scribe.questions) == 3
    sources = [e.source.value for e in room.trail.of("c2") if isinstance(e, ToolDecision)]
    assert sources == ["config"]


def test_equal_calls_at_once_are_asked_once_if_it_is_for_the_session() -> None:
    room = Room(workspace(Approval.UNTRUSTED), Choice.APPROVE_FOR_SESSION)

    async def main() -> None:
        calls = [sh("echo a", f"c{n}") for n in range(5)]
        commands = [Command(call, PATH) for call in calls]
        await asyncio.gather(
            *(run_command(room.orchestrator, room.executor, command) for command in commands)
        )

    played(room, main)
    assert len(room.scribe.questions) == 1
    assert len(room.executor.requests) == 5


def test_different_calls_are_asked_side_by_side() -> None:
    both = asyncio.Event()
    asked: list[str] = []

    class Together:
        async def ask(self, question: Question) -> Answer:
            asked.append(question.call_id)
            if len(asked) == 2:
                both.set()
            await both.wait()
            return Answer(Choice.APPROVE)

    room = Room(workspace(Approval.UNTRUSTED))
    room.orchestrator.reviewers = type(room.orchestrator.reviewers)(Together())

    async def main() -> None:
        commands = [Command(sh(f"echo {n}", f"c{n}"), PATH) for n in range(2)]
        await asyncio.gather(
            *(run_command(room.orchestrator, room.executor, command) for command in commands)
        )

    played(room, main)
    assert sorted(asked) == ["c0", "c1"]


def test_a_rule_is_written_and_in_force_at_once(tmp_path: Path) -> None:
    file = tmp_path / "rules" / "default.rules"
    room = Room(
        workspace(Approval.UNTRUSTED, rules_file=str(file)), Choice.APPROVE_WITH_RULE, Choice.DENY
    )
    run(room, sh("echo a"), sh("echo a b", "c2"))
    assert file.read_text() == 'prefix_rule(pattern=["echo", "a"], decision="allow")\n'
    assert [e for e in room.trail.events if isinstance(e, RuleAdded)]
    assert len(room.scribe.questions) == 1
    # Allowed is not unsandboxed: the rule keeps the sandbox unless it says otherwise.
    assert room.executor.requests[1].sandbox is not None
    assert load_files([str(file)]).rules[0].first == "echo"


def test_a_rule_from_a_retry_takes_the_command_out_of_the_sandbox(tmp_path: Path) -> None:
    file = tmp_path / "default.rules"
    room = Room(
        workspace(Approval.ON_FAILURE, rules_file=str(file)), Choice.APPROVE_WITH_RULE, Choice.DENY
    )
    run(room, sh("true guarded"), sh("true guarded", "c2"))
    assert 'sandbox="off"' in file.read_text()
    assert [r.sandbox is None for r in room.executor.requests] == [False, True, True]


def test_a_session_yes_to_the_sandboxed_run_is_none_to_the_one_outside() -> None:
    cache = ApprovalCache()
    answers = (Choice.APPROVE_FOR_SESSION, Choice.DENY)
    for expected in ([False, True], [True]):
        room = Room(workspace(Approval.UNTRUSTED), *answers[-len(expected) :], approval_cache=cache)
        with pytest.raises(RetryRejected):
            run(room, sh(GUARDED))
        assert [question.outside for question in room.scribe.questions] == expected
        assert all(r.sandbox is not None for r in room.executor.requests)


def test_a_session_yes_to_both_runs_is_kept_for_both() -> None:
    room = Room(workspace(Approval.UNTRUSTED), Choice.APPROVE_FOR_SESSION)
    run(room, sh(GUARDED), sh(GUARDED, "c2"))
    assert [question.outside for question in room.scribe.questions] == [False, True]
    assert len(room.executor.requests) == 4


def test_more_than_was_approved_for_the_session_is_asked_again() -> None:
    def wanting(call_id: str, wants: Grants) -> Call:
        return sh("true", call_id, request=Request.WITH_ADDITIONAL, wants=wants)

    both = Grants(write=("/a",), network=True)
    room = Room(workspace(Approval.ON_REQUEST), Choice.APPROVE_FOR_SESSION)
    run(
        room,
        wanting("c1", both),
        wanting("c2", Grants(network=True)),
        wanting("c3", both),
        wanting("c4", Grants(write=("/b",))),
        sh("true", "c5", request=Request.REQUIRE_ESCALATED),
    )
    asked = [(question.outside, question.wants) for question in room.scribe.questions]
    assert asked == [(False, both), (False, Grants(write=("/b",))), (True, Grants())]


def test_a_rule_from_a_sandboxed_run_keeps_the_sandbox_where_rules_leave_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "default.rules"
    like_the_peer = workspace(Approval.UNTRUSTED, rules_file=str(file), unset_sandbox=Sandbox.OFF)
    room = Room(like_the_peer, Choice.APPROVE_WITH_RULE)
    run(room, sh("true a"), sh("true a", "c2"))
    assert 'sandbox="keep"' in file.read_text()
    assert all(r.sandbox is not None for r in room.executor.requests)


def test_a_rule_from_a_session_without_a_sandbox_leaves_none_later(tmp_path: Path) -> None:
    file = tmp_path / "default.rules"
    free = SandboxMode(Mode.OFF)
    settings = Settings("/", Approval.UNTRUSTED, sandbox=free, rules_file=str(file))
    room = Room(settings, Choice.APPROVE_WITH_RULE)
    run(room, sh("true a"))
    assert room.scribe.questions[0].outside
    assert file.read_text() == 'prefix_rule(pattern=["true", "a"], decision="allow")\n'


def test_a_rule_that_is_not_believed_asks_after_a_refusal(tmp_path: Path) -> None:
    rules = parse_rules('prefix_rule([["true", "cd", "git"]], sandbox="off")', "a.rules")
    settings = Settings(str(tmp_path), Approval.ON_REQUEST, policy=rules)
    room = Room(settings, Choice.DENY)
    with pytest.raises(RetryRejected):
        run(room, sh("true guarded && git log guarded", cwd=str(tmp_path)))
    (question,) = room.scribe.questions
    assert (question.kind, question.outside) == (Kind.RETRY, True)
    assert any("`git` runs what it finds" in note for note in question.notes)
    believed = Room(settings, Choice.DENY)
    run(believed, sh("true guarded", cwd=str(tmp_path)))
    assert believed.executor.requests[0].sandbox is None


def test_a_rule_that_would_allow_anything_is_not_added(tmp_path: Path) -> None:
    file = tmp_path / "default.rules"
    answer = Answer(Choice.APPROVE_WITH_RULE, prefix=("bash", "-c"))
    room = Room(workspace(Approval.UNTRUSTED, rules_file=str(file)), answer)
    run(room, sh("true"))
    assert not file.exists()
    assert [e for e in room.trail.events if isinstance(e, Notice)]


def test_a_rule_that_cannot_be_written_holds_for_the_session(tmp_path: Path) -> None:
    (tmp_path / "default.rules").mkdir()
    file = str(tmp_path / "default.rules")
    room = Room(workspace(Approval.UNTRUSTED, rules_file=file), Choice.APPROVE_WITH_RULE)
    run(room, sh("echo a"), sh("echo a", "c2"))
    assert len(room.scribe.questions) == 1
    notices = [e.text for e in room.trail.events if isinstance(e, Notice)]
    assert "until the end of the session" in notices[0]


def test_a_run_keeps_the_settings_it_started_with() -> None:
    room = Room(workspace(Approval.UNTRUSTED))

    class Meddler:
        async def ask(self, question: Question) -> Answer:
            room.orchestrator.update_environment(cwd="/elsewhere")
            return Answer(Choice.APPROVE)

    room.orchestrator.reviewers = type(room.orchestrator.reviewers)(Meddler())
    run(room, sh("echo a"), sh("echo b", "c2"))
    first, second = room.executor.requests
    assert "b'/w'" in str(first.sandbox)
    assert "b'/elsewhere'" in str(second.sandbox)


def test_hidden_files_allow_only_the_narrow_retry() -> None:
    mode = SandboxMode(deny_read=("/w/.env",))
    room = Room(Settings("/w", Approval.ON_FAILURE, sandbox=mode), Choice.GRANT_AND_RERUN)
    (output,) = run(room, sh(GUARDED))
    (question,) = room.scribe.questions
    assert question.choices == (Choice.GRANT_AND_RERUN, Choice.DENY, Choice.ABORT)
    assert output.exit_code == 0
    assert all(r.sandbox is not None for r in room.executor.requests)


def test_the_seed_table_runs_what_was_approved_outside() -> None:
    room = Room(workspace(Approval.UNTRUSTED, table=Table.SEED), Choice.APPROVE_FOR_SESSION)
    run(room, sh("touch /dev/null"), sh("touch /dev/null", "c2", cwd="/tmp"))
    assert len(room.scribe.questions) == 1  # the words alone are the key
    assert all(r.sandbox is None for r in room.executor.requests)
