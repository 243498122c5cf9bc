"""What an administrator requires of the client: a file of /etc, which it reads at its start."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

_PLACE = "/etc/codex"


def with_requirements(program: str, folder: Path, text: str) -> str:
    """A program that starts the client where these requirements are in force, and nowhere else.

    The folder is to be made.  It is laid over /etc/codex in a mount namespace of bubblewrap.
    """
    required = folder / "required"
    required.mkdir(parents=True)
    (required / "requirements.toml").write_text(text)
    words = ["bwrap", "--die-with-parent", "--bind", "/", "/", "--dev-bind", "/dev", "/dev"]
    words += ["--tmpfs", "/etc"]
    for entry in os.scandir("/etc"):
        if entry.is_symlink():
            words += ["--symlink", os.readlink(entry.path), entry.path]
        elif entry.path != _PLACE:
            words += ["--ro-bind", entry.path, entry.path]
    words += ["--ro-bind", str(required), _PLACE, "--", program]
    wrapper = folder / "codex"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)
