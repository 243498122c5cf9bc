"""The kernel's part of a sandboxed start: what no server could be faster than.

A template is made as the server makes it; a C program starts the program that copies it, again and
again, with the pipes and lines that the keeper gives it, and waits.  Protected names exist: no
placeholders.

  python bench/copy_floor.py [SECONDS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import msgspec
from wire import workspace_sandbox

from handrail.keeper import waiting_stub
from handrail.protocol.sandbox import SandboxParams
from handrail.sandbox.choose_sandbox import Sandbox
from handrail.sandbox.intent import from_wire
from handrail.sandbox.profile import PROTECTED_NAMES
from handrail.sandbox.warm import programs
from handrail.sandbox.warm.template import Making, Template

HERE = os.path.dirname(os.path.abspath(__file__))
WIDTHS = (1, 4, 64)


def template_of(folder: str) -> Template:
    """The mounts of a workspace's sandbox."""
    sandbox = Sandbox()
    uri = f"file://{folder}"
    params = msgspec.convert(workspace_sandbox(uri), SandboxParams)
    plan = sandbox.plan(sandbox.resolve(from_wire(params), folder.encode()))
    return Making(plan, sandbox._bwrap, sandbox.upkeep, None, programs.stub()).finish()


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for name in PROTECTED_NAMES:
            os.mkdir(os.path.join(folder, name.decode()))
        driver = os.path.join(folder, "copy_floor")
        source = os.path.join(HERE, "copy_floor.c")
        subprocess.run(["gcc", "-O2", "-Wall", "-o", driver, source], check=True)
        template = template_of(folder)
        program = template.program(terminal=False, lasting=False, waits=False, announces=True)
        env = {b"PATH": b"/usr/bin:/bin"}
        packet = waiting_stub.request([b"/bin/true"], env, folder.encode(), {}, terminal=False)
        fds = [template.namespace, program, os.memfd_create("packet")]
        os.write(fds[2], packet)
        for width in WIDTHS:
            words = [driver, *map(str, fds), str(len(packet)), str(seconds), str(width)]
            done = subprocess.run(words, pass_fds=fds, stdout=subprocess.PIPE, check=True)
            count, took, cpu, middle = map(float, done.stdout.split())
            print(
                f"{width:3} in flight: {count / took:.0f} a second, {cpu / count * 1e3:.2f} ms CPU"
                f" each, {middle / 1e3:.2f} ms from start to end"
            )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
