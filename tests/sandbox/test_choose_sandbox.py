"""The one entry: which mechanism a command gets, and how often it is begun anew."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import private_places
from handrail.errors import SandboxUnavailable
from handrail.process.spec import ProcessSpec
from handrail.sandbox import plan_retries, probe
from handrail.sandbox.choose_sandbox import Sandbox
from handrail.sandbox.landlock import ruleset
from handrail.sandbox.plan import path_rules, plan
from handrail.sandbox.plan.safe_open import Exchanged
from handrail.sandbox.profile import off, read_only, workspace_write
from handrail.sandbox.sandboxed_command import BUBBLEWRAP, LANDLOCK, NO_SANDBOX, Command

needs_landlock = pytest.mark.skipif(
    ruleset.abi_version() < ruleset.LOWEST_ABI, reason="this kernel has no Landlock to speak of"
)
TRUE = Command((b"/bin/true",), b"/", {b"PATH": b"/usr/bin:/bin"})


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox()
    yield made
    made.close(0)


@pytest.fixture
def no_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "BWRAP_PLACES", ())


def test_bubblewrap_comes_first(sandbox: Sandbox) -> None:
    made = sandbox.sandboxed(TRUE, read_only())
    assert (made.mechanism, made.reason) == (BUBBLEWRAP, "")
    assert made.running is not None
    made.abandon()


def test_no_sandbox_leaves_the_command_as_it_is(sandbox: Sandbox) -> None:
    spec = ProcessSpec((b"/bin/true",), b"/", {})
    made = sandbox.sandboxed(spec, off())
    assert (made.mechanism, made.argv, made.passed) == (NO_SANDBOX, spec.argv, ())
    assert made.spec(spec) is spec


@needs_landlock
@pytest.mark.usefixtures("no_bubblewrap")
def test_landlock_takes_its_place(sandbox: Sandbox) -> None:
    made = sandbox.sandboxed(TRUE, read_only())
    assert (made.mechanism, made.running) == (LANDLOCK, None)
    assert "bubblewrap" in made.reason
    made.abandon()


@needs_landlock
@pytest.mark.usefixtures("no_bubblewrap")
def test_what_neither_can_enforce_is_refused_with_both_reasons(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    with pytest.raises(SandboxUnavailable, match=r"bubblewrap.*; Landlock.*cannot hold"):
        sandbox.sandboxed(TRUE, workspace_write((os.fsencode(tmp_path),)))
    with pytest.raises(SandboxUnavailable, match="refusals are recorded only with it"):
        sandbox.sandboxed(TRUE, read_only(), watch=True)


@pytest.mark.usefixtures("no_bubblewrap")
def test_one_that_is_closed_starts_nothing(sandbox: Sandbox) -> None:
    sandbox.close(0)
    with pytest.raises(SandboxUnavailable, match=r"^this sandbox is closed"):
        sandbox.sandboxed(TRUE, read_only())


def test_one_budget_for_a_start(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that are overtaken and sandboxes that could not be set up are counted together."""
    looks = 0
    real = path_rules.Resolver.build

    def moving(self: path_rules.Resolver) -> plan.Plan:
        nonlocal looks
        looks += 1
        if looks % 2:
            raise Exchanged(b"/somewhere")
        return real(self)

    monkeypatch.setattr(path_rules.Resolver, "build", moving)
    problem = SandboxUnavailable("bwrap: it has vanished")
    made = sandbox.sandboxed(TRUE, read_only())
    begun = 1
    with pytest.raises(SandboxUnavailable, match="it has vanished"):
        while True:
            made.abandon()
            assert made.again is not None
            made = made.again(problem)
            begun += 1
    assert begun == plan_retries.MOST // 2


def test_a_remembered_profile_follows_the_list_of_private_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_places, "_added", dict(private_places._added))
    sandbox, intent = Sandbox(), read_only()
    before = sandbox.resolve(intent, b"/")
    assert sandbox.resolve(read_only(), b"/") is before
    secret = bytes(tmp_path / "token")
    private_places.add(secret)
    assert secret not in before.private
    assert secret in sandbox.resolve(intent, b"/").private
    sandbox.close()


def test_the_hash_of_a_profile_does_not_travel() -> None:
    intent = read_only()
    assert hash(intent) == hash(read_only())
    copied = pickle.loads(pickle.dumps(intent))
    assert copied == intent
    assert "_hash" not in pickle.dumps(intent).decode("latin-1")
