"""From the profile of a file call to the plan its helper runs in.

The plan is the one that a command with the same profile would get, with these differences: there
is never a network, and no socket can be made; what the helper itself is made of (interpreter,
standard library, this package) is readable also where the profile hides it; a call that changes
nothing gets a plan in which nothing can be changed; and protected names that are missing have no
placeholders on the host: the helper is told to refuse them, so it can stay as long as it likes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Hashable
from functools import cache
from typing import TYPE_CHECKING

import handrail
from handrail.errors import SandboxError, SandboxUnavailable
from handrail.process.spec import ProcessSpec
from handrail.sandbox.bwrap.arguments import Processes

if TYPE_CHECKING:
    from handrail.filesystem.pool import FilePool
    from handrail.sandbox.choose_sandbox import Sandbox
    from handrail.sandbox.plan.plan import Plan
    from handrail.sandbox.profile import Profile

#: A plan for calls that change nothing is made again after this many times the cost of making it:
#: patterns in large trees take a while.  Calls that change something always make it again.
PATIENCE = 20
#: A look that took less than this will again, unless much was reported to have changed.
_QUICK_SECONDS = 0.002
#: How many profiles have their last plan cached.
_MOST_KNOWN = 64
_UNKNOWN = (0.0, None, None)


class FileSandbox:
    """The sandbox of file helpers: one plan, or Landlock where bubblewrap cannot work."""

    def __init__(self, sandbox: Sandbox, profile: Profile, plan: Plan | None) -> None:
        self._sandbox = sandbox
        self._profile = profile
        self.plan = plan
        self.key: Hashable = ("landlock", profile) if plan is None else _key(profile, plan)
        #: The names that a helper is told to refuse.
        self.refused = () if plan is None else plan.refused
        #: What the last look at it took.
        self.seconds = 0.0
        #: Whether a helper has a ``/proc`` of its own.
        self.has_proc = plan is not None and any(type(step) is Processes for step in plan.steps)

    def sandboxed(self, spec: ProcessSpec) -> ProcessSpec:
        """The spec to start instead; raises SandboxError."""
        return self._sandbox.sandboxed(spec, self._profile).spec(spec)


class FileSandboxes:
    """The plans of one machine's file calls, made again when they are due."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        #: By profile: when it is made again, the plan of the profile itself, and its sandbox.
        self._known: dict[Profile, tuple[float, Plan | None, FileSandbox | None]] = {}
        #: The profiles of calls, by that of the client and whether they change anything.
        self._of_calls: dict[tuple[Profile, bool], Profile] = {}
        #: The same by how their caller has said it, and whether they change anything.
        self._of_words: dict[tuple[Hashable, bool], Profile] = {}
        #: What the look took that was taken beforehand, in seconds.
        self._cost = 0.0

    def known(self, words: Hashable, *, writes: bool) -> FileSandbox | None:
        """The sandbox of a call that was made before, if a look at its plan takes no time.

        Of a call that changes nothing it is not looked at again before it is due.  The words need
        not be read again either, nor bound to this machine; private places that were added since
        are told apart by ``private_places.revision`` among the words.
        """
        profile = self._of_words.get((words, writes))
        if profile is None:
            return None
        until, _, known = self._known.get(profile, _UNKNOWN)
        if known is None or time.monotonic() < until:
            return known
        if not writes or known.seconds >= _QUICK_SECONDS:
            return None
        try:
            if self._sandbox.prepare(profile, quick=True) is None:
                return self._planned(profile, patience=0)
        except SandboxError:
            pass  # which ``find`` reports
        return None

    async def find(
        self, pool: FilePool, profile: Profile, *, writes: bool, words: Hashable = None
    ) -> FileSandbox:
        """The sandbox for a profile and a kind of call; ``words``: what `known` knows it by.

        Raises SandboxError, and FilesError when no thread is to be had.
        """
        given, profile = profile, self._of_calls.get((profile, writes), profile)
        if profile is given:
            profile = _of_calls(given, writes)
            if len(self._of_calls) >= _MOST_KNOWN:
                self._of_calls.clear()
            self._of_calls[given, writes] = profile
        if words is not None:
            if len(self._of_words) >= _MOST_KNOWN:
                self._of_words.clear()
            self._of_words[words, writes] = profile
        await self._prepare(pool, profile)
        try:
            return self._planned(profile, patience=0 if writes else PATIENCE)
        except SandboxUnavailable:
            hidden = [path for path in _runtime() if not _readable(profile, path)]
            return FileSandbox(self._sandbox, _with_readable(profile, hidden), None)

    async def _prepare(self, pool: FilePool, profile: Profile) -> None:
        """Make the plan in a thread, if it may take a while."""
        until, _, known = self._known.get(profile, _UNKNOWN)
        if known is not None and time.monotonic() < until:
            return
        try:
            quick = known is not None and known.seconds < _QUICK_SECONDS
            preparation = self._sandbox.prepare(profile, quick=quick)
        except SandboxError:
            return  # ``_planned`` reports the error
        if preparation is not None:
            await preparation.in_thread(pool)
            self._cost = preparation.seconds

    def _planned(self, profile: Profile, *, patience: int) -> FileSandbox:
        now = time.monotonic()
        until, before, known = self._known.get(profile, _UNKNOWN)
        if known is not None and now < until:
            return known
        plan = self._sandbox.plan(profile)
        if known is None or before is not plan:
            known = self._file_sandbox(profile, plan)
        after = time.monotonic() + self._cost
        self._cost = 0.0
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        known.seconds = after - now
        self._known[profile] = (after + patience * (after - now), plan, known)
        return known

    def _file_sandbox(self, profile: Profile, plan: Plan) -> FileSandbox:
        hidden = _hidden(plan)
        if hidden:
            profile = _with_readable(profile, hidden)
            plan = self._sandbox.plan(profile)
        return FileSandbox(self._sandbox, profile, plan)


def restricts_files(profile: Profile) -> bool:
    """Whether files are restricted, by us: not only the network, and not by the caller."""
    from handrail.sandbox.profile import Access, Rule

    if profile.protected or profile.globs:
        return profile.sandboxed
    return profile.sandboxed and profile.rules != (Rule(b"/", Access.WRITE),)


def _of_calls(profile: Profile, writes: bool) -> Profile:
    profile = profile._replace(network=False, sockets=False, placeholders=False)
    return profile if writes else _reading(profile)


def _reading(profile: Profile) -> Profile:
    """The profile without write access."""
    from handrail.sandbox.profile import Access, Rule

    rules = tuple(
        Rule(rule.path, Access.READ) if rule.access is Access.WRITE else rule
        for rule in profile.rules
    )
    return profile._replace(rules=rules)


def _key(profile: Profile, plan: Plan) -> Hashable:
    """Equal for plans that show the same files."""
    return profile, frozenset(plan.rules.items()), frozenset(plan.facts.items()), plan.refused


# --- what a helper is made of -------------------------------------------------------------------


@cache
def interpreter() -> str:
    """The interpreter itself: not a link in a virtual environment, of which nothing is needed."""
    return os.path.realpath(sys.executable)


@cache
def _runtime() -> tuple[bytes, ...]:
    """Files and directories that the helper reads when it starts."""
    import ctypes  # noqa: F401  (so that its library is among those below)

    found = {interpreter(), os.path.dirname(os.__file__), os.path.dirname(handrail.__file__)}
    found = {os.path.realpath(path) for path in found} | {"/etc/ld.so.cache"}
    libraries = {os.path.dirname(_loader())}
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = "/" + line.rstrip("\n").partition("/")[2]
            if ".so" in path and "site-packages" not in path:
                libraries.add(os.path.dirname(path))
    for place in list(libraries):
        # The loader may use the older name, which is a link on most systems.
        older = place.removeprefix("/usr")
        if os.path.realpath(older) == place:
            libraries.add(older)
    found |= libraries
    return tuple(sorted(os.fsencode(path) for path in found if os.path.exists(path)))


def _loader() -> str:
    """The ELF loader of the interpreter."""
    with open(interpreter(), "rb") as file:
        head = file.read(4096)
    start = head.find(b"/lib")
    return os.fsdecode(head[start : head.index(b"\0", start)]) if start > 0 else "/lib/ld.so"


def _hidden(plan: Plan) -> list[bytes]:
    from handrail.sandbox.profile import Access

    return [path for path in _runtime() if plan.access(os.path.realpath(path)) is Access.DENY]


def _readable(profile: Profile, path: bytes) -> bool:
    from handrail.sandbox.profile import Access

    return profile.access(os.path.realpath(path)) is not Access.DENY


def _with_readable(profile: Profile, paths: list[bytes]) -> Profile:
    from handrail.sandbox.profile import Access, Rule, depth

    rules = {rule.path: rule for rule in profile.rules}
    for path in paths:
        rules[path] = Rule(path, Access.READ)
    ordered = sorted(rules.values(), key=lambda rule: (depth(rule.path), rule.path))
    return profile._replace(rules=tuple(ordered))
