"""Tool servers that the client has run, or asked, by the environment.

On stdio it is a process with an open stdin pipe, over HTTP it is ``http/request``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop import tool_server
from tests.interop.script import Run, Use
from tests.interop.tasks.task import HTTP, TOOL_URL, Outcome, Task

SERVER = "rail"
USE = Use(SERVER, tool_server.TOOL)
ON_STDIO = f"""
[mcp_servers.{SERVER}]
command = "{sys.executable}"
args = ["{Path(tool_server.__file__)}"]
cwd = "/usr"
env = {{ HANDRAIL_INTEROP_SET = "by its settings" }}
environment_id = "remote"
required = true
"""
OVER_HTTP = f"""
[mcp_servers.{SERVER}]
url = "{TOOL_URL}"
environment_id = "remote"
required = true
"""


def check_stdio(o: Outcome) -> None:
    for step in (0, 1):
        assert o.answer(step).text.endswith("by its settings in /usr")
    o.ran(2, "a command beside it\n")
    [start, _] = o.recording.requests("process/start")
    assert (start.params["tty"], start.params["pipeStdin"]) == (False, True)
    assert start.params["envPolicy"]["inherit"] == "core"
    writes = o.recording.requests("process/write")
    assert {write.params["processId"] for write in writes} == {start.params["processId"]}
    assert len(writes) >= 5  # the handshake, the list, two calls


def check_http(o: Outcome) -> None:
    assert o.answer(0).text.endswith(tool_server.OVER_HTTP)
    asked = o.recording.requests("http/request")
    assert all(e.params["streamResponse"] for e in asked)
    last = [n["requestId"] for n in o.recording.notes("http/request/bodyDelta") if n["done"]]
    assert sorted(last) == sorted(e.params["requestId"] for e in asked)


TASKS = (
    Task(
        "tool-server-on-stdio",
        (USE, USE, Run("echo a command beside it")),
        check_stdio,
        config=ON_STDIO,
    ),
    Task("tool-server-over-http", (USE,), check_http, needs=frozenset({HTTP}), config=OVER_HTTP),
)
