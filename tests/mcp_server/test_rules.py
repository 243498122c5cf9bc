"""The rules that are in force for an MCP host: the user's, unless others are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from tests.mcp_server import hosts
from tests.mcp_server.hosts import Host, played, text


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's directory of rules, which is not there yet."""
    plain = hosts.environment()
    config = tmp_path / "config"
    monkeypatch.setattr(hosts, "environment", lambda: {**plain, "XDG_CONFIG_HOME": str(config)})
    return config / "handrail" / "rules"


def test_yes_always_is_a_rule_of_the_user(ws: Path, rules: Path) -> None:
    asked: list[str] = []

    def always(params: types.ElicitRequestFormParams) -> types.ElicitResult:
        asked.append(params.message)
        content: Any = {"decision": "approved_execpolicy_amendment"}
        return types.ElicitResult(action="accept", content=content)

    async def main() -> None:
        for _ in range(2):
            host = Host("stdio", "legacy").client(ws, "--approval", "untrusted", elicit=always)
            async with host as client:
                result = await client.call_tool("exec_command", {"cmd": "touch made"})
                assert not result.is_error, text(result)

    played(main())
    assert len(asked) == 1
    assert "no rule allows it" in asked[0]
    line = 'prefix_rule(pattern=["touch", "made"], decision="allow")\n'
    assert (rules / "default.rules").read_text() == line


def test_a_broken_file_is_left_out_and_a_named_directory_replaces_the_users(
    ws: Path, rules: Path
) -> None:
    rules.mkdir(parents=True)
    (rules / "a.rules").write_text('prefix_rule(["zap"], "forbidden", justification="not here")\n')
    (rules / "b.rules").write_text("prefix_rule(['x'], 'forbidden'")
    (ws / "none").mkdir()

    async def said(cmd: str, *flags: str) -> str:
        async with Host("stdio", "legacy").client(ws, "--approval", "never", *flags) as client:
            return text(await client.call_tool("exec_command", {"cmd": cmd}))

    async def main() -> None:
        assert "b.rules" in await said("echo hello")
        (rules / "b.rules").unlink()
        assert "hello" in await said("echo hello")
        assert "not here" in await said("zap")
        assert "not here" not in await said("zap", "--rules", str(ws / "none"))

    played(main())
