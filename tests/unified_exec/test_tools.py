from __future__ import annotations

import json
from typing import Any

import pytest

from handrail.errors import UsageError
from handrail.unified_exec.schemas import tools
from handrail.unified_exec.tools import (
    ExecCommandArgs,
    WriteStdinArgs,
    exec_command_args,
    read_output_args,
    write_stdin_args,
)


def test_arguments_are_read_and_unknown_ones_ignored() -> None:
    args = exec_command_args(
        {"cmd": "", "tty": True, "surprise": 1, "shell": None, "prefix_rule": ["git", "status"]}
    )
    assert args == ExecCommandArgs(cmd="", tty=True, prefix_rule=("git", "status"))
    assert args.yield_time_ms is None


def test_an_id_may_be_a_number_or_its_digits() -> None:
    assert write_stdin_args({"session_id": "1234"}) == WriteStdinArgs(session_id=1234)
    assert read_output_args({"session_id": 7, "offset": 3}).offset == 3
    resized = write_stdin_args({"session_id": 1, "resize": {"rows": 3, "cols": 4}}).resize
    assert resized is not None
    assert (resized.rows, resized.cols) == (3, 4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "cmd"),
        ({"cmd": 3}, "cmd"),
        ({"cmd": "x", "yield_time_ms": -1}, "yield_time_ms"),
        ({"cmd": "x", "max_output_tokens": -1}, "max_output_tokens"),
        ({"cmd": "x", "tty": "yes"}, "tty"),
        ({"cmd": "x", "justification": "please"}, "sandbox_permissions"),
        ({"cmd": "x", "sandbox_permissions": "all"}, "sandbox_permissions"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        exec_command_args(arguments)


def test_a_justification_is_read_beside_the_permissions_that_every_call_has() -> None:
    given = {"cmd": "x", "sandbox_permissions": "use_default", "justification": "why"}
    assert exec_command_args(given).justification == "why"


@pytest.mark.parametrize("given", [None, "x", 1.5, True, [1], "9" * 5000])
def test_a_session_id_of_another_kind_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match="session_id"):
        write_stdin_args({"session_id": given})


def test_particular_permissions_are_in_the_schema_where_they_may_be_asked_for() -> None:
    for additional in (False, True):
        fields: dict[str, Any] = tools(additional=additional)[0]["parameters"]  # type: ignore[assignment]
        fields = fields["properties"]
        names = fields["sandbox_permissions"]["enum"]
        assert ("with_additional_permissions" in names) is additional
        assert ("additional_permissions" in fields) is additional


def test_schemas_are_json_and_say_what_is_required() -> None:
    described = {tool["name"]: tool["parameters"] for tool in json.loads(json.dumps(tools()))}
    assert described["exec_command"]["required"] == ["cmd"]
    assert described["write_stdin"]["required"] == ["session_id"]
    fields = set(described["exec_command"]["properties"])
    assert fields <= set(ExecCommandArgs.__struct_fields__)
    assert set(described["write_stdin"]["properties"]) == set(WriteStdinArgs.__struct_fields__)
