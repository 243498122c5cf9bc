"""Find a node whose ``fetch`` uses a proxy: version 24 or later, fetched by npm if need be."""

from __future__ import annotations

import fcntl
import platform
import shutil
import subprocess

from tests.interop.codex import INSTALL_LIMIT, cache_dir

VERSION = 24


class NoNode(Exception):
    """Why there is none."""


def find_node() -> str:
    """The machine's, else the one in our cache, else npm is asked for it; raises NoNode."""
    own = shutil.which("node")
    if own is not None and _major(own) >= VERSION:
        return own
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
    npm = shutil.which("npm")
    if npm is None or machine is None:
        raise NoNode(f"node is older than {VERSION}, and there is no npm to fetch another")
    package = f"node-linux-{machine}"
    folder = cache_dir() / "node"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "node_modules" / package / "bin" / "node"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test runs may want it at once
        if not program.exists():
            words = [npm, "install", "--no-save", "--no-audit", "--no-fund", "--prefix"]
            words += [str(folder), f"{package}@{VERSION}"]
            done = subprocess.run(words, capture_output=True, timeout=INSTALL_LIMIT, check=False)
            if done.returncode != 0 or not program.exists():
                raise NoNode(f"npm could not fetch {package}@{VERSION}")
    return str(program)


def _major(program: str) -> int:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return int(done.stdout.lstrip("v").partition(".")[0] or 0)
