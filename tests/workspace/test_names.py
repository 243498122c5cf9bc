"""The blocking classes and their asynchronous twins have the same names; others are explained."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest

import handrail
from handrail import UsageError, Workspace

TWINS = [
    (handrail.Workspace, handrail.AsyncWorkspace),
    (handrail.Process, handrail.AsyncProcess),
    (handrail.WorkspaceFiles, handrail.AsyncFiles),
]
#: The accessor of the twin.
ACCESSORS = {"asynchronous"}


def names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - ACCESSORS


@pytest.mark.parametrize(("blocking", "twin"), TWINS)
def test_twins_have_the_same_names_and_arguments(blocking: type, twin: type) -> None:
    assert names(blocking) == names(twin)
    for name in names(blocking):
        ours, theirs = getattr(blocking, name), getattr(twin, name)
        if callable(ours):
            mine = set(inspect.signature(ours).parameters) - {"options"}
            assert mine <= set(inspect.signature(theirs).parameters), name


def test_an_unknown_attribute_is_explained(ws: Workspace) -> None:
    process: Any = ws.start("cat")
    for thing, wrong, right in (
        (process, "terminat", "terminate"),
        (ws, "strat", "start"),
        (ws.files, "raed", "read"),
    ):
        with pytest.raises(UsageError, match=f"did you mean '{right}'"):
            getattr(thing, wrong)
        assert not hasattr(thing, wrong)
    with pytest.raises(UsageError, match=r"there are .*result"):
        process.xyzzy  # noqa: B018
    assert copy.copy(process).id == process.id


def test_an_unknown_option_is_explained(ws: Workspace) -> None:
    anything: Any = ws
    with pytest.raises(UsageError, match="'tiemout'; did you mean 'timeout'"):
        anything.start("true", tiemout=1)
    with pytest.raises(UsageError, match="'shell'"):
        anything.run("true", shell=True)


def test_arguments_of_a_process_are_checked(ws: Workspace) -> None:
    process: Any = ws.start("cat", tty=True)
    for call in (
        lambda: process.signal(None),
        lambda: process.wait("soon"),
        lambda: process.result(timeout=-1),
        lambda: process.wait_for(5),
        lambda: process.wait_for("x", timeout="soon"),
        lambda: process.terminate("soon"),
        lambda: process.send(5),
        lambda: process.press("hyper-x"),
        lambda: process.press(5),
        lambda: process.resize("a", 2),
    ):
        with pytest.raises(UsageError):
            call()


def test_arguments_of_a_workspace_are_checked(tmp_path: Path) -> None:
    wrong: Any = Workspace
    for options in ({"at": 5}, {"sandbox": 5}, {"request_timeout": "soon"}):
        with pytest.raises(UsageError):
            wrong(tmp_path, **options)
