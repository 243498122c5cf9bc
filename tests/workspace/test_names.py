"""The blocking classes and their asynchronous twins have the same names; others are explained."""

from __future__ import annotations

import copy
import enum
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import handrail
from handrail import UsageError, Workspace

TWINS = [
    (handrail.Workspace, handrail.AsyncWorkspace),
    (handrail.Process, handrail.AsyncProcess),
    (handrail.WorkspaceFiles, handrail.AsyncFiles),
    (handrail.FileWatch, handrail.AsyncFileWatch),
    (handrail.Shell, handrail.AsyncShell),
    (handrail.PythonSession, handrail.AsyncPythonSession),
    (handrail.Exposure, handrail.AsyncExposure),
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


def test_what_cannot_be_set_is_explained(ws: Workspace) -> None:
    """An attribute that nothing reads would be a setting that has no effect."""
    anything: Any = ws
    for name, said in (("sandbox", "has no 'sandbox' to be set"), ("limits", "cannot be set")):
        with pytest.raises(UsageError, match=said):
            setattr(anything, name, "read-only")

    class Own(Workspace):
        def __init__(self) -> None:
            super().__init__()
            self.task = 42

    assert Own().task == 42


async def test_what_is_not_awaited_yet_says_so(tmp_path: Path) -> None:
    opening: Any = handrail.AsyncWorkspace(tmp_path).shell()
    with pytest.raises(UsageError, match="has no 'run' before it is awaited"):
        opening.run("true")
    opening.close()


async def test_the_statement_of_the_twin_is_explained(tmp_path: Path) -> None:
    blocking: Any = Workspace(tmp_path)
    twin: Any = handrail.AsyncWorkspace(tmp_path)
    with pytest.raises(UsageError, match=r"^an AsyncWorkspace is for `async with`, not for `with`"):
        with twin:
            pass
    with pytest.raises(UsageError, match=r"^a Workspace is for `with`, not for `async with`"):
        async with blocking:
            pass
    shell: Any = handrail.AgentShell(tmp_path)
    with pytest.raises(UsageError, match=r"^an AgentShell is for `async with`"):
        with shell:
            pass
    async with handrail.AsyncWorkspace(tmp_path, sandbox="off") as ws:
        process: Any = await ws.start("true")
        with pytest.raises(UsageError, match=r"^an AsyncProcess is for `async for`, not for `for`"):
            list(process)
        async with ws.shell() as session:
            some: Any = session
            with pytest.raises(UsageError, match=r"^an AsyncShell is for `async with`"):
                with some:
                    pass


def test_kinds_are_texts_as_in_json() -> None:
    """So that a program compares them with what the documentation and ``--json`` say."""
    assert handrail.ExitKind.LIMIT_EXCEEDED == "limitExceeded"
    assert handrail.WaitReason.DEADLINE == "deadline"
    assert handrail.Choice.DENY == "denied"
    assert f"{handrail.ExitKind.TIMED_OUT}" == "timedOut"


def readable() -> list[type]:
    """The exported classes of which a caller reads attributes."""
    exported = [getattr(handrail, name) for name in handrail.__all__]
    kinds = [one for one in exported if inspect.isclass(one) and one is not handrail.Approver]
    return [one for one in kinds if not issubclass(one, BaseException | enum.Enum)]


@pytest.mark.parametrize("kind", readable())
def test_a_mistaken_attribute_of_anything_is_explained(kind: Any) -> None:
    with pytest.raises(UsageError, match="has no 'xyzzy'"):
        kind.__new__(kind).xyzzy  # noqa: B018


def test_what_an_object_itself_has_is_offered(ws: Workspace) -> None:
    result: Any = ws.run("true")
    for wrong, right in (("durations", "duration"), ("exits", "exit"), ("argvs", "argv")):
        with pytest.raises(UsageError, match=f"did you mean '{right}'"):
            getattr(result, wrong)


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


def test_arguments_that_are_not_taken_are_explained(ws: Workspace) -> None:
    any_of: Any = handrail
    anything: Any = ws
    process: Any = ws.start("true")
    files: Any = ws.files
    with ws.shell() as shell:
        session: Any = shell
        mistakes: list[tuple[Callable[[], object], str]] = [
            (lambda: any_of.Workspace(sandbx="off"), "did you mean 'sandbox'"),
            (lambda: any_of.Limits(memry=5), "did you mean 'memory'"),
            (lambda: any_of.Profile(wirte=(".",)), "did you mean 'write'"),
            (lambda: any_of.Managed(alow=["x"]), "did you mean 'allow'"),
            (lambda: any_of.Limits(memory="2GiB"), "in bytes such as 2 << 30"),
            (lambda: any_of.Workspace(at=5), "an address such as 'ssh://box'"),
            (lambda: any_of.Workspace(at="box"), "give ws://host:port"),
            (lambda: any_of.Workspace(token="t"), "give its address with at="),
            (lambda: process.kill, "did you mean 'terminate'"),
            (lambda: process.returncode, "did you mean 'exit'"),
            (lambda: any_of.AgentShell(".", aprover=None), "did you mean 'approver'"),
            (lambda: process.wait(timout=1), "did you mean 'timeout'"),
            (lambda: process.resize(5), "missing 1 required"),
            (lambda: files.read("x", txt=True), "did you mean 'text'"),
            (files.stat, "missing 1 required"),
            (lambda: session.run("true", tiemout=1), "did you mean 'timeout'"),
            (lambda: session.rnu, "did you mean 'run'"),
            (lambda: process.result(timeout=20).exitcode, "did you mean 'exit_code'"),
            (lambda: process.wait(timeout=20).sginal, "did you mean 'signal'"),
            (anything.run, "missing 1 required.*it takes command"),
            (any_of.run, "missing 1 required.*it takes command"),
            (lambda: any_of.run("true", tty="y"), "tty= takes True or False, not 'y'"),
            (lambda: anything.run("true", check="x"), "check= takes True or False"),
            (lambda: anything.start("true", watch_denials=1), "watch_denials= takes True or"),
            (lambda: anything.run("true", env={1: "x"}), "names are texts"),
            (lambda: anything.run("cat", stdin="x"), "run takes input="),
            (lambda: anything.run("true", labels=5), "labels are texts by name"),
            (lambda: session.run("true", on_output=5), "on_output is a function"),
            (lambda: any_of.AgentShell(".", login="x"), "login= takes True or False"),
            (lambda: any_of.DenyAllApprover(5), "text= takes a str, not int"),
            (lambda: any_of.AllowListApprover(5), "prefixes are a list"),
            (process.press, "no key to press"),
            (lambda: anything.run("true", "more"), "it takes .*text, other options by their names"),
            (lambda: anything.run("true", chekc=True), "did you mean 'check'"),
            (lambda: anything.run("true", max_outpt=1), "did you mean 'max_output'"),
            (lambda: any_of.run("true", inherit="core"), "did you mean 'inherit_env'"),
            (lambda: anything.run({"true": 1}), "not a dict"),
            (lambda: anything.run([""]), "the first word is empty"),
            # What only a command has: a terminal would have no end mark, input would be its script.
            (lambda: anything.shell(tty=True), "no option 'tty'; there are cwd"),
            (lambda: anything.shell(input="true"), "no option 'input'"),
            (lambda: anything.shell(on_output=print), "no option 'on_output'"),
            (lambda: anything.python(timeout=1), "no option 'timeout'; there are cwd"),
            (lambda: anything.python(process="1"), "'1' is no running process"),
            (lambda: anything.forget("1"), "forget takes a process"),
            (lambda: files.glob("/etc/*"), "a pattern is relative"),
            (lambda: files.glob("../*"), "a pattern is relative"),
        ]
        for call, said in mistakes:
            with pytest.raises(UsageError, match=said):
                call()
    # A mistake of the caller's own function is its own.
    with pytest.raises(TypeError, match="unsupported operand"):
        ws.run("echo x", on_output=lambda piece: piece + 1)  # type: ignore[operator]


@pytest.mark.parametrize(
    "wrong",
    [
        {"where": 5},
        {"policy": "always"},
        {"hooks": 5},
        {"hooks": [5]},
        {"on_event": 5},
        {"approval_timeout": "soon"},
        {"rules_file": 5},
    ],
)
def test_arguments_of_an_agent_are_checked(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        handrail.AgentShell(**{"where": tmp_path, **wrong})


@pytest.mark.parametrize(
    "wrong",
    [{"env": ["A"]}, {"secrets": ["A"]}, {"limits": {}}, {"executor": 5}, {"token": 5}],
)
def test_types_of_a_workspace_are_checked(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Workspace(tmp_path, **wrong)
