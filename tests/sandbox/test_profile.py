"""What an intent means on a machine."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.sandbox import profile
from handrail.sandbox.profile import (
    Access,
    BadIntent,
    Entry,
    Files,
    Intent,
    Machine,
    Rule,
    resolve,
)

MACHINE = Machine(tmpdir=b"/scratch", home=b"/home/me", minimal=(b"/usr", b"/etc"))


def bound(*entries: Entry, roots: tuple[bytes, ...] = (b"/ws",)) -> profile.Profile:
    return resolve(Intent(entries=entries, workspace_roots=roots), b"/cwd", MACHINE)


def test_symbolic_roots_are_bound_here() -> None:
    found = bound(
        Entry(Access.READ, special="root"),
        Entry(Access.WRITE, special="project_roots"),
        Entry(Access.WRITE, special="project_roots", subpath=b"sub"),
        Entry(Access.WRITE, special="slash_tmp"),
        Entry(Access.WRITE, special="tmpdir"),
        Entry(Access.WRITE, special="unknown"),
    )
    assert found.rules == (
        Rule(b"/", Access.READ),
        Rule(b"/scratch", Access.WRITE),
        Rule(b"/tmp", Access.WRITE),
        Rule(b"/ws", Access.WRITE),
        Rule(b"/ws/sub", Access.WRITE),
    )


def test_without_workspace_roots_the_project_grants_nothing() -> None:
    assert bound(Entry(Access.WRITE, special="project_roots"), roots=()).rules == ()


@pytest.mark.parametrize("tmpdir", [b"/", b"/home", b"/home/me", b"relative", b"", None])
def test_a_tmpdir_that_would_open_too_much_grants_nothing(tmpdir: bytes | None) -> None:
    machine = Machine(tmpdir=tmpdir, home=b"/home/me")
    intent = Intent(entries=(Entry(Access.WRITE, special="tmpdir"),))
    assert resolve(intent, b"/", machine).rules == ()


def test_a_tmpdir_above_a_workspace_grants_nothing() -> None:
    intent = Intent(
        entries=(Entry(Access.WRITE, special="tmpdir"),), workspace_roots=(b"/scratch/ws",)
    )
    assert resolve(intent, b"/", MACHINE).rules == ()


def test_for_one_path_deny_beats_write_beats_read() -> None:
    for first, second, wins in (
        (Access.READ, Access.WRITE, Access.WRITE),
        (Access.DENY, Access.WRITE, Access.DENY),
        (Access.READ, Access.DENY, Access.DENY),
    ):
        for pair in ((first, second), (second, first)):
            found = bound(*(Entry(access, path=b"/x/./y/../") for access in pair))
            assert found.rules == (Rule(b"/x", wins),)


def test_the_most_specific_rule_wins_and_none_denies() -> None:
    found = bound(
        Entry(Access.WRITE, path=b"/repo"),
        Entry(Access.DENY, path=b"/repo/a"),
        Entry(Access.WRITE, path=b"/repo/a/b"),
    )
    for path, access in {
        b"/": Access.DENY,
        b"/repo": Access.WRITE,
        b"/repo/a": Access.DENY,
        b"/repo/ab": Access.WRITE,
        b"/repo/a/c": Access.DENY,
        b"/repo/a/b/c": Access.WRITE,
    }.items():
        assert found.access(path) is access


def test_globs_only_deny_and_start_where_they_say() -> None:
    found = bound(
        Entry(Access.DENY, glob="**/*.env"),
        Entry(Access.DENY, glob="/srv/*.key"),
        Entry(Access.DENY, glob="codex-project-roots://x/*"),
    )
    assert [(g.base, g.pattern) for g in found.globs] == [
        (b"/cwd", "**/*.env"),
        (b"/", "srv/*.key"),
        (b"/ws", "x/*"),
    ]
    with pytest.raises(BadIntent, match="can only deny"):
        bound(Entry(Access.READ, glob="*"))


@pytest.mark.parametrize("subpath", [b"../x", b"/etc", b"a/../../b"])
def test_a_subpath_stays_inside(subpath: bytes) -> None:
    with pytest.raises(BadIntent, match="leaves its project root"):
        bound(Entry(Access.WRITE, special="project_roots", subpath=subpath))


def test_what_asks_for_nothing_is_not_sandboxed() -> None:
    for intent in (
        profile.off(),
        Intent(files=Files.EXTERNAL, network=True),
        Intent(files=Files.UNRESTRICTED, network=True),
    ):
        assert not resolve(intent, b"/", MACHINE).sandboxed
    for intent in (Intent(files=Files.EXTERNAL), Intent(files=Files.UNRESTRICTED)):
        found = resolve(intent, b"/", MACHINE)
        assert found.sandboxed
        assert found.rules == (Rule(b"/", Access.WRITE),)
        assert not found.network


def test_the_older_policies() -> None:
    read_only = resolve(profile.read_only(), b"/", MACHINE)
    assert read_only.rules == (Rule(b"/", Access.READ),)
    intent = profile.workspace_write((b"/ws",), writable_roots=(b"/more",), slash_tmp=False)
    writable = resolve(intent, b"/", MACHINE)
    assert {r.path for r in writable.rules if r.access is Access.WRITE} == {
        b"/ws",
        b"/more",
        b"/scratch",
    }


def test_profiles_can_be_remembered() -> None:
    one, two = (bound(Entry(Access.READ, special="root")) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != one._replace(network=True)
    with pytest.raises(AttributeError):
        one.network = True  # type: ignore[misc]


@pytest.mark.parametrize("glob", ["sec/", "./sec", "/w/sec//", "codex-project-roots:///./sec/"])
def test_names_that_say_nothing_are_left_out_of_globs(glob: str) -> None:
    (found,) = bound(Entry(Access.DENY, glob=glob)).globs
    assert found.pattern in ("sec", "w/sec")


@pytest.mark.parametrize("glob", ["/", "./", "codex-project-roots://"])
def test_a_glob_that_names_nothing_is_refused(glob: str) -> None:
    with pytest.raises(BadIntent, match="names nothing"):
        bound(Entry(Access.DENY, glob=glob))


@given(st.lists(st.binary(min_size=1).map(lambda name: name.replace(b"/", b"_")), max_size=6))
def test_the_ancestors_of_a_path_are_those_of_posixpath(names: list[bytes]) -> None:
    path = b"/" + b"/".join(names)
    expected = []
    place = path
    while place != b"/":
        place = posixpath.dirname(place)
        expected.append(place)
    assert profile.parents(path) == expected
