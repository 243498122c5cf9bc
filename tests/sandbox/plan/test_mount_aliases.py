"""Other mounts of what is denied."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from handrail.sandbox.plan import mount_aliases

LINE = "{} 1 0:9 {} {} rw - ext4 /dev/x rw\n"


def table(*mounts: tuple[str, str]) -> bytes:
    return "".join(LINE.format(i, *mount) for i, mount in enumerate(mounts)).encode()


def test_where_the_same_lies(tmp_path: Path) -> None:
    for name in ("den/in", "alias", "part", "whole/den", "od d"):
        (tmp_path / name).mkdir(parents=True)
    here = str(tmp_path)
    odd = f"{here}/od\\040d"
    text = table(
        ("/", "/"),
        (f"{here}/den", f"{here}/alias"),
        (f"{here}/den/in", f"{here}/part"),
        (here, f"{here}/whole"),
        (f"{here}/den", odd),
    )
    found = mount_aliases.aliases([os.fsencode(tmp_path / "den")], text)
    names = ("alias", "part", "whole/den", "od d")
    assert set(found) == {os.fsencode(tmp_path / name) for name in names}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts something")
def test_a_denied_directory_is_hidden_at_its_second_mount(tmp_path: Path) -> None:
    for name in ("den", "alias", "ws"):
        (tmp_path / name).mkdir()
    (tmp_path / "den" / "key").write_text("SECRET\n")
    profile = (
        '{"type":"managed","network":"restricted","file_system":{"type":"restricted","entries":['
        '{"path":{"type":"special","value":{"kind":"root"}},"access":"read"},'
        f'{{"path":{{"type":"path","path":"{tmp_path}/den"}},"access":"deny"}}]}}}}'
    )
    script = 'mount --bind "$1/den" "$1/alias" && cd "$1/ws" && shift && exec "$@"'
    inner = f"cat {tmp_path}/den/key {tmp_path}/alias/key; echo end"
    argv = [sys.executable, "-m", "handrail", "sandbox", "--profile", profile]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", tmp_path, *argv, "--", "sh", "-c", inner],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "end\n", done.stderr


def in_mounts(tmp_path: Path, mounts: str, entries: str, inner: str) -> str:
    """What a sandboxed command says where something was mounted before."""
    profile = (
        '{"type":"managed","network":"restricted","file_system":{"type":"restricted","entries":['
        f'{{"path":{{"type":"special","value":{{"kind":"root"}}}},"access":"read"}},{entries}]}}}}'
    )
    argv = [sys.executable, "-m", "handrail", "sandbox", "--profile", profile]
    script = f'{mounts} && cd / && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *argv, "--", "sh", "-c", inner],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def entry(path: Path | str, access: str) -> str:
    return f'{{"path":{{"type":"path","path":"{path}"}},"access":"{access}"}}'


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts something")
def test_what_is_read_only_is_so_at_its_second_mount(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    for name in (".git/hooks", "kept", "a", "b", "c"):
        (ws / name).mkdir(parents=True)
    mounts = f"cd {ws} && mount --bind .git a && mount --bind .git/hooks b && mount --bind kept c"
    entries = f"{entry(ws, 'write')},{entry(ws / 'kept', 'read')}"
    inner = f"cd {ws}; touch a/x; touch b/x; touch c/x; touch fine; echo end"
    assert in_mounts(tmp_path, mounts, entries, inner) == "end\n"
    assert (ws / "fine").exists()
    assert not list(ws.rglob("x"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts something")
def test_what_programs_trust_is_kept_at_a_second_mount_of_a_shared_directory(
    tmp_path: Path,
) -> None:
    alias = tmp_path / "alias"
    alias.mkdir()
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as place,
        socket.socket(socket.AF_UNIX) as bound,
    ):
        bound.bind(f"{place}/s")
        name = os.path.basename(place)
        inner = f"cd {alias}; rm {name}/s; mv {name} {name}-moved; touch {name}/x; echo end"
        mounts = f"mount --bind /var/tmp {alias}"
        assert in_mounts(tmp_path, mounts, entry(alias, "write"), inner) == "end\n"
        assert os.listdir(place) == ["s"]


def test_the_table_is_read_again_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = mount_aliases.MountTable()
    first = table.text()
    assert table.text() is first
    assert first.splitlines() == Path("/proc/self/mountinfo").read_bytes().splitlines()
    monkeypatch.setattr(table, "_changed", lambda: True)
    assert table.text() == first
    assert table.text() is not first
    table.close()


def test_names_that_do_not_exist() -> None:
    text = (
        b"1 0 8:1 / / rw - ext4 /dev/a rw\n"
        b"2 1 8:2 / /home rw - ext4 /dev/b rw\n"
        b"3 1 8:2 /user /work/mirror rw - ext4 /dev/b rw\n"
    )
    place = b"/home/user/.local/state/handrail"
    found = mount_aliases.other_names([place], text)
    assert found == {b"/work/mirror/.local/state/handrail": place}
    assert mount_aliases.other_names([place], b"\n".join(text.splitlines()[:2])) == {}
