"""What is mounted on the machine while a command runs does not come to be in its sandbox."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox.bwrap import command, private_mounts_stub
from handrail.sandbox.profile import Access, Entry, Intent, Machine, Profile, resolve
from tests.support.sandboxes import Held, holding

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not seccomp_spawn.startable(), reason="there is none for it"
)

#: Runs in a mount namespace of its own, in which everything spreads.
SCRIPT = """
import os, subprocess, sys, tempfile
from pathlib import Path
from tests.support.sandboxes import holding, spawn
from tests.sandbox.bwrap.test_private_mounts_stub import profile
place, ws = Path(sys.argv[1]) / "later", Path(sys.argv[1]) / "ws"
place.mkdir(); ws.mkdir(); os.mkfifo(ws / "go"); os.mkfifo(ws / "ready")
script = "echo > ready; read x < go; echo x > ../later/made && echo wrote"
with holding() as held, tempfile.TemporaryFile() as output:
    made = held.wrap(profile(ws), ["/bin/sh", "-c", script], os.fsencode(ws))
    pid = spawn(made, output.fileno())
    made.running.sent()
    (ws / "ready").read_text()
    subprocess.run(["mount", "-t", "tmpfs", "x", place], check=True)
    (ws / "go").write_text("x\\n")
    os.waitpid(pid, 0)
    made.running.wait()
    print(os.pread(output.fileno(), 999, 0).decode(), os.listdir(place))
"""


def profile(ws: Path) -> Profile:
    entries = (Entry(Access.READ, special="root"), Entry(Access.WRITE, special="project_roots"))
    root = os.fsencode(ws)
    return resolve(Intent(entries=entries, workspace_roots=(root,)), root, Machine())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    monkeypatch.setattr(command, "receives_mounts", lambda table: True)
    with holding() as made:
        if not made.bwrap.apart:
            pytest.skip("this machine does not let us")
        yield made


@pytest.fixture
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="handrail-apart-", dir="/var/tmp"))
    yield made
    shutil.rmtree(made)


def test_the_command_is_as_ever(held: Held, place: Path) -> None:
    script = """
import os, socket
print(os.getuid(), os.getgid(), len(os.listdir("/proc/self/fd")) <= int(os.environ.get("N", 9)))
s = socket.socket(socket.AF_UNIX); s.bind("in"); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect("in")
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.send(b"x"); print(b.recv(9))
os.mkdir("made"); os._exit(7)
"""
    argv = ["/usr/bin/python3", "-uc", script]
    code, said = held.run(profile(place), argv, os.fsencode(place))
    assert (code, said.split()) == (
        7,
        [b"%d" % os.getuid(), b"%d" % os.getgid(), b"True", b"b'x'"],
    )
    assert (place / "made").stat().st_uid == os.getuid()
    assert held.run(profile(place), ["/bin/sh", "-c", "ls /proc/self/fd/8"])[0] != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to mount something")
def test_what_is_mounted_later_stays_outside(place: Path) -> None:
    words = ["unshare", "-m", "--propagation", "shared"]
    probe = [*words, "sh", "-c", f"mount -t tmpfs x {place}"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("mounts cannot be made here")
    path = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    done = subprocess.run(
        [*words, sys.executable, "-c", SCRIPT, str(place)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"wrote" not in done.stdout
    assert done.stdout.endswith(b" []\n")


@pytest.mark.parametrize("uid", [0, 1000])
def test_it_says_what_failed_and_runs_nothing(place: Path, uid: int) -> None:
    """Under a filter that refuses namespaces, as in some containers."""
    program = place / "apart"
    program.write_bytes(private_mounts_stub.elf(uid, uid, 9))
    program.chmod(0o755)
    limit = "import resource, os, sys; sys.path.insert(0, sys.argv[3])\n"
    limit += "from handrail.sandbox.landlock import program\n"
    limit += "from handrail.sandbox.syscalls import seccomp_filter\n"
    limit += "program.drop_privileges()\n"
    limit += (
        "program.install_filter(seccomp_filter.program(os.uname().machine, unix_sockets=False))\n"
    )
    limit += "os.execv(sys.argv[1], [sys.argv[1], '/usr/bin/touch', sys.argv[2]])"
    source = str(Path(private_mounts_stub.__file__).parents[3])
    words = [sys.executable, "-c", limit, str(program), str(place / "made"), source]
    done = subprocess.run(words, capture_output=True, check=False)
    assert os.strerror(done.returncode) == "Operation not permitted"
    assert not (place / "made").exists()
