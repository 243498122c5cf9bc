"""Tasks: what is refused, and which command a task has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from handrail.errors import UsageError
from handrail.fleet.tasks.task_file import TaskFile


def one(task: dict[str, Any], *command: str, **how: Any) -> Any:
    file = TaskFile([json.dumps({"id": "a", **task})], command=command, **how)
    return file.command_of(file.tasks[0])


@pytest.mark.parametrize(
    ("task", "command", "argv"),
    [
        ({"n": 3}, ["sh", "-c", "echo {id} $(({n} % 2))"], ["sh", "-c", "echo a $((3 % 2))"]),
        ({"x": "{id}"}, ["echo", "{x}{x}"], ["echo", "{id}{id}"]),
        ({"x": "a b; rm"}, ["echo", "{x}"], ["echo", "a b; rm"]),
        ({"x": [1, "b"], "y": None, "z": True}, ["{x}", "{y}{z}"], ['[1, "b"]', "nulltrue"]),
        ({}, ["awk", "{print $1}", "${HOME}{x}"], ["awk", "{print $1}", "${HOME}{x}"]),
        ({"command": ["own", "{id}"]}, ["ignored"], ["own", "{id}"]),
        ({"command": "own; {id}"}, [], "own; {id}"),
        ({"äö": "ü"}, ["{äö}"], ["ü"]),
    ],
)  # fmt: skip
def test_the_words_of_a_command(task: dict[str, Any], command: list[str], argv: Any) -> None:
    assert one(task, *command).argv == argv


def test_the_environment_has_the_task() -> None:
    command = one({"env": {"A": "1", "B": None}, "deep": {"x": [1]}}, "c")
    assert (command.env["A"], command.env["B"]) == ("1", None)
    assert json.loads(command.env["HANDRAIL_TASK"])["deep"] == {"x": [1]}


def test_a_large_stdin_is_left_out_of_the_environment() -> None:
    command = one({"stdin": "x" * 200_000, "n": 1}, "c")
    assert len(command.stdin) == 200_000
    assert json.loads(command.env["HANDRAIL_TASK"]) == {"id": "a", "n": 1}


def test_a_task_names_its_own_timeout() -> None:
    assert one({}, "c", timeout=5.0).timeout == 5.0
    assert one({"timeout": 7}, "c", timeout=5.0).timeout == 7.0
    assert one({"timeout": None}, "c", timeout=5.0).timeout is None


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["{"], "line 1 is no JSON"),
        (["", '{"id": "a"}', "[]"], "line 3: a task is an object"),
        (['{"id": 3}'], 'a text "id"'),
        (['{"id": ""}'], 'a text "id"'),
        (["{}"], 'a text "id"'),
        (['{"id": "a"}', '{"id": "b"}', '{"id": "a", "n": 1}'], "is that of line 1 too"),
        (['{"id": "a", "command": []}'], "command is text"),
        (['{"id": "a", "command": [1]}'], "command is text"),
        (['{"id": "a", "env": {"A": 1}}'], "env has texts"),
        (['{"id": "a", "env": [1]}'], "env is an object"),
        (['{"id": "a", "stdin": 1}'], "stdin is text"),
        (['{"id": "a", "timeout": "1"}'], "timeout is a number"),
        (['{"id": "a", "timeout": 0}'], "timeout is a number"),
        (['{"id": "a", "timeout": true}'], "timeout is a number"),
        (['{"id": "a", "idempotent": 1}'], "idempotent is true or false"),
        (['{"id": "a", "n": "\\u0000"}'], "NUL"),
        (['{"id": "a", "n": "\\ud800"}'], "no Unicode"),
        (['{"id": "a", "n": 1}', '{"id": "b"}'], "task b has no member 'n'"),
        ([json.dumps({"id": "a", "n": "x" * 140_000})], "KiB"),
    ],
)  # fmt: skip
def test_refused(lines: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        TaskFile(lines, command=["echo", "{n}"])


def test_a_task_without_any_command_is_refused() -> None:
    with pytest.raises(UsageError, match="no command"):
        TaskFile(['{"id": "a"}'])


def test_the_digest_is_of_task_command_and_template() -> None:
    def digest(line: str = '{"id": "a", "n": 1}', **how: Any) -> str:
        return TaskFile([line], **{"command": ["c"], "template": "t", **how}).tasks[0].digest

    assert digest('{"n":1,"id":"a"}') == digest()
    others = [digest('{"id": "a", "n": 2}'), digest(command=["d"]), digest(template="u")]
    assert len({digest(), *others}) == 4
    own = '{"id": "a", "command": "x"}'
    assert digest(own) == digest(own, command=["d"]), "it is not run by that command"
