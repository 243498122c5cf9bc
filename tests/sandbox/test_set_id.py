"""Commands in a real sandbox leave no program that runs with other rights than its caller's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.errors import SandboxUnavailable
from handrail.sandbox.landlock import backend, ruleset
from handrail.sandbox.profile import Access, Entry, Intent, Machine, Profile, Rule, resolve
from handrail.sandbox.sandboxed_command import Command
from tests.support.sandboxes import ENV, Held

#: Every way to a mode, each of which says what the kernel said.
ATTEMPTS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (268, 452, 437), "aarch64": (53, 452, 437)}[os.uname().machine]
def call(*arguments):
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def attempt(name, function, *arguments, **named):
    try:
        function(*arguments, **named)
        print(name, "done")
    except OSError as error:
        print(name, error.errno)
os.umask(0)
for bit in (0o4755, 0o2755, 0o6755):
    open("f", "w").close()
    attempt("chmod", os.chmod, "f", bit)
    fd = os.open("f", os.O_RDONLY)
    attempt("fchmod", os.fchmod, fd, bit)
    attempt("fchmodat", call, numbers[0], -100, b"f", bit, 0)
    attempt("fchmodat2", call, numbers[1], -100, b"f", bit, 0)
    attempt("open", os.open, "g%o" % bit, os.O_CREAT | os.O_WRONLY, bit)
    attempt("tmpfile", os.open, ".", os.O_TMPFILE | os.O_RDWR, bit)
    attempt("mknod", os.mknod, "h%o" % bit, 0o100000 | bit)
    attempt("mkfifo", os.mkfifo, "i%o" % bit, bit)
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, bit, 0)
    attempt("openat2", call, numbers[2], -100, b"j%o" % bit, how, 24)
"""
#: What programs do every day.
ORDINARY = """
set -e
umask 022
cp /bin/true a; chmod 755 a; ./a; chmod u+x,g-w a; chmod -R a+rX .
mkdir d; chmod 1777 d; mkdir -m 700 e; install -m 755 /bin/true b; install -d -m 755 x/y
cp -p /bin/true c; cp -a d d2; touch f; mkfifo p
tar -cf t.tar a b d; mkdir out; tar -xpf t.tar -C out; ./out/a
mktemp -p . >/dev/null
echo works
"""


def writable(root: Path) -> Profile:
    entries = (Entry(Access.READ, special="root"), Entry(Access.WRITE, path=os.fsencode(root)))
    return resolve(Intent(entries=entries), os.fsencode(root), Machine())


def marked(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*") if path.lstat().st_mode & 0o6000]


def refused(said: bytes) -> None:
    lines = said.decode().splitlines()
    assert len(lines) == 27, said
    for line in lines:
        name, number = line.split()
        assert number == ("38" if name == "openat2" else "1"), line


@pytest.mark.parametrize("watch", [False, True], ids=["plain", "watched"])
def test_no_set_id_bit_is_left_in_the_workspace(held: Held, tmp_path: Path, watch: bool) -> None:
    command = [sys.executable, "-I", "-c", ATTEMPTS]
    code, said = held.run(writable(tmp_path), command, os.fsencode(tmp_path), watch=watch)
    assert code == 0, said
    refused(said)
    assert marked(tmp_path) == []


@pytest.mark.parametrize("watch", [False, True], ids=["plain", "watched"])
def test_ordinary_modes_are_set_as_ever(held: Held, tmp_path: Path, watch: bool) -> None:
    command = ["/bin/sh", "-c", ORDINARY]
    code, said = held.run(writable(tmp_path), command, os.fsencode(tmp_path), watch=watch)
    assert (code, said) == (0, b"works\n")


@pytest.mark.skipif(
    ruleset.abi_version() < ruleset.LOWEST_ABI, reason="this kernel has no Landlock to speak of"
)
def test_the_same_holds_under_landlock(tmp_path: Path) -> None:
    rules = (Rule(b"/", Access.READ), Rule(os.fsencode(tmp_path), Access.WRITE))
    command = (os.fsencode(sys.executable), b"-I", b"-c", ATTEMPTS.encode())
    asked = Command(command, os.fsencode(tmp_path), ENV)
    why = SandboxUnavailable("no user namespaces here")
    made = backend.wrap(asked, Profile(rules=rules, protected=()), why)
    ((_, fd),) = made.passed
    try:
        argv = [*made.argv[:-1], b"%d" % fd]
        done = subprocess.run(argv, pass_fds=[fd], capture_output=True, timeout=30, check=False)
    finally:
        made.sent()
    assert done.stderr == b""
    refused(done.stdout)
    assert marked(tmp_path) == []
