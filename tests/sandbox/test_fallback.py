"""Landlock in the place of bubblewrap: for which profiles, and never in silence."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.errors import SandboxUnavailable
from handrail.process.spec import ProcessSpec
from handrail.sandbox import fallback, landlock
from handrail.sandbox.landlock import Refusal, Rules
from handrail.sandbox.profile import Access, Glob, Profile, Rule

WHY = SandboxUnavailable("no user namespaces here")
ROOT = Rule(b"/", Access.READ)

needs_landlock = pytest.mark.skipif(
    landlock.abi_version() < landlock.LOWEST_ABI, reason="this kernel has no Landlock to speak of"
)


def profile(*rules: Rule, **members: object) -> Profile:
    return Profile(rules=rules, **members)  # type: ignore[arg-type]


def test_reading_everything_can_be_held() -> None:
    assert fallback.rules_of(profile(ROOT)) == Rules((b"/",), ())


def test_a_writable_root_can_be_held_only_without_anything_protected(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    found = fallback.rules_of(profile(ROOT, Rule(root, Access.WRITE)))
    assert isinstance(found, Refusal)
    assert ".git" in found.reason
    found = fallback.rules_of(profile(ROOT, Rule(root, Access.WRITE), protected=()))
    assert found == Rules((b"/",), (root,))
    named = [Rule(root + b"/" + name, Access.WRITE) for name in (b".git", b".agents", b".codex")]
    found = fallback.rules_of(profile(ROOT, Rule(root, Access.WRITE), *named))
    assert found == Rules((b"/",), (root,))  # what is missing is not there to be written


def test_a_shared_directory_has_nothing_to_protect_unless_it_is_there(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    given = profile(ROOT, Rule(root, Access.WRITE), shared=(root,))
    assert fallback.rules_of(given) == Rules((b"/",), (root,))
    (tmp_path / ".git").mkdir()
    assert isinstance(fallback.rules_of(given), Refusal)


def test_a_repository_further_down_cannot_be_held(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    repository = tmp_path / "a" / "b" / ".git"
    (repository / "hooks").mkdir(parents=True)
    named = [Rule(root + b"/" + name, Access.WRITE) for name in (b".git", b".agents", b".codex")]
    for given in (
        profile(ROOT, Rule(root, Access.WRITE), shared=(root,)),
        profile(ROOT, Rule(root, Access.WRITE), *named),
    ):
        found = fallback.rules_of(given)
        assert isinstance(found, Refusal)
        assert str(repository) in found.reason
    opened = Rule(os.fsencode(repository), Access.WRITE)
    given = profile(ROOT, Rule(root, Access.WRITE), opened, shared=(root,))
    assert isinstance(fallback.rules_of(given), Rules)


@pytest.mark.parametrize(
    "given",
    [
        profile(ROOT, network=True),
        profile(ROOT, Rule(b"/etc", Access.DENY)),
        profile(ROOT, globs=(Glob(b"/", "**/*.env"),)),
    ],
)
def test_what_cannot_be_held_is_refused_with_both_reasons(given: Profile) -> None:
    assert isinstance(fallback.rules_of(given), Refusal)
    with pytest.raises(SandboxUnavailable, match="no user namespaces here; Landlock"):
        fallback.contain(ProcessSpec((b"true",), b"/", {}), given, WHY)


def test_a_kernel_without_it_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi_version", lambda: 0)
    with pytest.raises(SandboxUnavailable, match="version 0 of it"):
        fallback.contain(ProcessSpec((b"true",), b"/", {}), profile(ROOT), WHY)


@needs_landlock
def test_nothing_of_the_request_is_in_the_helper_itself() -> None:
    env = {b"LD_PRELOAD": b"/evil.so", b"PYTHONPATH": b"/evil"}
    spec = ProcessSpec((b"ls", b"-l"), b"/usr", env, tty=True, arg0=b"name")
    held, fd = fallback.contain(spec, profile(ROOT), WHY)
    try:
        assert held.env == {b"PATH": b"/usr/bin:/bin"}
        assert (held.cwd, held.tty, held.arg0, held.containment) == (b"/", True, None, None)
        assert b"ls" not in held.argv
        assert held.passed == ((3, fd),)
        assert b"/evil.so" in os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)


@needs_landlock
def test_no_socket_but_a_pair() -> None:
    assert platform.machine() in ("x86_64", "aarch64")
    code = (
        "import socket\n"
        "for family in (socket.AF_INET, socket.AF_UNIX, socket.AF_NETLINK):\n"
        "    try: socket.socket(family, socket.SOCK_DGRAM); print('made', family)\n"
        "    except PermissionError: pass\n"
        # One of a pair of these could be sent to a socket of the host.
        "for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):\n"
        "    try: socket.socketpair(socket.AF_UNIX, kind); print('made', kind)\n"
        "    except PermissionError: pass\n"
        "a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))\n"
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "for made in (libc.shmget(7, 99, 0o1600), libc.semget(7, 1, 0o1600),"
        " libc.msgget(7, 0o1600)):\n"
        "    if made >= 0 or ctypes.get_errno() != 1: print('made', made)\n"
    )
    spec = ProcessSpec((os.fsencode(sys.executable), b"-c", os.fsencode(code)), b"/", {})
    held, fd = fallback.contain(spec, profile(ROOT), WHY)
    try:
        os.set_inheritable(fd, True)
        argv = [*held.argv[:-1], b"%d" % fd]
        done = subprocess.run(argv, pass_fds=[fd], capture_output=True, timeout=30, check=False)
    finally:
        os.close(fd)
    assert (done.stdout, done.stderr) == (b"b'x'\n", b"")


@needs_landlock
def test_one_command_on_the_command_line(tmp_path: Path) -> None:
    """``handrail sandbox`` where bubblewrap is missing."""
    code = (
        "import sys\n"
        "from handrail.sandbox import probe\n"
        "probe.BWRAP_PLACES = ()\n"
        "from handrail.cli.sandbox import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )

    def handrail(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    done = handrail("--profile", "read-only", "--", "sh", "-c", "echo in; echo x > new")
    assert (done.returncode, done.stdout) == (2, "in\n")
    assert "held by Landlock instead" in done.stderr
    done = handrail("--", "touch", "new")
    assert done.returncode == 125
    assert "Landlock" in done.stderr
    assert os.listdir(tmp_path) == []
