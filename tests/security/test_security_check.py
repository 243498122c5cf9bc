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
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECK = HERE / "check" / "security_check.py"
DOCS = HERE.parents[1] / "docs"
#: Cases run one after the other within a group; groups run beside each other.
GROUPS = ("C1", "C2 H1", "H2 H3 H4 M1 M2", "M3 M4 M5 M6", "M7", "M8 M9 M10 M11", "L")


def _cases() -> list[str]:
    return re.findall(r'^@case\("([^"]+)"', CHECK.read_text(), re.MULTILINE)


def _group_of(case: str) -> str | None:
    family = case.partition(".")[0]
    return next(
        (group for group in GROUPS if {family, family[0]} & set(group.split())),
        None,
    )


def test_every_case_is_in_a_group() -> None:
    assert [case for case in _cases() if _group_of(case) is None] == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: two users, mounts, network namespaces")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("group", GROUPS)
def test_no_attack_works(group: str, user: int) -> None:
    wanted = [case for case in _cases() if _group_of(case) == group]
    words = ["--handrail", str(Path(sys.executable).with_name("handrail")), "--docs", str(DOCS)]
    done = subprocess.run(
        [sys.executable, str(CHECK), *words, "--as-user", str(user), "--only", ",".join(wanted)],
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
