"""Finding the peer: the native Codex binary, never its Node launcher, never inside this tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "@openai/codex"
#: Where its platform packages keep the binary, newer and older layout.
LAYOUTS = ("vendor/*/bin/codex", "vendor/*/codex/codex")
INSTALL_LIMIT = 600.0


class NoPeer(Exception):
    """There is no peer to compare with; the sentence says why."""


def cache_folder() -> Path:
    """Where things of ours that can be made again are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "handrail"


def find_peer() -> Path:
    """The binary: named by $CODEX, found in the cache, or installed there now."""
    named = os.environ.get("CODEX")
    if named:
        if not os.access(named, os.X_OK):
            raise NoPeer("$CODEX does not name a program")
        return Path(named)
    folder = cache_folder() / "codex"
    found = look_in(folder)
    if found is None:
        install(folder)
        found = look_in(folder)
    if found is None:
        raise NoPeer(f"{PACKAGE} is installed but holds no binary for this machine")
    return found


def look_in(folder: Path) -> Path | None:
    """The binary below a folder that npm filled."""
    for layout in LAYOUTS:
        for path in sorted(folder.glob(f"node_modules/**/{layout}")):
            if os.access(path, os.X_OK):
                return path
    return None


def install(folder: Path) -> None:
    """Let npm fetch it into a folder of its own."""
    npm = shutil.which("npm")
    if npm is None:
        raise NoPeer("neither $CODEX nor npm is there to get it with")
    print(f"installing {PACKAGE} into {folder}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-save", "--prefix", str(folder), PACKAGE]
    try:
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=INSTALL_LIMIT)
    except (OSError, subprocess.SubprocessError) as e:
        raise NoPeer(f"npm could not install {PACKAGE} ({type(e).__name__})") from e


def version(binary: Path) -> str:
    """What it calls itself."""
    command = [str(binary), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return done.stdout.strip() or "version unknown"
