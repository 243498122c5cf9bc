"""Places of ours in a sandbox: hidden where they are, not to be made where they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail import private_files, private_places
from handrail.sandbox.landlock import backend
from handrail.sandbox.landlock.ruleset import Refusal, Rules
from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.profile import Access, Profile, Rule
from tests.support.sandboxes import Held, spawn


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private_places, "_added", {})
    made = tmp_path / "ws"
    made.mkdir()
    return made


def profile(ws: Path, *private: Path, more: tuple[Path, ...] = ()) -> Profile:
    writable = [Rule(os.fsencode(path), Access.WRITE) for path in (ws, *more)]
    return Profile(
        rules=(Rule(b"/", Access.READ), *writable),
        protected=(),
        private=tuple(os.fsencode(path) for path in private),
    )


def sh(held: Held, given: Profile, script: str) -> str:
    code, said = held.run(given, ["sh", "-c", script + "; echo end"])
    assert code == 0, said
    assert said.endswith(b"end\n")
    return said.decode()


def test_a_place_that_is_there_is_hidden_and_cannot_be_moved(held: Held, ws: Path) -> None:
    place = ws / "a" / "handrail"
    place.mkdir(parents=True)
    (place / "secret").write_text("hunter2")
    said = sh(
        held,
        profile(ws, place),
        f"cat {place}/secret; echo x > {place}/new; mv {place} {ws}/b; mv {ws}/a {ws}/c;"
        f" rm -rf {ws}/a; echo ok > {ws}/file",
    )
    assert "hunter2" not in said
    assert os.listdir(place) == ["secret"]
    assert (ws / "file").read_text() == "ok\n"


@pytest.mark.parametrize("opened", [False, True])
def test_rules_can_be_read_and_not_written(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    """Whether or not the profile opens them by name."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(ws / "config"))
    rules = ws / "config" / "handrail" / "rules"
    rules.mkdir(parents=True)
    (rules / "a.rules").write_text("# mine")
    more = (rules, rules.parent) if opened else ()
    said = sh(
        held,
        profile(ws, rules.parent, more=more),
        f"cat {rules}/a.rules; echo x > {rules}/a.rules; echo x > {rules}/b.rules;"
        f" mv {rules} {ws}/b; mv {ws}/config {ws}/c; rm -rf {rules.parent}; touch {ws}/config/mine",
    )
    assert said.startswith("# mine")
    assert os.listdir(rules) == ["a.rules"]
    assert (rules / "a.rules").read_text() == "# mine"
    assert (ws / "config" / "mine").exists()


@pytest.mark.parametrize("there", [False, True])
def test_the_administrators_rules_cannot_be_written(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """With ``/etc`` writable, as for a command of root's that may write everywhere."""
    etc = ws / "etc"
    etc.mkdir()
    monkeypatch.setattr(private_places, "SYSTEM_CONFIG", str(etc / "handrail"))
    rules = etc / "handrail" / "rules"
    if there:
        rules.mkdir(parents=True)
        (rules / "a.rules").write_text("# root's")
    said = sh(
        held,
        profile(ws, *(Path(os.fsdecode(path)) for path in private_places.listed())),
        f"cat {rules}/a.rules; mkdir -p {rules}; echo x > {rules}/a.rules; rm -rf {rules};"
        f" mv {etc}/handrail {ws}/b; mkdir -p {rules}; echo x > {rules}/b.rules;"
        f" mv {etc} {ws}/c && mkdir -p {rules}; echo x > {rules}/b.rules; touch {etc}/hosts",
    )
    assert "# root's" in said or not there
    assert {path.name for path in ws.rglob("*.rules")} == ({"a.rules"} if there else set())
    assert not there or (rules / "a.rules").read_text() == "# root's"
    assert (etc / "hosts").exists()


def test_a_place_that_is_missing_cannot_be_made(held: Held, ws: Path) -> None:
    (ws / "rt").mkdir()
    place = ws / "rt" / "handrail"
    sh(held, profile(ws, place), f"mkdir -p {place}; ln -s /etc {place}; touch {ws}/rt/other")
    assert sorted(os.listdir(ws / "rt")) == ["other"]


def test_nothing_above_a_missing_place_can_be_made_either(held: Held, ws: Path) -> None:
    place = ws / "rt" / "handrail"
    sh(held, profile(ws, place), f"mkdir -p {place}; ln -s /tmp {ws}/rt; touch {ws}/other")
    assert os.listdir(ws) == ["other"]


def test_a_missing_place_may_be_made_outside_meanwhile(held: Held, ws: Path) -> None:
    """What is made there by us is kept, and not seen inside."""
    place = ws / "handrail"
    given = profile(ws, place)
    os.mkfifo(ws / "begun")
    os.mkfifo(ws / "go")
    wrapped = held.wrap(given, ["sh", "-c", f"echo > {ws}/begun; cat {ws}/go; cat {place}/*"])
    with open(ws / "said", "w+b") as output:
        pid = spawn(wrapped, output.fileno())
        wrapped.running.sent()
        (ws / "begun").read_bytes()
        os.close(private_files.open_directory(str(place)))
        (place / "secret").write_text("hunter2")
        (ws / "go").write_bytes(b"")
        os.waitpid(pid, 0)
        wrapped.running.wait()
        assert b"hunter2" not in os.pread(output.fileno(), 65_536, 0)
    held.upkeep.close(5)
    assert (place / "secret").read_text() == "hunter2"


def test_two_sandboxes_share_what_covers_a_missing_place(held: Held, ws: Path) -> None:
    for place in (ws / "handrail", ws / "rt" / "handrail"):
        given = profile(ws, place)
        first = held.registry.acquire(held.planner.plan(given).masks)
        other = Held(held.registry.directory)
        second = other.planner.plan(given)
        assert {mask.path for mask in second.masks} == {mask.path for mask in first.made}
        other.close()
        first.release()
        assert os.listdir(ws) == []


def test_nothing_is_made_where_nothing_can_be_written(held: Held, ws: Path, tmp_path: Path) -> None:
    plan = held.planner.plan(profile(ws, tmp_path / "elsewhere" / "handrail"))
    assert plan.masks == ()
    assert held.planner.plan(plan.profile) is plan


def test_what_a_profile_opens_in_a_place_stays_hidden(held: Held, ws: Path) -> None:
    place = ws / "handrail"
    (place / "inner").mkdir(parents=True)
    sh(held, profile(ws, place, more=(place, place / "inner")), f"echo x > {place}/inner/new")
    assert os.listdir(place / "inner") == []


def test_a_file_of_ours_is_covered(held: Held, ws: Path) -> None:
    token = ws / "token"
    token.write_text("hunter2")
    private_places.add(str(token))
    said = sh(held, profile(ws, token), f"cat {token}; rm -f {token}; echo evil > {token}")
    assert "hunter2" not in said
    assert token.read_text() == "hunter2"
    token.unlink()
    sh(held, profile(ws, token), f"echo evil > {token}; ln -s /etc {token}")
    assert not os.path.lexists(token)


def test_a_link_on_the_way_that_a_command_could_replace_is_refused(held: Held, ws: Path) -> None:
    (ws / "real" / "handrail").mkdir(parents=True)
    (ws / "link").symlink_to("real")
    with pytest.raises(Refused, match="leads over the symbolic link"):
        held.planner.plan(profile(ws, ws / "link" / "handrail"))


def test_the_home_stays_usable_when_it_is_the_workspace(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(ws))
    place = private_places.default_state_home()
    assert place is not None
    tools = ws / ".local" / "bin"
    sh(held, profile(ws, Path(place)), f"mkdir -p {tools} {place}/x; touch {tools}/tool")
    assert (ws / ".local" / "bin" / "tool").exists()
    assert not os.path.lexists(place)


def test_landlock_grants_what_lies_beside(ws: Path) -> None:
    place = ws / "state" / "handrail"
    place.mkdir(parents=True)
    (ws / "state" / "other").mkdir()
    given = Profile(
        rules=(Rule(os.fsencode(ws), Access.READ),), protected=(), private=(os.fsencode(place),)
    )
    rules = backend.rules_of(given)
    assert isinstance(rules, Rules)
    assert rules.readable == ()
    assert rules.listable == (os.fsencode(ws),)
    assert rules.beside == (os.fsencode(ws / "state" / "other"),)


@pytest.mark.parametrize("there", [True, False])
def test_landlock_refuses_to_write_around_a_place(ws: Path, there: bool) -> None:
    if there:
        (ws / "handrail").mkdir()
    refusal = backend.rules_of(profile(ws, ws / "handrail"))
    assert isinstance(refusal, Refusal)
    assert "our own files" in refusal.reason
