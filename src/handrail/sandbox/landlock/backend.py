"""Landlock in place of bubblewrap, for profiles it can hold and machines that need it.

Used only when bubblewrap cannot work here, and never in silence: the reply names it, and a
profile that asks for more than Landlock can do is refused with both reasons.  The command is no
other than the one asked for: ``program.py`` restricts itself and becomes it, so terminals, signals
and exit codes are as without a sandbox.
"""

from __future__ import annotations

import os
import sys

from handrail import memory_file, own_code
from handrail.errors import SandboxUnavailable
from handrail.sandbox.landlock import private_places, process_filter, program, ruleset
from handrail.sandbox.landlock.ruleset import Refusal, Rules
from handrail.sandbox.plan import mount_aliases
from handrail.sandbox.plan.directory_cache import DirectoryCache
from handrail.sandbox.plan.git_index import RepositoryIndex
from handrail.sandbox.plan.safe_open import shown
from handrail.sandbox.profile import Access, Profile, Rule, within
from handrail.sandbox.sandboxed_command import LANDLOCK, SandboxedCommand
from handrail.sandbox.syscalls import seccomp_filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.sandboxed_command import AnyCommand

_WORDS = {Access.READ: "read", Access.WRITE: "write", Access.DENY: "deny"}
#: The number under which the helper finds what to do.
_REQUEST_FD = 3
_ENV = {b"PATH": b"/usr/bin:/bin"}


def rules_of(profile: Profile) -> Rules | Refusal:
    """Translate a profile that is bound to this machine into Landlock rules."""
    if profile.globs:
        return Refusal(f"the denied pattern {profile.globs[0].pattern}")
    named = {rule.path for rule in profile.rules}
    entries = []
    for rule in profile.rules:
        if rule.access is Access.READ:
            entries.append((os.path.realpath(rule.path), "read"))
        elif rule.access is Access.DENY or os.path.lexists(rule.path):
            entries.append((rule.path, _WORDS[rule.access]))
        # A root inside something protected was opened by name, and meant as a whole.
        if rule.access is Access.WRITE and not set(rule.path.split(b"/")) & set(profile.protected):
            for name in profile.protected:
                path = os.path.join(rule.path, name)
                wanted = rule.path not in profile.shared or os.path.lexists(path)
                if path not in named and wanted:
                    entries.append((path, "read"))
            entries += [(path, "read") for path in _nested(rule.path, profile) if path not in named]
    mounts = mount_aliases.read()
    refusal = _own_code(profile, entries, mounts)
    if refusal is not None:
        return refusal
    entries = [entry for entry in entries if entry[1] != "read" or _matters(entry[0], entries)]
    rules = ruleset.rules_for(entries, "enabled" if profile.network else "restricted")
    if isinstance(rules, Refusal) or not profile.private:
        return rules
    twice = mount_aliases.other_names(profile.private, mounts)
    return private_places.without_places(rules, (*profile.private, *twice))


def _own_code(profile: Profile, entries: list[tuple[bytes, str]], mounts: bytes) -> Refusal | None:
    """What handrail runs from would have to be read-only below a writable root."""
    roots = [os.path.realpath(path) for path, access in entries if access == "write"]
    for name, real, kind in mount_aliases.of_code(profile.own_code, mounts):
        for root in roots:
            below = within(name, root) or within(real, root)
            there = kind == own_code.CODE or os.path.lexists(name)
            inside = kind == own_code.CODE and within(root, real)
            if inside or (below and there and real != root):
                return Refusal(
                    f"keeping {shown(real)}, from which handrail itself runs, read-only with"
                    f" {shown(root)} writable (install handrail elsewhere, or make another"
                    " directory writable)"
                )
    own_code.avoid(roots, ())
    return None


def _nested(root: bytes, profile: Profile) -> tuple[bytes, ...]:
    """The repositories below a root, and what else would have to be protected there."""
    if b".git" not in profile.protected or root == b"/":
        return ()
    found = RepositoryIndex(DirectoryCache(root), shared=root in profile.shared).refresh()
    return tuple(path or root + b"/..." for path in found)  # or more than can be looked at


def _matters(path: bytes, entries: list[tuple[bytes, str]]) -> bool:
    """A place that is missing needs no rule, unless it must not come into being."""
    if os.path.exists(path):
        return True
    return any(a == "write" and path.startswith(p.rstrip(b"/") + b"/") for p, a in entries)


def wrap(
    command: AnyCommand, profile: Profile, why: SandboxUnavailable, *, lasting: bool = False
) -> SandboxedCommand:
    """The program that restricts itself and becomes the command.

    ``why`` says what keeps bubblewrap from working; ``lasting``: it outlives the program that
    starts it.  A directory that was to be shown as /tmp is written at its own path, and the host's
    /tmp stays closed: nothing can be mounted here.  Raises SandboxUnavailable.
    """
    abi = ruleset.abi_version()
    if abi < ruleset.LOWEST_ABI:
        raise SandboxUnavailable(
            f"{why}; Landlock cannot take its place either, for this kernel has version {abi} of"
            f" it and {ruleset.LOWEST_ABI} is needed"
        )
    env = command.env
    own = profile.private_tmp
    if own is not None:
        added = (*profile.rules, Rule(own, Access.WRITE))
        shared = (*profile.shared, own)
        profile = profile._replace(rules=added, shared=shared, private_tmp=None)
        env = {**env, b"TMPDIR": own}
    rules = rules_of(profile)
    if isinstance(rules, Refusal):
        raise SandboxUnavailable(
            f"{why}; Landlock, which this machine has, cannot hold this profile: {rules.reason}"
        )
    writable = rules.writable
    machine = os.uname().machine
    filters = (seccomp_filter.program(machine, unix_sockets=False), process_filter.program(machine))
    asked = program.request(
        rules, abi, filters, command.argv, command.cwd, env, command.arg0, lasting=lasting
    )
    fd = memory_file.of("handrail-sandbox", asked)
    argv = (sys.executable, "-I", "-S", "-B", program.__file__, str(_REQUEST_FD))
    return SandboxedCommand(
        tuple(map(os.fsencode, argv)),
        b"/",
        _ENV,
        ((_REQUEST_FD, fd),),
        LANDLOCK,
        closing=[fd],
        reason=str(why),
        may_write=lambda path: any(within(path, root) for root in writable),
    )
