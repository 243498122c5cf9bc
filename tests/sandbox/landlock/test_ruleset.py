"""Landlock: what it can express, and on kernels that have it, what it holds."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.sandbox.landlock import program, ruleset
from handrail.sandbox.landlock.ruleset import Refusal, Rules, rules_for

ABI = ruleset.abi_version()
needs_landlock = pytest.mark.skipif(
    ABI < ruleset.LOWEST_ABI, reason=f"this kernel has Landlock ABI {ABI}"
)


def test_what_can_be_expressed() -> None:
    entries = [(b"/", "read"), (b"/w", "write"), (b"/w2", "write"), (b"/waste", "read")]
    expected = Rules((b"/", b"/waste"), (b"/w", b"/w2"))
    assert rules_for(entries, "restricted") == expected


@pytest.mark.parametrize(
    ("entries", "network", "word"),
    [
        ([(b"/", "read")], "enabled", "network"),
        ([(b"/", "read"), (b"/etc", "deny")], "restricted", "/etc"),
        ([(b"/", "read"), (b"/w", "write"), (b"/w/.git", "read")], "restricted", "/w/.git"),
        ([(b"/", "write"), (b"/etc", "read")], "restricted", "/etc"),
    ],
)
def test_what_cannot(entries: list[tuple[bytes, str]], network: str, word: str) -> None:
    found = rules_for(entries, network)
    assert isinstance(found, Refusal)
    assert word in found.reason


def test_each_kernel_is_asked_for_what_it_knows() -> None:
    sizes = {abi: len(ruleset.ruleset_attributes(abi)) for abi in range(1, 9)}
    assert sizes == {1: 8, 2: 8, 3: 8, 4: 16, 5: 16, 6: 24, 7: 24, 8: 24}
    assert ruleset.handled(1) == (0x1FFF, 0, 0)
    assert ruleset.handled(3) == (0x7FFF, 0, 0)
    assert ruleset.handled(7) == (0xFFFF, 3, 3)
    assert struct.unpack("=Qi", ruleset.rule_attributes(5, 9)) == (5, 9)


# --- real children --------------------------------------------------------------------------


def run(rules: Rules, *argv: str, **members: object) -> subprocess.CompletedProcess[str]:
    """A command behind the helper."""
    asked = program.request(
        rules,
        ABI,
        members.pop("filters", ()),  # type: ignore[arg-type]
        [os.fsencode(word) for word in argv],
        b"/",
        {b"PATH": b"/usr/bin:/bin", b"SEEN": b"yes"},
    )
    fd = os.memfd_create("request")
    try:
        os.write(fd, asked)
        return subprocess.run(
            [sys.executable, "-I", "-S", program.__file__, str(fd)],
            check=False,
            pass_fds=[fd],
            capture_output=True,
            text=True,
            timeout=30,
            env={"PATH": "/nonexistent"},
        )
    finally:
        os.close(fd)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("as it was")
    return tmp_path


def rules(tree: Path) -> Rules:
    return Rules((b"/",), (os.fsencode(tree / "w"),))


@needs_landlock
def test_it_writes_where_it_may_and_nowhere_else(tree: Path) -> None:
    script = f"""
        cd {tree}
        echo in > w/new && mkdir w/d && mv w/new w/d/new && cat w/d/new out/file
        for step in 'echo x > out/new' 'echo x > out/file' 'truncate -s 0 out/file' \
                    'rm out/file' 'mkdir out/d' 'mv out/file w/' 'ln out/file w/hard' \
                    'mv w/d out/' 'ln -s x out/link'; do
            sh -c "$step" 2> /dev/null && echo "did: $step"
        done
        echo "$SEEN" > /dev/null; echo end; exit 7
    """
    done = run(rules(tree), "sh", "-c", script)
    assert (done.returncode, done.stdout.split("\n")) == (7, ["in", "as it wasend", ""])
    assert {p.name for p in (tree / "out").iterdir()} == {"file"}
    assert (tree / "out" / "file").read_text() == "as it was"


@needs_landlock
def test_nothing_is_left_of_privilege(tree: Path) -> None:
    done = run(rules(tree), "grep", "-E", "^(Cap|NoNewPrivs|Seccomp:)", "/proc/self/status")
    found = dict(line.split(":\t") for line in done.stdout.splitlines())
    assert {found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert found["NoNewPrivs"] == "1"


@needs_landlock
@pytest.mark.skipif(ABI < 6, reason="signals are scoped from ABI 6 on")
def test_processes_outside_are_out_of_reach(tree: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        done = run(rules(tree), "sh", "-c", f"kill -9 {sleeper.pid}")
        assert done.returncode != 0
        assert sleeper.poll() is None
        done = run(rules(tree), "cat", f"/proc/{sleeper.pid}/environ")
        assert done.returncode != 0
    finally:
        sleeper.kill()
        sleeper.wait()


@needs_landlock
@pytest.mark.skipif(ABI < 4, reason="TCP is handled from ABI 4 on")
def test_no_connection_leaves(tree: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        done = run(rules(tree), sys.executable, "-I", "-S", "-c", code)
    assert "PermissionError" in done.stderr


@needs_landlock
def test_a_link_on_the_way_to_a_root_is_refused(tree: Path) -> None:
    (tree / "link").symlink_to(tree / "out")
    done = run(Rules((b"/",), (os.fsencode(tree / "link"),)), "touch", str(tree / "out" / "x"))
    assert done.returncode == program.REFUSED
    assert "the command was not run" in done.stderr
    assert not (tree / "out" / "x").exists()


@needs_landlock
def test_a_command_that_is_not_there_is_said_so(tree: Path) -> None:
    done = run(rules(tree), "nosuchprogram")
    assert (done.returncode, done.stdout) == (program.REFUSED, "")
    assert "cannot run nosuchprogram: No such file or directory" in done.stderr
    assert run(rules(tree), str(tree)).returncode == program.REFUSED


@needs_landlock
def test_a_filter_that_the_kernel_refuses_keeps_the_command_from_running(tree: Path) -> None:
    done = run(rules(tree), "touch", str(tree / "w" / "x"), filters=[b"\xff" * 8])
    assert done.returncode == program.REFUSED
    assert not (tree / "w" / "x").exists()
