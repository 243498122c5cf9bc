"""File calls that are answered from memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

from handrail.filesystem import at_once


def test_a_file_of_a_tmpfs_is_read_at_once() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        place = Path(folder, "small")
        place.write_bytes(b"x" * 1000)
        assert at_once.read_file(str(place), 1000) == b"x" * 1000
