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
from handrail.sandbox.landlock import backend, ruleset
from handrail.sandbox.landlock.ruleset import Refusal, Rules
from handrail.sandbox.profile import Access, Glob, Profile, Rule
from handrail.sandbox.sandboxed_command import Command

WHY = SandboxUnavailable("no user namespaces here")
ROOT = Rule(b"/", Access.READ)

needs_landlock = pytest.mark.skipif(
    ruleset.abi_version() < ruleset.LOWEST_ABI, reason="this kernel has no Landlock to speak of"
)


def profile(*rules: Rule, **members: object) -> Profile:
    return Profile(rules=rules, **members)  # type: ignore[arg-type]


def test_reading_everything_can_be_held() -> None:
    assert backend.rules_of(profile(ROOT)) == Rules((b"/",), ())


def test_a_writable_root_can_be_held_only_without_anything_protected(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    found = backend.rules_of(profile(ROOT, Rule(root, Access.WRITE)))
    assert isinstance(found, Refusal)
    assert ".git" in found.reason
    found = backend.rules_of(profile(ROOT, Rule(root, Access.WRITE), protected=()))
    assert found == Rules((b"/",), (root,))
    named = [Rule(root + b"/" + name, Access.WRITE) for name in (b".git", b".agents", b".codex")]
    found = backend.rules_of(profile(ROOT, Rule(root, Access.WRITE), *named))
    assert found == Rules((b"/",), (root,))  # what is missing is not there to be written


def test_a_shared_directory_has_nothing_to_protect_unless_it_is_there(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    given = profile(ROOT, Rule(root, Access.WRITE), shared=(root,))
    assert backend.rules_of(given) == Rules((b"/",), (root,))
    (tmp_path / ".git").mkdir()
    assert isinstance(backend.rules_of(given), Refusal)


def test_a_repository_further_down_cannot_be_held(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    repository = tmp_path / "a" / "b" / ".git"
    (repository / "hooks").mkdir(parents=True)
    named = [Rule(root + b"/" + name, Access.WRITE) for name in (b".git", b".agents", b".codex")]
    for given in (
        profile(ROOT, Rule(root, Access.WRITE), shared=(root,)),
        profile(ROOT, Rule(root, Access.WRITE), *named),
    ):
        found = backend.rules_of(given)
        assert isinstance(found, Refusal)
        assert str(repository) in found.reason
    opened = Rule(os.fsencode(repository), Access.WRITE)
    given = profile(ROOT, Rule(root, Access.WRITE), opened, shared=(root,))
    assert isinstance(backend.rules_of(given), Rules)


@pytest.mark.parametrize(
    "given",
    [
        profile(ROOT, network=True),
        profile(ROOT, Rule(b"/etc", Access.DENY)),
        profile(ROOT, globs=(Glob(b"/", "**/*.env"),)),
    ],
)
def test_what_cannot_be_held_is_refused_with_both_reasons(given: Profile) -> None:
    assert isinstance(backend.rules_of(given), Refusal)
    with pytest.raises(SandboxUnavailable, match="no user namespaces here; Landlock"):
        backend.wrap(Command((b"true",), b"/", {}), given, WHY)


def test_a_kernel_without_it_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruleset, "abi_version", lambda: 0)
    with pytest.raises(SandboxUnavailable, match="version 0 of it"):
        backend.wrap(Command((b"true",), b"/", {}), profile(ROOT), WHY)


@needs_landlock
def test_nothing_of_the_request_is_in_the_helper_itself() -> None:
    env = {b"LD_PRELOAD": b"/evil.so", b"PYTHONPATH": b"/evil"}
    spec = ProcessSpec((b"ls", b"-l"), b"/usr", env, tty=True, arg0=b"name")
    made = backend.wrap(spec, profile(ROOT), WHY)
    ((number, fd),) = made.passed
    try:
        held = made.spec(spec)
        assert held.env == {b"PATH": b"/usr/bin:/bin"}
        assert (held.cwd, held.tty, held.arg0, held.running_sandbox) == (b"/", True, None, None)
        assert held.command == (spec.argv, spec.cwd)
        assert held.judge is not None
        assert b"ls" not in held.argv
        assert (number, held.passed) == (3, made.passed)
        assert b"/evil.so" in os.pread(fd, 1 << 20, 0)
    finally:
        made.sent()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    made.abandon()  # closes nothing twice


@needs_landlock
def test_a_private_tmp_is_written_at_its_own_path(tmp_path: Path) -> None:
    own = os.fsencode(tmp_path)
    given = profile(ROOT, private_tmp=own)
    made = backend.wrap(Command((b"true",), b"/", {b"TMPDIR": b"/tmp"}), given, WHY)
    asked = os.pread(made.passed[0][1], 1 << 20, 0)
    made.sent()
    assert made.may_write is not None
    assert made.may_write(own + b"/file")
    assert not made.may_write(b"/tmp/file")
    assert b'"TMPDIR": "' + own in asked


def under_landlock(code: str, *words: str, stdin: int = subprocess.DEVNULL) -> str:
    """What a program in Python says that may read everything."""
    command = (sys.executable, "-I", "-c", code, *words)
    asked = Command(tuple(map(os.fsencode, command)), b"/", {b"PATH": b"/usr/bin:/bin"})
    made = backend.wrap(asked, profile(ROOT), WHY)
    ((_, fd),) = made.passed
    try:
        done = subprocess.run(
            [*made.argv[:-1], b"%d" % fd],
            pass_fds=[fd],
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    finally:
        made.sent()
    assert done.stderr == ""
    return done.stdout


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
    assert under_landlock(code) == "b'x'\n"


#: Each call for another process, and for the caller.
REACHING = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
column = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
def attempt(name, numbers, *arguments):
    ctypes.set_errno(0)
    done = libc.syscall(numbers[column], *arguments)
    print(name, "done" if done >= 0 else ctypes.get_errno())
who = int(sys.argv[1])
limits, mask, zero = struct.pack("QQ", 64, 64), struct.pack("Q", 1), struct.pack("i", 0)
attempt("prlimit64", (302, 261), who, 7, limits, None)
attempt("setpriority", (141, 140), 0, who, 19)
attempt("ioprio_set", (251, 30), 1, who, 3 << 13)
attempt("sched_setaffinity", (203, 122), who, 8, mask)
attempt("sched_setscheduler", (144, 119), who, 0, zero)
attempt("sched_setparam", (142, 118), who, zero)
attempt("sched_setattr", (314, 274), who, struct.pack("IIQiIQQQ", 48, 0, 0, 19, 0, 0, 0, 0), 0)
attempt("migrate_pages", (256, 238), who, 1, mask, mask)
attempt("move_pages", (279, 239), who, 0, None, None, None, 0)
if who:
    attempt("group", (141, 140), 1, os.getpgid(who), 19)
    attempt("user", (141, 140), 2, os.getuid(), 19)
    attempt("own group", (141, 140), 1, 0, 19)
    attempt("io group", (251, 30), 2, 0, 3 << 13)
    attempt("io user", (251, 30), 3, 0, 3 << 13)
    pidfd = os.pidfd_open(who)
    attempt("process_madvise", (440, 440), pidfd, None, 0, 20, 0)
    attempt("process_mrelease", (448, 448), pidfd, 0)
"""


@needs_landlock
def test_no_other_process_is_reached_by_its_number() -> None:
    lines = under_landlock(REACHING, str(os.getpid())).splitlines()
    assert len(lines) == 16
    assert [line for line in lines if not line.endswith(" 1")] == []
    lines = under_landlock(REACHING, "0").splitlines()
    assert len(lines) == 9
    # A machine without memory nodes knows no pages to move.
    mine = [line for line in lines if "_pages" not in line]
    assert [line for line in mine if not line.endswith("done")] == []


TERMINAL = """
import os, sys
for how in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
    try:
        os.close(os.open(sys.argv[1], how | os.O_NOCTTY | os.O_NONBLOCK))
        print("opened", end=" ")
    except OSError as error:
        print(error.errno, end=" ")
open("/dev/null", "w").write("x")
open("/dev/urandom", "rb").read(1)
print(open("/etc/passwd").read()[:4], "etc" in os.listdir("/"), "null" in os.listdir("/dev"))
"""


@needs_landlock
def test_only_its_own_terminal_can_be_opened() -> None:
    ours, theirs = os.openpty()
    try:
        name = os.ttyname(theirs)
        assert under_landlock(TERMINAL, name) == "13 13 13 root True True\n"
        said = under_landlock(TERMINAL, name, stdin=theirs)
        assert said == "opened opened opened root True True\n"
    finally:
        os.close(ours)
        os.close(theirs)


@needs_landlock
def test_one_command_on_the_command_line(tmp_path: Path) -> None:
    """``handrail sandbox`` where bubblewrap is missing."""
    code = (
        "import sys\n"
        "from handrail.sandbox import probe\n"
        "probe.BWRAP_PLACES = ()\n"
        "from handrail.cli.commands.sandbox import main\n"
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
    assert "sandboxed by Landlock instead" in done.stderr
    done = handrail("--", "touch", "new")
    assert done.returncode == 125
    assert "Landlock" in done.stderr
    assert os.listdir(tmp_path) == []
