"""Which rules files are in force: the default layers, or those that the caller names.

The administrator's layer is always among them: naming other rules replaces the user's alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeAlias

from handrail import private_places
from handrail.errors import UsageError
from handrail.policy.load import Layer, Loaded, Problem, load_files, load_layers
from handrail.policy.rules import Policy

SYSTEM_FOLDER = os.path.join(private_places.SYSTEM_CONFIG, "rules")
#: The file of the user's folder to which «yes, always» adds a rule.
DEFAULT_FILE = "default.rules"

#: Rules as a caller names them; None: the default layers.
Rules: TypeAlias = "Policy | str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None"


def user_folder() -> str:
    """The user's directory of rules files, which need not exist."""
    return os.path.join(private_places.config_home(), "rules")


def rule_paths(rules: Rules) -> tuple[str, ...] | None:
    """The files and directories that were named; None if none were.  Raises UsageError."""
    if rules is None or isinstance(rules, Policy):
        return None
    if isinstance(rules, str | os.PathLike):
        rules = (rules,)
    try:
        return tuple(os.path.abspath(os.fspath(path)) for path in rules)
    except TypeError:
        raise UsageError(
            f"rules are files and directories of rules, or a Policy, not {rules!r}"
        ) from None


def load_rules(rules: Rules = None) -> Loaded:
    """The rules in force; raises RulesFileError and UsageError.

    A broken file of a directory is left out; a broken file that was named by itself is an error,
    for the caller meant this file.
    """
    system = Layer("system", SYSTEM_FOLDER, administrator=True)
    if rules is None:
        return load_layers([Layer("user", user_folder()), system])
    policy = rules if isinstance(rules, Policy) else Policy()
    problems: tuple[Problem, ...] = ()
    for path in rule_paths(rules) or ():
        if os.path.isdir(path):
            loaded = load_layers([Layer("named", path)], policy)
            policy, problems = loaded.policy, problems + loaded.problems
        else:
            policy = load_files([path], policy)
    return Loaded(load_layers([system], policy).policy, problems)
