"""Running something as an ordinary user, also where the tests themselves are root's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

#: Nobody needs to exist under this number.
UID = 1000


def ordinary(path: Path) -> tuple[str, ...]:
    """What to put before a command so that it runs as an ordinary user, who then owns ``path``.

    Skips the test where root cannot become one.
    """
    path.mkdir(mode=0o700)
    if os.getuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root without setpriv cannot run anything as an ordinary user")
    os.chown(path, UID, UID)
    # The way down to it, which pytest keeps to itself.
    for parent in path.parents:
        if parent.stat().st_uid == 0 and "pytest" in parent.name:
            parent.chmod(parent.stat().st_mode | 0o011)
    # It may read, and no more: the interpreter may be installed where only root can look.
    reads = "+dac_read_search"
    number = str(UID)
    return (
        *(setpriv, "--reuid", number, "--regid", number, "--clear-groups"),
        *("--inh-caps", reads, "--ambient-caps", reads),
    )
