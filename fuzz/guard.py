"""The policy's guard against real shells: what it lets run may not run the forbidden program.

Two targets: scripts near those of the corpus (``guard``), and scripts from a grammar
(``guard_grammar``), where the input is the seed of all chance.
"""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING

from forbidden_program import Worker

from scripts import PIECES, Scripts

if TYPE_CHECKING:
    from handrail.policy.rules import Policy

SHELLS = ("/bin/bash", "/bin/dash")
#: Pieces of scripts, for mutations.
TOKENS = tuple(token.encode() for token in dict.fromkeys(PIECES))
_WORKER = Worker()
_COUNTS = {"plain": 0, "asked": 0, "hostile": 0, "run": 0}


class EvadedRule(AssertionError):
    """The guard let a script run that ran the forbidden program."""


def guard(data: bytes) -> None:
    """A script as it is."""
    check(data.decode("utf-8", "surrogateescape").replace("\0", ""))


def guard_grammar(data: bytes) -> None:
    """A script of the grammar; every third is a plain one, which is only counted."""
    chance = random.Random(data)
    scripts = Scripts(chance)
    if chance.random() < 0.33:
        _COUNTS["plain"] += 1
        _COUNTS["asked"] += not allowed(SHELLS[0], scripts.plain())
    else:
        check(scripts.hostile())


def check(script: str) -> None:
    """Run a script that is let run, and see whether the program ran."""
    _COUNTS["hostile"] += 1
    for shell in SHELLS:
        if not allowed(shell, script):
            continue
        _COUNTS["run"] += 1
        if _WORKER.runs_it(shell, script):
            raise EvadedRule(f"{shell} runs the forbidden program: {script!r}")


def allowed(shell: str, script: str) -> bool:
    """True if the policy lets it run without a question."""
    from handrail.policy.context import Situation
    from handrail.policy.decide import Action, decide

    argv = [shell, "-c", script]
    return decide(argv, rules(), Situation(cwd="/tmp", shell=shell)).action is Action.ALLOW


@cache
def rules() -> Policy:
    from handrail.policy.load import parse_rules

    return parse_rules('prefix_rule(["zap"], "forbidden")', "fuzz.rules")


def report() -> str:
    """How much was let run, and how many plain scripts were asked about."""
    counts = _COUNTS
    return (
        f"{counts['run']} runs of {counts['hostile']} hostile scripts were let run;"
        f" {counts['asked']} of {counts['plain']} plain scripts were asked about"
    )
