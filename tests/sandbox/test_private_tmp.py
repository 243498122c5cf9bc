"""A /tmp of its own: what is seen in it, what is shared, what nobody can do to it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.own_code import AROUND
from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.private_tmp import environment, open_part, part_name, shares
from handrail.sandbox.profile import Access, Entry, Intent, Machine, Profile, resolve
from tests.support.sandboxes import holding


@pytest.fixture
def own() -> Iterator[bytes]:
    """A directory of the owner."""
    path = tempfile.mkdtemp(dir="/var/tmp")
    yield os.fsencode(path)
    shutil.rmtree(path)


@pytest.fixture
def ws() -> Iterator[Path]:
    """A workspace below /tmp, two levels deep."""
    top = tempfile.mkdtemp(dir="/tmp")
    path = Path(top, "a", "ws")
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(top)


def profile(own: bytes, *roots: Path, write: tuple[bytes, ...] = ()) -> Profile:
    entries = [Entry(Access.READ, special="root"), Entry(Access.WRITE, special="project_roots")]
    entries += [Entry(Access.WRITE, special="slash_tmp")]
    entries += [Entry(Access.WRITE, path=path) for path in write]
    names = tuple(os.fsencode(root) for root in roots)
    intent = Intent(entries=tuple(entries), workspace_roots=names, private_tmp=own)
    return resolve(intent, b"/", Machine())


def test_commands_of_one_owner_share_it_and_the_host_does_not(own: bytes) -> None:
    mine = profile(own)
    with holding() as held:
        script = "echo x > /tmp/handrail-seen; echo y > /var/tmp/handrail-seen; ls /tmp"
        assert held.run(mine, ["/bin/sh", "-c", script]) == (0, b"handrail-seen\n")
        assert held.run(mine, ["/bin/cat", "/tmp/handrail-seen"]) == (0, b"x\n")
        assert held.run(mine, ["/bin/cat", "/var/tmp/handrail-seen"]) == (0, b"y\n")
    assert not os.path.exists("/tmp/handrail-seen")
    assert not os.path.exists("/var/tmp/handrail-seen")


def test_a_workspace_below_it_is_the_hosts(own: bytes, ws: Path) -> None:
    with holding() as held:
        script = "echo x > file && mkdir d && ls ../.. && echo y > ../beside"
        code, said = held.run(profile(own, ws), ["/bin/sh", "-c", script], os.fsencode(ws))
    assert code != 0
    assert said.startswith(b"a\n")
    assert b"Read-only file system" in said
    assert (ws / "file").read_text() == "x\n"
    assert not (ws.parent / "beside").exists()


def test_the_way_to_a_workspace_cannot_be_moved(own: bytes, ws: Path) -> None:
    top = ws.parent.parent
    script = f"mv {top} /tmp/elsewhere; rmdir {ws}; ln -s /etc {top}; mv {ws.parent} {top}/b; true"
    mine = profile(own, ws)
    with holding() as held:
        held.run(mine, ["/bin/sh", "-c", script])
        assert held.run(mine, ["/bin/sh", "-c", f"echo x > {ws}/after"]) == (0, b"")
    assert (ws / "after").read_text() == "x\n"


def test_other_shared_paths_make_another_one(own: bytes, ws: Path) -> None:
    more = profile(own, write=(os.fsencode(ws),))
    with holding() as held:
        held.run(
            profile(own), ["/bin/sh", "-c", f"mkdir -p {ws.parent.parent}; ln -s /etc {ws.parent}"]
        )
        assert held.run(more, ["/bin/sh", "-c", f"echo x > {ws}/file"]) == (0, b"")
    assert (ws / "file").read_text() == "x\n"


def test_protected_names_of_a_workspace_in_it(own: bytes, ws: Path) -> None:
    (ws / ".git").mkdir()
    with holding() as held:
        script = f"echo x > {ws}/.git/config; mkdir {ws}/.codex; mv {ws} {ws}2; true"
        held.run(profile(own, ws), ["/bin/sh", "-c", script])
    assert sorted(path.name for path in ws.iterdir()) == [".git"]
    assert not list((ws / ".git").iterdir())


def test_a_socket_in_it_can_be_connected_to_inside_and_is_not_found_outside(own: bytes) -> None:
    script = (
        "import socket, os\n"
        "os.mkdir('/tmp/handrail-s'); s = socket.socket(socket.AF_UNIX)\n"
        "s.bind('/tmp/handrail-s/x'); s.listen(1)\n"
        "c = socket.socket(socket.AF_UNIX); c.connect('/tmp/handrail-s/x'); print('connected')"
    )
    done = subprocess.run(
        [sys.executable, "-m", "handrail", "sandbox", "--", "python3", "-c", script],
        cwd="/var/tmp",
        capture_output=True,
        text=True,
        check=False,
    )
    # The workspace is /var/tmp itself here, which was named; /tmp is private.
    assert done.stdout == "connected\n", done.stderr
    with socket.socket(socket.AF_UNIX) as found, pytest.raises(FileNotFoundError):
        found.connect("/tmp/handrail-s/x")


def test_nothing_is_left_of_the_one_of_a_command(tmp_path: Path) -> None:
    place, ws = tmp_path / "t", tmp_path / "w"
    place.mkdir()
    ws.mkdir()
    script = "mkdir -m 0 -p /tmp/a/b; echo $TMPDIR"
    for words in (["sandbox", "--"], ["run", "--"]):
        done = subprocess.run(
            [sys.executable, "-m", "handrail", *words, "sh", "-c", script],
            cwd=ws,
            env={**os.environ, "TMPDIR": str(place)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "/tmp\n", done.stderr
        assert list(place.iterdir()) == []


def test_handrails_own_code_below_it_is_shown_read_only(own: bytes, ws: Path) -> None:
    (ws / "program").write_text("#!/bin/sh\necho ours\n")
    (ws / "program").chmod(0o755)
    (ws.parent / "secret").write_text("x")
    place = os.fsencode(ws)
    mine = profile(own)._replace(own_code=((place, place, AROUND),))
    with holding() as held:
        assert held.run(mine, [f"{ws}/program"]) == (0, b"ours\n")
        code, said = held.run(mine, ["/bin/sh", "-c", f"echo x > {ws}/new; cat {ws.parent}/secret"])
    assert code != 0
    assert b"Read-only file system" in said
    assert b"No such file" in said
    assert not (ws / "new").exists()


def test_a_directory_that_others_may_enter_is_refused(own: bytes) -> None:
    os.chmod(own, 0o755)
    with pytest.raises(Refused, match="of mode 700"):
        open_part(own, b"/tmp", b"tmp", {})


def test_names() -> None:
    assert shares(b"/tmp", [b"/tmp", b"/tmp/a/b", b"/tmp/a", b"/tmpx", b"/etc"]) == (b"/tmp/a",)
    assert part_name(b"tmp", ()) == b"tmp"
    assert part_name(b"tmp", (b"/tmp/a",)) != part_name(b"tmp", (b"/tmp/b",))


def test_variables_name_what_is_there() -> None:
    env = {b"TMPDIR": b"/scratch", b"TMP": b"/work-place/t", b"HOME": b"/root"}
    assert environment(env, [b"/work-place"]) == {**env, b"TMPDIR": b"/tmp"}
