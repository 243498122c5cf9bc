"""The command line apart from the shared cases."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from handrail.patch.apply import Mode
from handrail.patch.command import run
from tests.patch.memory import MemoryFiles

PATCH = "*** Begin Patch\n*** Add File: f\n+é\n*** End Patch\n"
USAGE = "Usage: apply_patch 'PATCH'\n       echo 'PATCH' | apply_patch\n"


def called(*argv: str, stdin: bytes = b"", cwd: str = "/w") -> tuple[int, str, str]:
    out, err = io.BytesIO(), io.BytesIO()
    code = run(argv, io.BytesIO(stdin), out, err, cwd, files=MemoryFiles())
    return code, out.getvalue().decode(), err.getvalue().decode()


def test_the_patch_comes_as_argument_or_on_standard_input() -> None:
    done = (0, "Success. Updated the following files:\nA f\n", "")
    assert called(PATCH) == done
    assert called(stdin=PATCH.encode()) == done


@pytest.mark.parametrize(
    ("argv", "stdin", "code", "said"),
    [
        ((), b"", 2, USAGE),
        (("a", "b"), b"", 2, "Error: apply_patch accepts exactly one argument.\n"),
        ((os.fsdecode(b"\xff"),), b"", 1, "Error: apply_patch requires a UTF-8 PATCH argument.\n"),
        (
            (),
            b"\xff",
            1,
            "Error: Failed to read PATCH from stdin.\nstream did not contain valid UTF-8\n",
        ),
        ((), b" \n", 1, "Invalid patch: The last line of the patch must be '*** End Patch'\n"),
        (("",), b"", 1, "Invalid patch: The last line of the patch must be '*** End Patch'\n"),
        (
            ("--help",),
            b"",
            1,
            "Invalid patch: The first line of the patch must be '*** Begin Patch'\n",
        ),
        (("*** Begin Patch\n*** End Patch",), b"", 1, "No files were modified.\n"),
    ],
)
def test_wrong_calls(argv: tuple[str, ...], stdin: bytes, code: int, said: str) -> None:
    assert called(*argv, stdin=stdin) == (code, "", said)


def test_a_working_directory_that_is_no_utf8_is_named_as_well_as_possible(tmp_path: Path) -> None:
    cwd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(cwd)
    out, err = io.BytesIO(), io.BytesIO()
    patch = "*** Begin Patch\n*** Add File: f\n+1\n*** Delete File: g\n*** End Patch"
    assert run([patch], io.BytesIO(), out, err, cwd) == 1
    assert err.getvalue().decode() == f"Failed to delete file {tmp_path}/\ufffd/g\n"
    assert os.listdir(cwd) == ["f"]


def test_all_or_none_can_be_asked_for(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Add File: f\n+1\n*** Delete File: g\n*** End Patch"
    streams = io.BytesIO(), io.BytesIO(), io.BytesIO()
    assert run([patch], *streams, str(tmp_path), mode=Mode.ATOMIC) == 1
    assert os.listdir(tmp_path) == []
