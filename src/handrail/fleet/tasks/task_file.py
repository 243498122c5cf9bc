"""Reads a file of tasks, one JSON object a line, and makes the command of each."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from handrail.errors import UsageError

#: The kernel's limit of one variable is 128 KiB with its name (MAX_ARG_STRLEN).
_MOST_VARIABLE = 128 * 1024 - 64
_VARIABLE = "HANDRAIL_TASK"
_MEMBER = re.compile(r"\{([^{}\s]+)\}")


class TasksRefused(UsageError):
    """The file of tasks cannot be run as asked for, and nothing was run."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task as it is in the file; ``digest`` is that of the task, its command and template."""

    id: str
    line: str
    digest: str
    idempotent: bool

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class TaskCommand:
    """What is run for a task."""

    argv: str | list[str]
    env: dict[str, str | None]
    stdin: str | None
    timeout: float | None


class TaskFile:
    """The tasks of a file, read and checked; ``command`` is for tasks that have none themselves."""

    def __init__(
        self,
        lines: Iterable[str],
        *,
        command: Sequence[str] = (),
        template: str | None = None,
        idempotent: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._command = list(command)
        self._template = template
        self._idempotent = idempotent
        self._timeout = timeout
        self.tasks: list[Task] = []
        known: dict[str, int] = {}
        wanted = {name for word in self._command for name in _MEMBER.findall(word)}
        members: set[str] = set()
        lacking: list[tuple[str, set[str]]] = []
        for number, line in _numbered(lines):
            values = _object(number, line)
            task = self._task(number, line, values)
            if task.id in known:
                raise TasksRefused(
                    f"line {number}: the id {task.id!r} is that of line {known[task.id]} too; give"
                    " each task an id of its own"
                )
            known[task.id] = number
            if "command" not in values:
                members |= wanted & values.keys()
                lacking += [(task.id, wanted - values.keys())] if wanted - values.keys() else []
            self.command_of(task)  # whether it can be made
            self.tasks.append(task)
        for id_, without in lacking:
            if missing := sorted(without & members):
                raise TasksRefused(
                    f"task {id_} has no member {missing[0]!r}, which the command names and other"
                    " tasks have; add it"
                )

    def _task(self, number: int, line: str, values: dict[str, Any]) -> Task:
        id_ = values.get("id")
        if not isinstance(id_, str) or not id_:
            raise TasksRefused(f'line {number}: a task has a text "id", not {id_!r}')
        if "command" not in values and not self._command:
            raise TasksRefused(
                f'task {id_} has no command; give one behind --, or in its member "command"'
            )
        own = "command" in values
        known = [values, None if own else self._command, self._template]
        digest = hashlib.sha256(
            json.dumps(known, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()
        idempotent = values.get("idempotent", self._idempotent)
        if not isinstance(idempotent, bool):
            raise TasksRefused(f"task {id_}: idempotent is true or false, not {idempotent!r}")
        return Task(id_, line, digest, idempotent)

    def command_of(self, task: Task) -> TaskCommand:
        """The command of a task; raises TasksRefused."""
        values = json.loads(task.line)
        return TaskCommand(
            argv=_argv(task.id, values, self._command),
            env=_environment(task, values),
            stdin=_stdin(task.id, values),
            timeout=_timeout(task.id, values, self._timeout),
        )


def read(path: str) -> Iterator[str]:
    """The lines of a file; raises TasksRefused and OSError."""
    with open(path, encoding="utf-8") as file:
        try:
            yield from file
        except UnicodeDecodeError as error:
            raise TasksRefused(f"{path} is not UTF-8: {error}") from None


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    return ((number, line.strip()) for number, line in enumerate(lines, 1) if line.strip())


def _object(number: int, line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TasksRefused(f"line {number} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise TasksRefused(f'line {number}: a task is an object such as {{"id": "a"}}')
    return values


def _argv(id_: str, values: dict[str, Any], command: list[str]) -> str | list[str]:
    own = values.get("command", command)
    if isinstance(own, str) and own:
        return _text(id_, own)
    if not isinstance(own, list) or not own or not all(isinstance(word, str) for word in own):
        raise TasksRefused(f"task {id_}: command is text for a shell, or a list of words")
    if "command" in values:
        return [_text(id_, word) for word in own]

    def member(found: re.Match[str]) -> str:
        name = found[1]
        if name not in values:
            return found[0]  # braces of a shell, of awk
        value = values[name]
        return value if isinstance(value, str) else json.dumps(value)

    return [_text(id_, _MEMBER.sub(member, word)) for word in own]


def _environment(task: Task, values: dict[str, Any]) -> dict[str, str | None]:
    given = values.get("env") or {}
    if not isinstance(given, dict):
        raise TasksRefused(f"task {task.id}: env is an object of texts by name")
    env: dict[str, str | None] = {}
    for name, value in given.items():
        if not name or "=" in name or not isinstance(value, str | None):
            raise TasksRefused(f"task {task.id}: env has texts by name, not {name!r}: {value!r}")
        env[_text(task.id, name)] = None if value is None else _text(task.id, value)
    whole = task.line
    if len(whole.encode("utf-8", "surrogatepass")) > _MOST_VARIABLE:
        whole = json.dumps({name: values[name] for name in values if name != "stdin"})
    if len(whole.encode("utf-8", "surrogatepass")) > _MOST_VARIABLE:
        raise TasksRefused(
            f"task {task.id} has more than {_MOST_VARIABLE // 1024} KiB, which no variable"
            f" ({_VARIABLE}) can hold; put what is large into its stdin or a file"
        )
    env[_VARIABLE] = _text(task.id, whole)
    return env


def _stdin(id_: str, values: dict[str, Any]) -> str | None:
    stdin = values.get("stdin")
    if not isinstance(stdin, str | None):
        raise TasksRefused(f"task {id_}: stdin is text, not {stdin!r}")
    return stdin or None


def _timeout(id_: str, values: dict[str, Any], default: float | None) -> float | None:
    timeout = values.get("timeout", default)
    known = isinstance(timeout, int | float | None) and not isinstance(timeout, bool)
    if not known or (timeout is not None and not 0 < timeout < 10**9):
        raise TasksRefused(f"task {id_}: timeout is a number of seconds, not {timeout!r}")
    return None if timeout is None else float(timeout)


def _text(id_: str, text: str) -> str:
    """Text that a process can be given."""
    if "\0" in text:
        raise TasksRefused(f"task {id_}: a word or variable of it has a NUL")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TasksRefused(f"task {id_}: a word or variable of it is no Unicode text") from None
    return text
