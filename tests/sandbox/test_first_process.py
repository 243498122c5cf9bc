"""The first process inside is bwrap's own: nobody in there takes it over, or gains by it."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

import pytest

from handrail.sandbox.plan import mounts
from handrail.sandbox.profile import Access, Entry, Intent, Machine, Profile, resolve
from tests.support.eventually import eventually
from tests.support.sandboxes import Held

#: prctl(PR_SET_PDEATHSIG, 0); tell bwrap outside that the command exited with 0; then, thirty
#: times every 20 ms: go to the directory whose name follows, make .git, .git/hooks, a hook in it
#: and a file `late`.
LIVE_ON = bytes.fromhex(
    "b89d000000bf0100000031f631d24d31d24d31c00f054883ec4048c7042401000000b801000000bf080000004889e6"
    "ba080000000f0541bf0000000048c704240000000048c7442408002d3101b8230000004889e731f60f05b850000000"
    "488d3d9a0000000f05b853000000488d3d60000000beed0100000f05b853000000488d3d52000000beed0100000f05"
    "b802000000488d3d4a000000be41000000baed0100000f05b802000000488d3d49000000be41000000baed0100000f"
    "0541ffc74183ff1e0f8c72ffffffb83c00000031ff0f052e676974002e6769742f686f6f6b73002e6769742f686f6f"
    "6b732f706f73742d636f6d6d6974006c61746500"
)
TAKE_OVER = """
import os, sys
print(os.stat("/proc/self/ns/pid").st_ino, flush=True)
place = int(open("/proc/1/syscall").read().split()[-1], 16)
os.pwrite(os.open("/proc/1/mem", os.O_RDWR), bytes.fromhex(sys.argv[1]), place)
print("taken over")
"""


def profile(ws: Path) -> Profile:
    entries = (Entry(Access.READ, special="root"), Entry(Access.WRITE, special="project_roots"))
    root = os.fsencode(ws)
    return resolve(Intent(entries=entries, workspace_roots=(root,)), root, Machine())


def run(held: Held, ws: Path, *argv: str) -> tuple[int, bytes]:
    return held.run(profile(ws), list(argv), os.fsencode(ws))


def test_it_cannot_be_looked_into(held: Held, ws: Path) -> None:
    script = (
        "ls -A /proc/1 /proc/self/root/proc/1 | grep -v :; cat /proc/1/task/1/stat /proc/1/fd/6"
    )
    assert b"No such file" in run(held, ws, "/bin/sh", "-c", script)[1]
    code, said = run(held, ws, "/bin/sh", "-c", "ls -A /proc/1/ && ps -e && ls /proc/2/fd")
    assert (code, said.split()[:4]) == (0, [b"PID", b"TTY", b"TIME", b"CMD"])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is for x86_64")
@pytest.mark.parametrize("covered", [True, False], ids=["covered", "open"])
def test_it_does_not_outlive_its_sandbox(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch, covered: bool
) -> None:
    """Covered it cannot be taken over; and if it could, it would be killed in time."""
    if not covered:
        monkeypatch.setattr(mounts, "FIRST_PROCESS", b"/proc/irq")
    code = LIVE_ON + os.fsencode(ws) + b"\0"
    _, said = run(held, ws, "/usr/bin/python3", "-c", TAKE_OVER, code.hex())
    assert (b"taken over" in said) is not covered
    (ws / "late").unlink(missing_ok=True)  # made while bwrap was still ending: no harm in that
    inside = int(said.split()[0])
    eventually(lambda: not _processes_in(inside), "a process is left in the sandbox")
    assert os.listdir(ws) == []


def _processes_in(namespace: int) -> list[int]:
    """The processes that run in a namespace of process ids, as far as they may be looked at."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{name}/ns/pid").st_ino == namespace:
                os.readlink(f"/proc/{name}/exe")  # one that has ended has none
                found.append(int(name))
    return found
