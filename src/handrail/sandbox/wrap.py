"""A spec and a plan make a spec that runs bwrap.

bwrap is started with an environment of its own, in the root directory, by an absolute path; what
the request brought along is in the arguments it reads from a descriptor.
"""

from __future__ import annotations

import os
from dataclasses import replace

from handrail.process.spec import ProcessSpec
from handrail.sandbox import seccomp
from handrail.sandbox.bubblewrap import (
    ARGS_FD,
    INFO_FD,
    SECCOMP_FD,
    SYNC_FD,
    environment_arguments,
    namespace_arguments,
)
from handrail.sandbox.inside import Inside
from handrail.sandbox.masks import Registry
from handrail.sandbox.plan import Plan
from handrail.sandbox.probe import Bubblewrap

#: All that bwrap itself gets to see.
_ENV = {b"PATH": b"/usr/bin:/bin"}
_SETSID = (b"/usr/bin/setsid", b"/bin/setsid")
_filters: dict[bool, int] = {}


def wrap(spec: ProcessSpec, plan: Plan, bwrap: Bubblewrap, registry: Registry) -> ProcessSpec:
    """The spec to start instead; its ``containment`` says when its descriptors were sent.

    Raises Refused, or Stale when the plan has to be made anew.
    """
    arguments = [
        *namespace_arguments(network=plan.profile.network),
        *plan.arguments,
        *environment_arguments(spec.env),
        b"--chdir",
        spec.cwd,
        b"--seccomp",
        b"%d" % SECCOMP_FD,
        b"--info-fd",
        b"%d" % INFO_FD,
    ]
    command = spec.argv
    if spec.arg0 is not None and spec.arg0 != spec.argv[0]:
        if bwrap.argv0:
            arguments += [b"--argv0", spec.arg0]
        else:
            # -p: whatever BASH_ENV names is not read.
            script = b'exec -a "$0" -- "$@"'
            command = (b"/bin/bash", b"-p", b"-c", script, spec.arg0, *spec.argv)
    if spec.tty:
        # The terminal becomes the command's own, in a session of its own.
        command = (_setsid(), b"-c", *command)
    lease = registry.acquire(plan.masks) if plan.masks else None
    closing: list[int] = []
    passed = list(plan.passed)
    try:
        if lease is not None:
            arguments += [b"--sync-fd", b"%d" % SYNC_FD]
            passed.append((SYNC_FD, lease.fd))
        filter_fd = _filter(unix_sockets=not plan.profile.network)
        closing.append(filter_fd)
        args_fd = _memory(b"\0".join(arguments) + b"\0")
        closing.append(args_fd)
        info, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        closing.append(said)
    except BaseException:
        for fd in closing:
            os.close(fd)
        if lease is not None:
            lease.release()
        raise
    passed += [(ARGS_FD, args_fd), (SECCOMP_FD, filter_fd), (INFO_FD, said)]
    return replace(
        spec,
        argv=(os.fsencode(bwrap.path), b"--args", b"%d" % ARGS_FD, b"--", *command),
        cwd=b"/",
        env=_ENV,
        arg0=None,
        passed=tuple(passed),
        containment=Inside(info, tuple(closing), lease, spec.tty),
    )


def _setsid() -> bytes:
    for place in _SETSID:
        if os.path.exists(place):
            return place
    return b"setsid"


def _filter(*, unix_sockets: bool) -> int:
    """The filter program to be read from the beginning: each reader needs a position of its own."""
    fd = _filters.get(unix_sockets)
    if fd is None:
        text = seccomp.program(os.uname().machine, unix_sockets=unix_sockets)
        fd = _filters[unix_sockets] = _memory(text)
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def forget_filters() -> None:
    """Let go of the programs that are kept for the next command."""
    while _filters:
        os.close(_filters.popitem()[1])


def _memory(text: bytes) -> int:
    fd = os.memfd_create("handrail-sandbox", os.MFD_CLOEXEC)
    view = memoryview(text)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
