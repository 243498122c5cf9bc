"""Every task, given to the real Codex command line, with its commands run by each server.

``HANDRAIL_INTEROP_PEER=1`` adds Codex's own exec-server, to see whether a task is fair.
``HANDRAIL_INTEROP_LOG=DIR`` keeps what was said on the wire, one file for each test.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from wire.servers import MARK, Household

from .codex import INSTALL_LIMIT, NoCodex, cache_dir, find_codex, run_turn, write_config
from .kinds import KINDS, Attachment, Kind, Servers, over_stdio, over_websocket
from .model import Model
from .script import LAST_WORD, Script
from .tasks import ALL, Outcome, Task
from .wire_order import check_order

pytestmark = [pytest.mark.interop, pytest.mark.timeout(INSTALL_LIMIT + 60)]

LOGS = os.environ.get("HANDRAIL_INTEROP_LOG")


def parameters() -> Iterator[object]:
    """Each task on each server it is meant for."""
    for task in ALL:
        for kind in KINDS:
            if task.cuts and kind.transport != "ws":
                continue
            marks = []
            if missing := task.needs - kind.offers:
                reason = f"not offered yet: {', '.join(sorted(missing))}"
                marks.append(pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason))
            yield pytest.param(task, kind, id=f"{task.name}-{kind.name}", marks=marks)


@pytest.fixture(scope="module")
def codex() -> str:
    """The program."""
    try:
        return find_codex()
    except NoCodex as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A directory outside the system's temporary one, which sandboxes leave writable."""
    parent = cache_dir() / "interop"
    parent.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="run-", dir=parent)).resolve()
    yield base
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def servers(codex: str, base: Path) -> Iterator[Servers]:
    """One listening server of each sort; none may leave anybody behind."""
    home = base / "server"
    home.mkdir()
    servers = Servers(codex, home)
    yield servers
    for who, leftovers in servers.stop().items():
        assert leftovers == [], who


@pytest.fixture
def room(base: Path) -> Iterator[Path]:
    """A directory for one task."""
    room = Path(tempfile.mkdtemp(prefix="task-", dir=base))
    yield room
    shutil.rmtree(room)


@pytest.mark.parametrize(("task", "kind"), list(parameters()))
def test_task(
    task: Task,
    kind: Kind,
    codex: str,
    servers: Servers,
    room: Path,
    request: pytest.FixtureRequest,
) -> None:
    workspace, outside, home = (
        room / "project" / "work",
        room / "project" / "outside",
        room / "home",
    )
    furnish(task, workspace)
    outside.mkdir()
    script = Script(task.steps)
    model = Model(script)
    household = Household()
    with model.serving():
        write_config(home, model.base_url, task.model, task.config)
        with attached(kind, task, codex, servers, home) as attachment:
            leftovers: list[str] = []
            with household.cleared(leftovers):
                environment = {
                    **attachment.environment,
                    MARK: household.mark,
                    "HANDRAIL_INTEROP_CLIENT": "seen",
                }
                turn = run_turn(
                    codex, home, workspace, environment, "-s", task.sandbox, limit=task.limit
                )
    keep_log(attachment, request.node.callspec.id)
    assert leftovers == [], "the client or its server left somebody behind"
    assert model.errors == []
    assert turn.exit_code == 0, turn.stderr
    assert script.finished, turn.stderr
    assert [item["text"] for item in turn.items("agent_message")] == [LAST_WORD]
    check_order(attachment.recording, cut=bool(task.cuts))
    task.check(
        Outcome(
            script=script,
            model=model,
            turn=turn,
            recording=attachment.recording,
            workspace=workspace,
            outside=outside,
            transport=kind.transport,
            offers=kind.offers,
        )
    )


def attached(
    kind: Kind, task: Task, codex: str, servers: Servers, home: Path
) -> AbstractContextManager[Attachment]:
    """The way from the client to a server."""
    if kind.transport == "ws":
        return over_websocket(servers.url(kind), task.cuts)
    return over_stdio(kind, codex, home)


def furnish(task: Task, workspace: Path) -> None:
    """Put into the workspace what the task says."""
    workspace.mkdir(parents=True)
    for name, content in task.files.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    for name, target in task.links.items():
        (workspace / name).symlink_to(target)


def keep_log(attachment: Attachment, name: str) -> None:
    """For whoever asked to see what was said."""
    if LOGS:
        path = Path(LOGS) / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in attachment.recording.report()))
