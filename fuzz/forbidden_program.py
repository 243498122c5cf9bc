"""Runs scripts where a program named ``zap`` leaves a mark, so that its run can be seen.

One worker stands in a sandbox of its own (no network, nothing of the host writable, few
processes) and is given scripts; for each it makes an empty directory, runs the script by a shell
with little time, and says whether the mark is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import IO

#: Seconds one script may take.
SCRIPT_SECONDS = 1.0
UNPRIVILEGED = 65534
_SANDBOX = (
    "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr",
    "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64",
    "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/tmp/zap",
    "--clearenv", "--setenv", "PATH", "/tmp/zap/bin:/usr/bin", "--setenv", "HOME", "/tmp/zap/home",
)  # fmt: skip
_WORKER = r"""
import json, os, resource, shutil, signal, subprocess, sys
base, seconds = "/tmp/zap", float(sys.argv[1])
os.makedirs(base + "/bin"); os.makedirs(base + "/home")
with open(base + "/bin/zap", "w") as f:
    f.write("#!/bin/sh\n: > /tmp/zap/mark\n")
os.chmod(base + "/bin/zap", 0o755)
def limits():
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 22, 1 << 22))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_NPROC, (60, 60))
me = os.getpid()
def end_all():
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, me):
            try: os.kill(int(name), signal.SIGKILL)
            except OSError: pass
for line in sys.stdin:
    shell, script = json.loads(line)
    work = base + "/w"
    shutil.rmtree(work, ignore_errors=True); os.mkdir(work)
    for name in ("a.txt", "b.c"):
        with open(work + "/" + name, "w") as f: f.write("one\ntwo\n")
    if os.path.exists(base + "/mark"): os.unlink(base + "/mark")
    p = subprocess.Popen([shell, "-c", os.fsencode(script)], cwd=work, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=limits)
    try: p.wait(seconds)
    except subprocess.TimeoutExpired: pass
    end_all(); p.wait()
    print(json.dumps(os.path.exists(base + "/mark")), flush=True)
"""


class Worker:
    """The sandboxed process that runs scripts."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def runs_it(self, shell: str, script: str) -> bool:
        """True if this script, run by this shell, runs the program."""
        process = self._started()
        stdin, stdout = _pipes(process)
        stdin.write(json.dumps([shell, script]) + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            self._process = None
            raise RuntimeError("the sandboxed worker ended: is bwrap there, and allowed?")
        return bool(json.loads(answer))

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            who = {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}
            self._process = subprocess.Popen(
                [*_SANDBOX, "/usr/bin/python3", "-I", "-c", _WORKER, str(SCRIPT_SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sys.stderr,
                text=True,
                cwd="/",
                **(who if os.geteuid() == 0 else {}),  # type: ignore[arg-type]
            )
        return self._process


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
