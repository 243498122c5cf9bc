"""The programs of sandboxes that wait, in files of memory that no process can change."""

from __future__ import annotations

import fcntl
import os

from handrail.keeper import waiting_stub
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox.bwrap.arguments import LINE_FD, READY_FD, STUB_FD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.warm.copy_program import Copy

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def stub() -> int:
    """Make the one that becomes a command: all sandboxes share it."""
    return sealed("handrail-stub", waiting_stub.elf(READY_FD, LINE_FD, STUB_FD))


def copier(copy: Copy) -> int:
    """Make the one that makes such copies of a template."""
    from handrail.sandbox.warm import copy_program  # not for a file helper

    return sealed("handrail-copy", copy_program.elf(copy))


def sealed(name: str, text: bytes) -> int:
    """A program that no process can change."""
    fd = seccomp_spawn.executable(name, text, os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
