"""Landlock in place of bubblewrap, for profiles it can hold and machines that need it.

Used only when bubblewrap cannot work here, and never in silence: the reply names what held, and a
profile that asks for more than Landlock can do is refused with both reasons.  The command is no
other than the one asked for: ``helper.py`` restricts itself and becomes it, so terminals, signals
and exit codes are as without a sandbox.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from dataclasses import replace
from typing import NoReturn

from handrail import unnamed_file
from handrail.errors import SandboxUnavailable
from handrail.process.spec import ProcessSpec
from handrail.sandbox import helper, landlock, seccomp
from handrail.sandbox.landlock import Refusal, Rules
from handrail.sandbox.profile import Access, Profile
from handrail.sandbox.repositories import RepositoryIndex

BACKEND = "landlock"

_WORDS = {Access.READ: "read", Access.WRITE: "write", Access.DENY: "deny"}
#: The number under which the helper finds what to do.
_REQUEST_FD = 3
_ENV = {b"PATH": b"/usr/bin:/bin"}
#: socket, and what of System V and POSIX the whole machine shares: shmget, shmat, shmctl, semget,
#: semop, semctl, semtimedop, msgget, msgsnd, msgrcv, msgctl, mq_open, mq_unlink.
_SHARED = {
    "x86_64": (41, 29, 30, 31, 64, 65, 66, 220, 68, 69, 70, 71, 240, 241),
    "aarch64": (198, 194, 196, 195, 190, 193, 191, 192, 186, 189, 188, 187, 180, 181),
}


def rules_of(profile: Profile) -> Rules | Refusal:
    """What Landlock can make of a profile that is bound to this machine."""
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
    entries = [entry for entry in entries if entry[1] != "read" or _matters(entry[0], entries)]
    return landlock.rules_for(entries, "enabled" if profile.network else "restricted")


def _nested(root: bytes, profile: Profile) -> tuple[bytes, ...]:
    """The repositories below a root, and what else would have to be protected there."""
    if b".git" not in profile.protected or root == b"/":
        return ()
    found = RepositoryIndex(root, shared=root in profile.shared).refresh()
    return tuple(path or root + b"/..." for path in found)  # or more than can be looked at


def _matters(path: bytes, entries: list[tuple[bytes, str]]) -> bool:
    """A place that is missing needs no rule, unless it must not come into being."""
    if os.path.exists(path):
        return True
    return any(a == "write" and path.startswith(p.rstrip(b"/") + b"/") for p, a in entries)


def nothing_shared(machine: str) -> bytes:
    """A filter that refuses every socket but pairs, and shared memory by number.

    Those of the host are in reach here.
    """
    refuse = 0x00050000 | errno.EPERM
    steps = [(0x20, 0, 0, 0)]  # load the number of the call
    for number in _SHARED[machine]:
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, refuse)]
    steps.append((0x06, 0, 0, 0x7FFF0000))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def become(
    argv: tuple[bytes, ...],
    cwd: bytes,
    env: dict[bytes, bytes],
    profile: Profile,
    why: SandboxUnavailable,
) -> NoReturn:
    """Turn this process into the command, held by Landlock; raises SandboxUnavailable."""
    held, fd = contain(ProcessSpec(argv, cwd, env), profile, why)
    # Never in silence: it holds less than what was expected.
    sys.stderr.write(f"handrail sandbox: {why}; held by Landlock instead\n")
    sys.stderr.flush()
    if fd != _REQUEST_FD:
        os.dup2(fd, _REQUEST_FD)
        os.close(fd)
    os.set_inheritable(_REQUEST_FD, True)
    os.chdir(held.cwd)
    os.execve(held.argv[0], held.argv, held.env)


def contain(
    spec: ProcessSpec, profile: Profile, why: SandboxUnavailable, *, lasting: bool = False
) -> tuple[ProcessSpec, int]:
    """The spec to start instead, and a descriptor to close when it was sent.

    ``why`` says what keeps bubblewrap from working; ``lasting``: it outlives whoever starts it.
    Raises SandboxUnavailable.
    """
    abi = landlock.abi_version()
    if abi < landlock.LOWEST_ABI:
        raise SandboxUnavailable(
            f"{why}; Landlock cannot take its place either, for this kernel has version {abi} of"
            f" it and {landlock.LOWEST_ABI} is needed"
        )
    rules = rules_of(profile)
    if isinstance(rules, Refusal):
        raise SandboxUnavailable(
            f"{why}; Landlock, which this machine has, cannot hold this profile: {rules.reason}"
        )
    machine = os.uname().machine
    filters = (seccomp.program(machine, unix_sockets=False), nothing_shared(machine))
    asked = helper.request(
        rules, abi, filters, spec.argv, spec.cwd, spec.env, spec.arg0, lasting=lasting
    )
    fd = unnamed_file.create("handrail-landlock")
    view = memoryview(asked)
    while view:
        view = view[os.write(fd, view) :]
    argv = (sys.executable, "-I", "-S", "-B", helper.__file__, str(_REQUEST_FD))
    wrapped = replace(
        spec,
        asked=spec.command,
        argv=tuple(os.fsencode(word) for word in argv),
        arg0=None,
        cwd=b"/",
        env=_ENV,
        passed=(*spec.passed, (_REQUEST_FD, fd)),
    )
    return wrapped, fd
