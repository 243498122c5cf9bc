"""What a program gives to ``AgentShell`` and gets from it: approvers, tools, profiles, rules."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from handrail import AgentShell, Profile, Question, UsageError, Workspace
from handrail.agent.schemas import agent_tools
from handrail.orchestrator.audit import Event, Notice
from handrail.orchestrator.settings import Settings
from handrail.policy import layers
from handrail.policy.language import RulesFileError
from handrail.unified_exec.tools import exec_command_args, write_stdin_args

FORBID = 'prefix_rule(["zap"], "forbidden", justification="not here")\n'


# --- approvers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, "yes", lambda: True, AgentShell])
def test_what_is_no_approver_is_refused_at_construction(ws: Path, given: Any) -> None:
    with pytest.raises(UsageError, match="question"):
        AgentShell(ws, approver=given)


async def test_a_function_is_an_approver_and_reads_the_reason(ws: Path) -> None:
    asked: list[Question] = []

    def decide(question: Question) -> bool:
        asked.append(question)
        return "yes" in question.argv[-1]

    async with AgentShell(ws, approver=decide) as shell:
        assert (await shell.call("exec_command", {"cmd": "rm -rf yes"})).ok
        refused = await shell.call("exec_command", {"cmd": "rm -rf no"})
    assert not refused.ok
    assert "rejected by user" in str(refused)
    assert {question.reason for question in asked} == {
        "it removes files by force, without asking (rm -f)"
    }


@pytest.mark.parametrize(
    ("policy", "given", "reason"),
    [
        ("untrusted", {"cmd": "ls"}, "no rule allows it"),
        (
            "on-request",
            {"cmd": "ls", "sandbox_permissions": "require_escalated", "justification": "j"},
            "it wants to leave the sandbox",
        ),
    ],
)
async def test_every_question_has_a_reason(
    ws: Path, policy: str, given: dict[str, str], reason: str
) -> None:
    asked: list[str | None] = []

    async def decide(question: Question) -> bool:
        asked.append(question.reason)
        return False

    async with AgentShell(ws, approver=decide, policy=policy) as shell:
        assert not (await shell.call("exec_command", given)).ok
    assert asked == [reason]


async def test_the_reason_for_a_patch(ws: Path) -> None:
    asked: list[str | None] = []

    def decide(question: Question) -> bool:
        asked.append(question.reason)
        return False

    patch = "*** Begin Patch\n*** Add File: {}\n+hi\n*** End Patch\n"
    async with AgentShell(ws, approver=decide) as shell:
        assert not (await shell.call("apply_patch", {"patch": patch.format("/usr/x")})).ok
    async with AgentShell(ws, approver=decide, policy="untrusted") as shell:
        assert not (await shell.call("apply_patch", {"patch": patch.format("x")})).ok
    assert [reason is not None and len(reason) > 20 for reason in asked] == [True, True]


# --- tools and calls ----------------------------------------------------------------------------


def test_tools_have_the_form_of_each_api() -> None:
    names = ["exec_command", "write_stdin", "read_output", "apply_patch"]
    responses: list[dict[str, Any]] = agent_tools("openai")
    chat: list[dict[str, Any]] = agent_tools("openai-chat")
    anthropic: list[dict[str, Any]] = agent_tools("anthropic")
    mcp: list[dict[str, Any]] = agent_tools("mcp")
    assert [tool["name"] for tool in responses] == names
    assert [tool["type"] for tool in responses] == ["function"] * 4
    for one, other, third, fourth in zip(responses, chat, anthropic, mcp, strict=True):
        schema = one["parameters"]
        assert other == {
            "type": "function",
            "function": {key: value for key, value in one.items() if key != "type"},
        }
        told = {"name": one["name"], "description": one["description"]}
        assert third == {**told, "input_schema": schema}
        assert fourth == {**told, "inputSchema": schema}
        json.dumps([one, other, third, fourth])
    with pytest.raises(UsageError, match="openai-chat"):
        agent_tools("gemini")


async def test_the_defaults_of_the_schema_are_accepted(ws: Path) -> None:
    async with AgentShell(ws, login=True) as shell:
        fields: dict[str, Any] = shell.tools("mcp")[0]["inputSchema"]  # type: ignore[assignment]
        assert "default true" in fields["properties"]["login"]["description"]
        assert (await shell.call("exec_command", {"cmd": "true", "login": True})).ok
    async with AgentShell(ws) as shell:
        fields = shell.tools("mcp")[0]["inputSchema"]  # type: ignore[assignment]
        assert "login" not in fields["properties"]
        given = {"cmd": "true", "tty": False, "login": False, "sandbox_permissions": "use_default"}
        assert (await shell.call("exec_command", given)).ok
        assert "additional_permissions" not in fields["properties"]
    policy = Settings(str(ws), additional_permissions=True)
    fields = AgentShell(ws, policy=policy).tools("mcp")[0]["inputSchema"]  # type: ignore[assignment]
    assert "additional_permissions" in fields["properties"]
    for name, read in (("exec_command", exec_command_args), ("write_stdin", write_stdin_args)):
        tool: Any = next(tool for tool in agent_tools() if tool["name"] == name)
        for field, said in tool["parameters"]["properties"].items():
            number = said["description"].rpartition("(default ")[2].partition(")")[0]
            if number.isdecimal():
                read({"cmd": "x", "session_id": 1, field: int(number)})


async def test_a_programs_own_mistakes_are_told_and_a_models_ignored(ws: Path) -> None:
    async with AgentShell(ws, sandbox="off") as opened:
        shell: Any = opened
        with pytest.raises(UsageError, match="no option 'workdr'; did you mean 'workdir'"):
            await shell.exec_command("true", workdr=".")
        with pytest.raises(UsageError, match="did you mean 'workdir'"):
            await shell.run("true", workdr=".")
        with pytest.raises(UsageError, match="did you mean 'keys'"):
            await shell.write_stdin(1, kyes=["enter"])
        with pytest.raises(UsageError, match="timeout must be seconds"):
            await shell.run("true", timeout="5")
        with pytest.raises(UsageError, match="on_output is a function"):
            await shell.run("true", on_output=5)
        with pytest.raises(UsageError, match="input is str or bytes"):
            await shell.run("cat", stdin=5)
        assert (await shell.call("exec_command", {"cmd": "true", "workdr": "."})).ok


async def test_arguments_may_be_json_text(ws: Path) -> None:
    async with AgentShell(ws) as shell:
        answer = await shell.call("exec_command", json.dumps({"cmd": "echo $((6 * 7))"}))
        assert answer.ok
        assert "42" in str(answer)
        for text in ("{", "[]", "", "null", '{"cmd": "\\ud800"}', "[" * 100_000):
            refused = await shell.call("exec_command", text)
            assert not refused.ok
            assert refused.text.startswith("failed to parse function arguments"), text[:20]


# --- profiles -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["workspace", "sandbox"])
async def test_a_profile_with_relative_paths_is_kept(ws: Path, how: str, at: str | None) -> None:
    (ws / "build").mkdir()
    (ws / "a.env").write_text("secret")
    profile = Profile(write=("build",), deny=("**/*.env",))
    where = Workspace(ws, sandbox=profile, at=at) if how == "workspace" else Workspace(ws, at=at)
    async with AgentShell(where, sandbox=None if how == "workspace" else profile) as shell:
        done = await shell.run("touch build/in /tmp/in; touch out; cat a.env")
        assert b"build/in" not in done.stderr
        assert b"/tmp/in" not in done.stderr
        patched = await shell.call(
            "apply_patch",
            {"patch": "*** Begin Patch\n*** Add File: out\n+hi\n*** End Patch\n"},
        )
        assert not patched.ok
    assert sorted(os.listdir(ws)) == ["a.env", "build"]
    assert os.listdir(ws / "build") == ["in"]
    assert b"secret" not in done.stdout


async def test_a_profile_that_hides_most_files_is_kept(ws: Path) -> None:
    (ws / "seen").write_text("seen")
    read = ("/usr", "/bin", "/lib", "/lib64", "/etc", ".")
    async with AgentShell(ws, sandbox=Profile(read=read)) as shell:
        done = await shell.run(f"cat seen; ls /root {Path(__file__).parent}")
        assert done.stdout == b"seen"
        assert done.exit_code != 0


async def test_the_whole_workspace_is_writable_from_a_directory_of_it(ws: Path) -> None:
    (ws / "sub").mkdir()
    for sandbox in (None, "workspace-write"):
        async with AgentShell(Workspace(ws), cwd="sub", sandbox=sandbox) as shell:
            done = await shell.run("pwd; touch ../made")
            assert done.stdout.decode() == f"{ws}/sub\n"
        (ws / "made").unlink()


def same_everywhere(text: str) -> None:
    assert text.split() == ["made", "/tmp", "refused"], text


async def test_workspace_write_means_one_thing(ws: Path, at: str | None) -> None:
    script = (
        "touch /tmp/x && echo made; echo ${TMPDIR:-/tmp}; touch /usr/x 2>/dev/null || echo refused"
    )
    with Workspace(ws, at=at) as workspace:
        same_everywhere(workspace.run(script).stdout)
    for sandbox in (None, "workspace-write", Profile()):
        async with AgentShell(Workspace(ws, at=at), sandbox=sandbox) as shell:
            same_everywhere((await shell.run(script)).stdout.decode())


# --- rules --------------------------------------------------------------------------------------


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's directory of rules files, empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(layers, "SYSTEM_FOLDER", str(tmp_path / "system"))
    folder = Path(layers.user_folder())
    folder.mkdir(parents=True)
    return folder


async def refused(shell: AgentShell) -> str:
    answer = await shell.call("exec_command", {"cmd": "zap x"})
    return "" if answer.ok else answer.text


async def test_the_users_rules_are_in_force_unless_others_are_named(ws: Path, user: Path) -> None:
    (user / "mine.rules").write_text(FORBID)
    own = ws / "own.rules"
    own.write_text('prefix_rule(["other"], "forbidden")\n')
    async with AgentShell(ws) as shell:
        assert "not here" in await refused(shell)
    for rules in (own, [str(own)], ()):
        async with AgentShell(ws, rules=rules) as shell:
            assert "not here" not in await refused(shell)


async def test_the_systems_rules_are_always_in_force(ws: Path, user: Path) -> None:
    system = user.parents[2] / "system"
    system.mkdir()
    (system / "a.rules").write_text(FORBID)
    for rules in (None, ()):
        async with AgentShell(ws, rules=rules) as shell:
            assert "not here" in await refused(shell)
    (system / "b.rules").write_text("x(")
    with pytest.raises(RulesFileError):
        async with AgentShell(ws):
            pass


async def test_a_broken_file_is_left_out_and_nothing_runs_unattended(
    ws: Path, user: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (user / "broken.rules").write_text(FORBID + "x(")
    (user / "whole.rules").write_text(FORBID)
    heard: list[Event] = []
    with caplog.at_level(logging.WARNING):
        async with AgentShell(ws, policy="never", on_audit=heard.append) as shell:
            assert "broken.rules" in (await shell.call("exec_command", {"cmd": "true"})).text
    assert "broken.rules:2" in caplog.text
    assert any(isinstance(event, Notice) and "left out" in event.text for event in heard)
    asked: list[str | None] = []

    def decide(question: Question) -> bool:
        asked.append(question.reason)
        return True

    async with AgentShell(ws, approver=decide) as shell:
        assert (await shell.call("exec_command", {"cmd": "true"})).ok
        assert "not here" in await refused(shell)
    assert len(asked) == 1
    assert "broken.rules" in str(asked[0])
    (user / "broken.rules").unlink()
    async with AgentShell(ws, policy="never") as shell:
        assert (await shell.call("exec_command", {"cmd": "true"})).ok


async def test_no_command_adds_rules_to_a_directory_of_them(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to one that was named nor to the user's, which is not there yet."""
    (ws / "rules").mkdir()
    (ws / "rules" / "a.rules").write_text('prefix_rule(["ls"])\n')
    monkeypatch.setenv("HOME", str(ws))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    text = "prefix_rule(['curl'], sandbox='off')"
    async with AgentShell(ws, rules=ws / "rules") as shell:
        for folder in ("rules", ".config/handrail/rules"):
            done = await shell.run(f'mkdir -p {folder}; echo "{text}" > {folder}/b.rules')
            assert done.exit_code != 0, folder
    assert os.listdir(ws / "rules") == ["a.rules"]
    assert not (ws / ".config" / "handrail" / "rules").exists()
