"""Real files."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail.filesystem import replacement, syscalls


@pytest.fixture(params=["openat2", "walk"])
def resolver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of opening without links."""
    if request.param == "walk":
        monkeypatch.setattr(syscalls, "supports", lambda _resolve: False)
    elif not syscalls.supports(syscalls.RESOLVE_NO_SYMLINKS):
        pytest.skip("this kernel has no openat2")
    return str(request.param)


@pytest.fixture(params=["nameless", "named", "unlinkable"])
def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All kinds of stage for a replacement; the last is nameless and cannot be given a name."""
    if request.param == "named":
        monkeypatch.setattr(replacement, "_can_name_descriptors", lambda: False)
    elif request.param == "unlinkable":
        link: Callable[..., None] = os.link

        def refuse(source: Any, *args: Any, **options: Any) -> None:
            if str(source).startswith("/proc/self/fd/"):
                raise PermissionError(errno.EPERM, "refused")
            link(source, *args, **options)

        monkeypatch.setattr(os, "link", refuse)
        monkeypatch.setattr(replacement, "_can_link", True)  # and as it was afterwards
    return str(request.param)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "tiny"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user can reach, unlike tmp_path; needs root to be of use."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    place = Path(tempfile.mkdtemp(prefix="handrail-test-"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)
