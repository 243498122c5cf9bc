"""Both ends of a stream: within their limit, in memory and in a file, secrets masked at the cut."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import CommandFailed, Workspace
from handrail.secret_masks import NO_SECRETS, Secrets
from handrail.workspace.output import kept_output
from handrail.workspace.output.kept_output import KeptOutput
from tests.support.servers import ServerProcess

SECRET = "hunter2-hunter2"
SECRETS = Secrets({"TOKEN": SECRET})


@given(
    st.lists(st.binary(max_size=50), max_size=30),
    st.one_of(st.none(), st.integers(0, 90)),
    st.integers(0, 80),
    st.booleans(),
)
def test_the_ends_are_kept(pieces: list[bytes], limit: int | None, memory: int, full: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_output, "MEMORY_BYTES", memory)
        kept, whole = KeptOutput(limit, SECRETS), b"".join(pieces)
        for number, piece in enumerate(pieces):
            if full and number == len(pieces) // 2:
                patch.setattr(os, "pwrite", _no_room)  # from here on the disk is full
            kept.add(piece)
        assert kept.total == len(whole)
        if limit is None or len(whole) <= limit:
            assert (kept.take(), kept.omitted) == (whole, 0)
        else:
            head, tail = limit - limit // 2, limit // 2
            assert kept.take() == whole[:head] + whole[len(whole) - tail :]
            assert kept.omitted == len(whole) - limit
        with pytest.MonkeyPatch.context() as steps:
            steps.setattr(kept_output, "_STEP", 3)
            assert kept.text(NO_SECRETS) == kept.take().decode("utf-8", "replace")


def _no_room(*_: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_a_secret_at_the_cut_is_masked(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_output, "MEMORY_BYTES", memory)
    value = SECRET.encode()
    for cut in range(len(value) + 2):
        kept = KeptOutput(40, SECRETS)
        kept.add(b"." * (20 - cut) + value)
        kept.add(b"-" * 99 + value + b"." * (20 - cut))
        shown = kept.shown(SECRETS)
        parts = [value[:n] for n in range(4, len(value))] + [value[n:] for n in range(1, 12)]
        assert not [part for part in parts if part in shown], (cut, shown)
        if 0 < cut < len(value):
            assert shown.count(b"[secret TOKEN]") == 2
        assert len(kept.take()) == 40


def test_secrets_at_the_cut_of_results_are_masked(tmp_path: Path) -> None:
    with Workspace(tmp_path, sandbox="off", secrets={"TOKEN": SECRET}) as ws, ws.shell() as shell:
        script = "printf 12345; printf %s $TOKEN; printf '%0100d' 0; printf %s $TOKEN; printf 678"
        for run in (ws.run, shell.run):
            text = run(script, max_output=20).stdout
            assert text == "12345[secret TOKEN][secret TOKEN]678"
        assert ws.run(script, max_output=20, text=False).stdout == b"12345huntehunter2678"


def test_large_output_of_a_result_is_read_when_asked_for(tmp_path: Path) -> None:
    with Workspace(tmp_path, sandbox="off") as ws:
        result = ws.run("head -c 5000000 /dev/zero | tr '\\0' x; echo err >&2")
        assert not isinstance(result.__dict__["stdout"], str)
        again = pickle.loads(pickle.dumps(result))
        assert result.stdout == "x" * 5_000_000 == again.stdout
        assert (result.stderr, result.ok, result) == ("err\n", True, again)


def test_the_sentence_of_a_result_leaves_large_output_in_its_file(tmp_path: Path) -> None:
    script = "head -c 5000000 /dev/zero | tr '\\0' x; printf '\\nthe end is %s\\n' $TOKEN; exit 3"
    with Workspace(tmp_path, sandbox="off", secrets={"TOKEN": SECRET}) as ws:
        for text in (True, False):
            result = ws.run(script, text=text)
            with pytest.raises(CommandFailed, match=r"the end is \[secret TOKEN\]"):
                result.check()
            assert str(result).endswith("; last line of its output: the end is [secret TOKEN]")
            assert not isinstance(result.__dict__["stdout"], str | bytes)


@pytest.mark.parametrize("where", ["here", "there"])
def test_much_output_takes_little_memory(where: str, tmp_path: Path) -> None:
    """A gigabyte, with the default limit: another program's peak above its idle."""
    script = """
import resource, sys
from handrail import Workspace
at = {"at": sys.argv[1]} if sys.argv[1:] else {}
with Workspace(".", sandbox="off", **at) as ws:
    ws.run("true")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = ws.run("head -c 1000000000 /dev/zero")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, result.omitted)
"""
    server = ServerProcess(tmp_path / "state") if where == "there" else None
    try:
        words = [server.url] if server is not None else []
        done = subprocess.run(
            [sys.executable, "-c", script, *words], cwd=tmp_path, capture_output=True, check=True
        )
    finally:
        if server is not None:
            server.stop()
            server.close()
    grown, omitted = map(int, done.stdout.split())
    assert omitted == 1_000_000_000 - 64 * 1024 * 1024
    assert grown < 64 * 1024
