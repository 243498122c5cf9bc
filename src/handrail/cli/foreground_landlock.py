"""One command under Landlock in the foreground, for ``handrail sandbox`` without namespaces."""

from __future__ import annotations

import os
import sys

from handrail.cli.foreground_sandbox import copies_of, exit_code
from handrail.errors import SandboxUnavailable
from handrail.process.foreground.run import Foreground
from handrail.process.spec import ProcessSpec
from handrail.sandbox.landlock import backend
from handrail.sandbox.profile import Profile


def run(
    argv: tuple[bytes, ...],
    cwd: bytes,
    env: dict[bytes, bytes],
    profile: Profile,
    why: SandboxUnavailable,
) -> int:
    """Become the command, or run it to its end if streams are copied; then its exit code.

    Raises SandboxUnavailable, and then nothing was run.
    """
    held, fd = backend.contain(ProcessSpec(argv, cwd, env), profile, why)
    # Never in silence: it holds less than what was expected.
    sys.stderr.write(f"handrail sandbox: {why}; held by Landlock instead\n")
    sys.stderr.flush()
    copies = copies_of(range(3), lambda path: backend.may_write(profile, path))
    if copies is None:
        backend.become(held, fd)
    foreground = Foreground()
    try:
        foreground.start_copied(held.argv, held.env, held.passed, copies)
    except OSError as error:
        raise SandboxUnavailable(f"Landlock's helper does not start: {error.strerror}") from error
    os.close(fd)
    return exit_code(foreground.attend(None), copies)
