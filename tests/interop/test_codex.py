"""Every task, given to the real Codex command line, with its commands run by each server.

``HANDRAIL_INTEROP_PEER=1`` adds Codex's own exec-server, to see whether a task is fair.
``HANDRAIL_INTEROP_LOG=DIR`` keeps what was said on the wire, one file for each test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.interop.codex import INSTALL_LIMIT
from tests.interop.kinds import KINDS, Attachment, Kind, Servers, over_stdio, over_websocket
from tests.interop.stage import Stage
from tests.interop.tasks import ALL, TOOL_URL, Outcome, Task
from tests.interop.wire_order import check_order

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


@pytest.mark.parametrize(("task", "kind"), list(parameters()))
def test_task(
    task: Task,
    kind: Kind,
    servers: Servers,
    stage: Stage,
    tool_url: str,
    request: pytest.FixtureRequest,
) -> None:
    model = stage.set_up(task.steps, task.model, task.config.replace(TOOL_URL, tool_url))
    furnish(task, stage.workspace)
    with attached(kind, task, servers, stage) as attachment:
        environment = {**attachment.environment, "HANDRAIL_INTEROP_CLIENT": "seen"}
        turn = stage.play(model, environment, task.sandbox, task.limit)
    recording = attachment.recording
    keep_log(attachment, request.node.callspec.id)
    assert recording.order()[:2] == ["initialize", "initialized"]
    assert recording.unanswered() == {}
    check_order(recording, cut=bool(task.cuts))
    task.check(
        Outcome(
            script=model.script,
            model=model,
            turn=turn,
            recording=recording,
            workspace=stage.workspace,
            outside=stage.outside,
            transport=kind.transport,
            offers=kind.offers,
        )
    )


def attached(
    kind: Kind, task: Task, servers: Servers, stage: Stage
) -> AbstractContextManager[Attachment]:
    """The way from the client to a server."""
    if kind.transport == "ws":
        return over_websocket(servers.url(kind), task.cuts)
    return over_stdio(kind, stage.codex, stage.home)


def furnish(task: Task, workspace: Path) -> None:
    """Put into the workspace what the task says."""
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
