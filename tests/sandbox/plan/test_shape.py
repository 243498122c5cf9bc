"""Plans of one workspace moved to another: never another plan than one made from the beginning."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from handrail import own_code, private_places
from handrail.sandbox.plan.path_rules import Resolver
from handrail.sandbox.plan.plan import Plan, Planner
from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.profile import Access, Entry, Intent, Machine, Profile, resolve
from tests.support.sandboxes import Held

Change = Callable[[Path], object]


class World:
    """Two workspaces of a server, with a private /tmp each."""

    def __init__(self, base: Path) -> None:
        self.place = base / "d"
        self.names = [self.place / "w" / name for name in ("11aa", "22bb")]
        self.private = [base / "session-1", base / "session-2"]
        for path in (*self.names, *self.private):
            path.mkdir(parents=True, mode=0o700)
        for name in self.names:
            (name / "root").mkdir(mode=0o700)
            (name / "tmp").mkdir(mode=0o700)

    def profile(self, number: int, *, private: bool, more: tuple[Entry, ...] = ()) -> Profile:
        root, tmp = (os.fsencode(self.names[number] / name) for name in ("root", "tmp"))
        entries = (
            Entry(Access.READ, path=b"/"),
            Entry(Access.WRITE, path=root),
            Entry(Access.WRITE, path=tmp),
            Entry(Access.DENY, path=root + b"/secrets"),
            *more,
        )
        intent = Intent(
            entries=entries,
            workspace_roots=(root,),
            private_tmp=os.fsencode(self.private[number]) if private else None,
        )
        return resolve(intent, root, Machine(private=(os.fsencode(self.place),)))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(private_places, "_added", {})
    monkeypatch.setattr(private_places, "_workspaces", set())
    made = World(tmp_path)
    private_places.open_workspaces(str(made.place / "w"))
    return made


def decided(plan: Plan) -> tuple[object, ...]:
    """All that a plan says, without the numbers of descriptors here."""
    mounted = [(number, os.fstat(fd)[:3]) for number, fd in plan.passed]
    return (
        plan.arguments,
        plan.steps,
        mounted,
        plan.rules,
        plan.masks,
        plan.refused,
        plan.facts,
        plan.repositories,
        plan.sockets,
        plan.mount_table,
        plan.transient,
        plan.found,
        plan.shown.parts,
    )


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[Profile]:
    """The profiles that were resolved from the beginning."""
    found: list[Profile] = []
    build = Resolver.build

    def counted(self: Resolver) -> Plan:
        found.append(self.profile)
        return build(self)

    monkeypatch.setattr(Resolver, "build", counted)
    return found


def both(held: Held, world: World, **options: object) -> tuple[object, object]:
    """The second workspace's plan after the first one's, and made by a planner that knows none."""
    held.planner.plan(world.profile(0, **options))  # type: ignore[arg-type]
    second = world.profile(1, **options)  # type: ignore[arg-type]
    outcomes: list[object] = []
    fresh = Planner(held.registry, fresh_proc=held.bwrap.fresh_proc)
    try:
        for planner in (held.planner, fresh):
            try:
                outcomes.append(decided(planner.plan(second)))
            except Refused as error:
                outcomes.append(str(error))
    finally:
        fresh.close()
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("kept", [(), (".git", "secrets"), ("src", "src/deep")])
def test_a_workspace_of_the_same_shape_is_not_resolved_again(
    held: Held, world: World, resolved: list[Profile], private: bool, kept: tuple[str, ...]
) -> None:
    for name in world.names:
        for folder in kept:
            (name / "root" / folder).mkdir()
    moved, made = both(held, world, private=private)
    assert moved == made
    first = world.profile(0, private=private)
    # The planner that knew the first did not resolve the second; the other did.
    assert resolved == [first, world.profile(1, private=private)]


CHANGES: dict[str, Change] = {
    "protected name": lambda root: (root / ".codex").mkdir(),
    "file for a directory": lambda root: (root / ".git").write_text("no repository"),
    "pointer": lambda root: (root / ".git").write_text("gitdir: /elsewhere\n"),
    "denied file": lambda root: (root / "secrets").write_text("s"),
    "nested repository": lambda root: (root / "a" / ".git").mkdir(parents=True),
    "closed directory": lambda root: (root / "closed").mkdir(mode=0),
    "closed root": lambda root: root.chmod(0o300),
    "link for a protected name": lambda root: (root / ".git").symlink_to("/etc"),
    "link for tmp": lambda root: exchanged(root.parent / "tmp", "/etc"),
    "link for root": lambda root: exchanged(root, "/etc"),
    "no tmp": lambda root: (root.parent / "tmp").rmdir(),
    "file for tmp": lambda root: touched(root.parent / "tmp"),
}


def touched(path: Path) -> None:
    path.rmdir()
    path.touch()


def exchanged(path: Path, target: str) -> None:
    path.rmdir()
    path.symlink_to(target)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("private", [False, True])
def test_whatever_differs_is_seen(held: Held, world: World, private: bool, change: str) -> None:
    CHANGES[change](world.names[1] / "root")
    moved, made = both(held, world, private=private)
    assert moved == made


def test_what_only_the_first_has_is_no_cover_of_the_second(held: Held, world: World) -> None:
    for change in ("protected name", "nested repository", "denied file"):
        CHANGES[change](world.names[0] / "root")
    moved, made = both(held, world, private=False)
    assert moved == made


def test_a_place_of_ours_in_one_of_them_is_covered(
    held: Held, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = world.names[1] / "root" / "state"
    inside.mkdir()
    private = (os.fsencode(world.place), os.fsencode(inside))
    monkeypatch.setattr(
        World, "profile", lambda self, number, **options: _with(self, number, private)
    )
    moved, made = both(held, world, private=False)
    assert moved == made
    assert os.fsencode(inside) in made[3]  # type: ignore[index]


_profile = World.profile


def _with(world: World, number: int, private: tuple[bytes, ...]) -> Profile:
    return _profile(world, number, private=False)._replace(private=private)


def test_many_workspaces_leave_nothing_behind_in_this_program(held: Held, world: World) -> None:
    """What is not imported from grows with directories of workspaces, not with workspaces."""
    code = own_code.places()
    for number in (0, 1):
        held.planner.plan(_profile(world, number, private=False)._replace(own_code=code))
    known = own_code._roots | own_code._kept
    assert os.fsencode(world.place / "w") in known
    assert not [path for path in known if b"11aa" in path or b"22bb" in path]


def test_a_command_in_a_moved_plan_is_held(held: Held, world: World) -> None:
    neighbour = world.names[0] / "root" / "file"
    neighbour.write_text("s3cret")
    root = world.names[1] / "root"
    for number in (0, 1):
        profile = world.profile(number, private=True)
        script = f"cat {neighbour}; mkdir .git/x; echo a > f; echo b > /tmp/g; ls {world.place}/w"
        _, said = held.run(
            profile, ["/bin/sh", "-c", script], os.fsencode(world.names[number] / "root")
        )
        if number:
            assert b"s3cret" not in said
            assert b"11aa" not in said.replace(os.fsencode(neighbour), b"")
    assert (root / "f").read_text() == "a\n"
    assert sorted(path.name for path in root.iterdir()) == ["f"]
