"""The approvals that hold for the session, and their keys.  Pure.

Only «for the session» is remembered, and only until the session ends, together with what the yes
was for: a sandboxed run, or one without, and what it got beyond the mode.  One without holds as
long as a program that sandboxed commands can write is the same file.  A command is remembered
in its canonical form, so that a wrapper around one plain command does not matter, while a script
that cannot be read word by word only matches exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from handrail.orchestrator.call import Call
from handrail.orchestrator.settings import Grants
from handrail.policy.rules import Argv
from handrail.policy.strict_script_reader import shell_call, split

_SCRIPT = "(script)"


@dataclass(frozen=True, slots=True)
class CommandKey:
    """A command and its directory."""

    environment_id: str
    program: str
    command: Argv
    cwd: str
    tty: bool


@dataclass(frozen=True, slots=True)
class SeedKey:
    """The key of the first generation: the argv as shown, in any directory."""

    argv: Argv


@dataclass(frozen=True, slots=True)
class FileKey:
    """One file a patch may change."""

    environment_id: str
    path: str


Key = CommandKey | SeedKey | FileKey


def canonical(argv: Argv) -> Argv:
    """Reduce a wrapper around one plain command to that command; any other script stays exact."""
    commands = split(argv)
    if commands is not None and len(commands) == 1:
        return commands[0]
    call = shell_call(argv)
    return argv if call is None else (_SCRIPT, call.program, call.flag, call.script)


def command_key(call: Call) -> CommandKey:
    """The key of a command."""
    return CommandKey(
        call.environment_id,
        call.argv[0] if call.argv else "",
        canonical(call.argv),
        call.cwd,
        call.tty,
    )


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a run goes: without the sandbox, or sandboxed with something beyond the mode."""

    outside: bool = False
    wants: Grants = field(default_factory=Grants)
    #: Of a run outside: the programs that sandboxed commands can write, as they were.
    programs: frozenset[tuple[object, ...]] = frozenset()

    def covers(self, other: Extent) -> bool:
        """Whether a yes to this is also a yes to the other."""
        if other.outside:
            return self.outside and other.programs <= self.programs
        return self.outside or self.wants.covers(other.wants)


#: A sandboxed run with the permissions of the mode.
SANDBOXED = Extent()


@dataclass(slots=True)
class ApprovalCache:
    """The approvals of one session."""

    _approved: dict[Key, set[Extent]] = field(default_factory=dict)

    def remember(self, keys: Iterable[Key], extent: Extent = SANDBOXED) -> None:
        """Remember these keys as approved, as far as ``extent`` goes."""
        for key in keys:
            self._approved.setdefault(key, set()).add(extent)

    def knows(self, keys: Iterable[Key], extent: Extent = SANDBOXED) -> bool:
        """Whether all of them are approved as far as ``extent`` goes; no key is no approval."""
        keys = tuple(keys)
        return bool(keys) and all(self._covered(key, extent) for key in keys)

    def _covered(self, key: Key, extent: Extent) -> bool:
        return any(given.covers(extent) for given in self._approved.get(key, ()))
