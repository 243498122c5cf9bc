"""Every case of the security check, as root and as an ordinary user.

The check (``check/security_check.py``) makes namespaces of its own, installs a copy of this package
there and attacks it.  A case passes when the attack does not work *and* the ordinary use beside it
does; its ids are explained in docs/threat-model.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHECK = HERE / "check" / "security_check.py"
#: Shows the clone ``$1`` at ``/mnt/clone``, with a Python that takes the package from there, and
#: runs the rest in the mount namespace in which that is so.  The check has a ``/tmp`` of its own: a
#: clone below ``/tmp`` would be out of its sight.
SHOWN = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/clone
mount --bind "$1" /mnt/clone
printf '#!/bin/sh\nPYTHONPATH=/mnt/clone/src exec "%s" "$@"\n' "$2" > /mnt/python
chmod 755 /mnt/python
shift 2
exec "$@"
"""
#: Cases run one after the other within a group, for which the check makes its copy of the package
#: once; groups run beside each other.
GROUPS = ("C1 C2 H1 M8 M9 M10 M11", "H2 H3 H4 M1 M2 M3 M4 M5 M6", "M7", "L")


def _cases() -> list[str]:
    return re.findall(r'^@case\("([^"]+)"', CHECK.read_text(), re.MULTILINE)


def _group_of(case: str) -> str | None:
    family = case.partition(".")[0]
    return next(
        (group for group in GROUPS if {family, family[0]} & set(group.split())),
        None,
    )


def _command() -> list[str]:
    """The check with its options, in a place that it sees when it has its own ``/tmp``."""
    python = Path(sys.executable)
    if not ROOT.resolve().is_relative_to(tempfile.gettempdir()):
        words = ["--handrail", str(python.with_name("handrail")), "--docs", str(ROOT / "docs")]
        return [sys.executable, str(CHECK), *words]
    clone = Path("/mnt/clone")
    inside = clone / python.relative_to(ROOT) if python.is_relative_to(ROOT) else python
    shown = ["unshare", "--mount", "sh", "-c", SHOWN, "sh", str(ROOT), str(inside)]
    words = ["--handrail", str(inside.with_name("handrail")), "--python", "/mnt/python"]
    check = [str(inside), str(clone / CHECK.relative_to(ROOT)), *words]
    return [*shown, *check, "--docs", str(clone / "docs")]


def test_every_case_is_in_a_group() -> None:
    assert [case for case in _cases() if _group_of(case) is None] == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: two users, mounts, network namespaces")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("group", GROUPS)
def test_no_attack_works(group: str, user: int) -> None:
    wanted = [case for case in _cases() if _group_of(case) == group]
    done = subprocess.run(
        [*_command(), "--as-user", str(user), "--only", ",".join(wanted)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = dict(re.findall(r"^(?:PASS|FAIL|SKIP) (\S+) +(.*)$", done.stdout, re.MULTILINE))
    failed = re.findall(r"^FAIL .*$", done.stdout, re.MULTILINE)
    assert not failed, "\n".join(failed)
    assert set(verdicts) == set(wanted), done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
