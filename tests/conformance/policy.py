"""Cases of rules files, of scripts taken apart, of dangerous and of safe commands."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from handrail.policy.check import check
from handrail.policy.dangerous import danger
from handrail.policy.known_safe import is_known_safe
from handrail.policy.strict_script_reader import plain_commands
from tests.conformance.comparison import difference


def execpolicy_check(case: dict[str, Any]) -> str | None:
    expected = case["expect"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        rules = []
        for number, text in enumerate(case["rules_files"]):
            path = folder / f"r{number}.rules"
            path.write_text(text, encoding="utf-8")
            rules.append(str(path))
        pretty = "--pretty" in case["flags"]
        result = check(
            rules,
            case["command"],
            cwd=str(folder),
            home="/root",
            resolve_host_executables="--resolve-host-executables" in case["flags"],
            pretty=pretty,
        )
        if "json" not in expected:
            return difference(
                exit_code=(expected["exit_code"], result.exit_code),
                has_error=(True, bool(result.error)),
                output=("", result.output),
            )
        if pretty:
            text = json.dumps(expected["json"], ensure_ascii=False, indent=2)
        else:
            text = json.dumps(expected["json"], ensure_ascii=False, separators=(",", ":"))
        return difference(
            exit_code=(expected["exit_code"], result.exit_code),
            output=(text.replace("{cwd}", str(folder)) + "\n", result.output),
            error=("", result.error),
        )


def shell_split(case: dict[str, Any]) -> str | None:
    expected = case["expect"]
    commands = plain_commands(case["script"])
    unknown = [
        list(command)
        for command in commands or ()
        if not command or command[0] not in case["allowed_first_words"]
    ]
    return difference(
        splittable=(expected["splittable"], commands is not None),
        first_unallowed_command=(
            expected["first_unallowed_command"],
            unknown[0] if unknown else None,
        ),
    )


def dangerous_commands(case: dict[str, Any]) -> str | None:
    return difference(dangerous=(case["expect"]["dangerous"], danger(case["argv"]) is not None))


def safe_commands(case: dict[str, Any]) -> str | None:
    expected, argv = case["expect"], case["argv"]
    return difference(
        known_safe_with_git_subset=(
            expected["known_safe_with_git_subset"],
            is_known_safe(argv),
        ),
        known_safe_last_revision=(
            expected["known_safe_last_revision"],
            is_known_safe(argv, git=False),
        ),
    )
