"""A directory whose owner may not look into it hides nothing from the plan for long."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.profile import Access, Entry
from tests.sandbox.plan.test_path_rules import entry, sh, writable
from tests.support.sandboxes import Held

#: Run as an ordinary user, for root looks into everything.  The modules come first: the
#: interpreter may be root's alone.  A process that changed its ids has to ask for its own /proc.
_ORDINARY = """
import ctypes, os, sys
from pathlib import Path
from handrail.sandbox.plan import globs as globs, path_rules as layout
from handrail.sandbox.profile import Access, Entry
from tests.support.sandboxes import holding
from tests.sandbox.plan.test_path_rules import entry, sh, writable
with holding() as held:
    held.run(writable(Path("/var/tmp/handrail-none")), ["/bin/true"])
os.setgroups([]); os.setgid(1000); os.setuid(1000)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
ws, kind, script = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
rules = {
    "none": (),
    "path": (entry(Access.DENY, ws / "a" / "sub" / "secret"),),
    "glob": (Entry(Access.DENY, glob="**/secret"),),
}[kind]
with holding() as held:
    for part in script.split("|"):
        print(sh(held, writable(ws, *rules), ws, part))
"""


@pytest.fixture
def opened(ws: Path) -> Iterator[Path]:
    yield ws
    subprocess.run(["chmod", "-R", "u+rwx", ws], check=True)


def ordinary(ws: Path, kind: str, script: str) -> str:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    subprocess.run(["chown", "-R", "1000:1000", ws], check=True)
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _ORDINARY, ws, kind, script],
        env={**os.environ, "PYTHONPATH": f"{here}/src:{here}", "TMPDIR": "/tmp", "HOME": "/"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MODES = ["000", "300", "600"]


@pytest.mark.parametrize("mode", MODES)
def test_a_closed_directory_keeps_its_repository(held: Held, opened: Path, mode: str) -> None:
    subprocess.run(["git", "init", "-q", opened / "inner"], check=True)
    profile = writable(opened)
    assert sh(held, profile, opened, f"chmod {mode} inner")[0] == 0
    held.planner.forget(profile)
    script = "chmod 755 inner; mv inner other; echo EVIL > inner/.git/hooks/pre-commit; echo y > f"
    _, said = sh(held, profile, opened, script)
    (opened / "inner").chmod(0o755)
    assert not (opened / "inner" / ".git" / "hooks" / "pre-commit").exists(), said
    assert (opened / "f").exists()
    assert sh(held, profile, opened, "echo y > inner/f") == (0, "")


@pytest.mark.parametrize("mode", MODES)
def test_the_same_for_an_ordinary_user(opened: Path, mode: str) -> None:
    subprocess.run(["git", "init", "-q", opened / "a" / "inner"], check=True)
    script = f"chmod {mode} a|chmod 755 a; mv a b; echo EVIL > a/inner/.git/config; echo y > f"
    said = ordinary(opened, "none", script)
    (opened / "a").chmod(0o755)
    assert "EVIL" not in (opened / "a" / "inner" / ".git" / "config").read_text(), said
    assert (opened / "f").exists()


@pytest.mark.parametrize("kind", ["path", "glob"])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_denied_in_there_stays_denied(opened: Path, kind: str, mode: str) -> None:
    (opened / "a" / "sub").mkdir(parents=True)
    (opened / "a" / "sub" / "secret").write_text("TOPSECRET")
    script = f"chmod {mode} a|chmod 755 a; mv a b; cat a/sub/secret b/sub/secret"
    assert "TOPSECRET" not in ordinary(opened, kind, script)


@pytest.mark.parametrize("kind", ["path", "glob"])
def test_and_for_root(held: Held, opened: Path, kind: str) -> None:
    (opened / "a" / "sub").mkdir(parents=True)
    (opened / "a" / "sub" / "secret").write_text("TOPSECRET")
    rule = (
        entry(Access.DENY, opened / "a" / "sub" / "secret")
        if kind == "path"
        else Entry(Access.DENY, glob="**/secret")
    )
    profile = writable(opened, rule)
    (opened / "a").chmod(0)
    _, said = sh(held, profile, opened, "chmod 755 a; cat a/sub/secret; mv a b; cat b/sub/secret")
    assert "TOPSECRET" not in said


def test_a_closed_root_is_refused(held: Held, opened: Path) -> None:
    opened.chmod(0)
    with pytest.raises(Refused, match="chmod"):
        held.planner.plan(writable(opened))
