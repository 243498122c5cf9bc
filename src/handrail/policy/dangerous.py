"""Commands that ask even where everything else runs.

``danger`` is the peer's heuristic, blind spots included: forced ``rm``, seen through ``sudo``,
``env``, ``trap`` and scripts, and wrappers nested too deep to follow.  An approval mode of one
system means the same in the other.

``effects`` is ours and wider: what a command may do that is hard to undo.  It is a table, it sees
through all wrappers of ``wrappers.py``, and it is used to ask, never to allow; which effects ask
is a setting, none by default.
"""

from __future__ import annotations

import enum
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from handrail.bash_syntax import SCRIPT_LIMIT
from handrail.policy.rules import Argv, Words
from handrail.policy.strict_script_reader import SCRIPT_FLAGS, SHELLS, literal_commands, split
from handrail.policy.tables import entries
from handrail.policy.wrappers import sightings

#: Wrappers that are followed; one more is dangerous by itself.
DEPTH_LIMIT = 8
_SHORT_FORCE = re.compile(r"-(?!-).*f", re.DOTALL)


class Danger(enum.Enum):
    """Why a command is called dangerous; the value is a sentence for people."""

    FORCED_RM = "it removes files by force, without asking (rm -f)"
    TOO_DEEP = "its wrappers are nested too deep to be looked through"
    TOO_LONG = "its script is too long to be read"


class Effect(enum.Enum):
    """What a command may do that is hard to undo; the value is a phrase for people."""

    DELETE = "deletes files"
    OVERWRITE = "overwrites data"
    PUBLISH = "publishes to others"
    CREDENTIALS = "touches credentials"


@dataclass(frozen=True, slots=True)
class EffectRule:
    """A program (by base name) with words that must all be among its arguments, in any order."""

    effect: Effect
    program: str
    words: tuple[str, ...] = ()


def _effect_rules(effect: Effect) -> Iterator[EffectRule]:
    for rule in " ".join(entries("effects")[effect.name.lower()]).split(" | "):
        program, *words = rule.split()
        yield EffectRule(effect, program, tuple(words))


EFFECT_RULES = tuple(rule for effect in Effect for rule in _effect_rules(effect))


def danger(argv: Sequence[str]) -> Danger | None:
    """Why the peer's heuristic would ask before running ``argv``; None: it would not."""
    for command in split(argv) or (tuple(argv),):
        found = command_danger(command)
        if found:
            return found
    return None


def command_danger(command: Argv) -> Danger | None:
    """Like `danger`, for one command that was already taken out of its script."""
    return _danger(command, 0)


def effects(argv: Sequence[str]) -> frozenset[Effect]:
    """What ``argv`` may do that is hard to undo, as far as the table knows."""
    found: set[Effect] = set()
    for words, _ in sightings(tuple(argv)).commands:
        found.update(rule.effect for rule in EFFECT_RULES if _applies(rule, words))
    return frozenset(found)


def _applies(rule: EffectRule, words: Words) -> bool:
    if posixpath.basename(words[0] or "") != rule.program:
        return False
    return all(word in words[1:] for word in rule.words)


def _danger(argv: Argv, depth: int) -> Danger | None:
    if depth > DEPTH_LIMIT:
        return Danger.TOO_DEEP
    if not argv:
        return None
    name, rest = posixpath.basename(argv[0]), argv[1:]
    if name == "rm":
        return Danger.FORCED_RM if _forces(rest) else None
    if name == "sudo":
        return _danger(rest, depth + 1)
    if name == "env":
        return _danger(_behind_env(rest), depth + 1)
    if name == "trap":
        # Counted as two wrappers: the action is a script, and the script is parsed.
        action = rest[1:2] if rest[:1] == ("--",) else rest[:1]
        return _danger(("bash", "-c", *action), depth + 1) if action else None
    if len(argv) == 3 and argv[1] in SCRIPT_FLAGS and name.split(".")[0] in SHELLS:
        if len(argv[2]) > SCRIPT_LIMIT:
            return Danger.TOO_LONG
        found = (_danger(command, depth + 1) for command in literal_commands(argv[2]))
        return next((one for one in found if one), None)
    return None


def _forces(arguments: Argv) -> bool:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(word == "--force" or _SHORT_FORCE.match(word) for word in options)


def _behind_env(words: Argv) -> Argv:
    """The command behind ``env``; nothing if it has an option of unknown form."""
    for at, word in enumerate(words):
        if word == "--":
            return words[at + 1 :]
        if word in ("-i", "--ignore-environment") or ("=" in word and not word.startswith("-")):
            continue
        return () if word.startswith("-") else words[at:]
    return ()
