"""A complete agent loop in sixty lines: a model that follows a script, a shell with a guard.

Put your model's client where ``ScriptedModel`` is: it is told the tools once and the answers of
its calls, and says which tool to call next.  ``python examples/agent_loop.py`` runs it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from handrail import AgentShell, Answer, Choice, Question

PATCH = """\
*** Begin Patch
*** Update File: greet.py
@@
-print("hello")
+print("hello,", input("name?\\n"))
*** End Patch
"""


class ScriptedModel:
    """Stands in for a model: says its next tool call, and sees what came of the last one."""

    def __init__(self, tools: list[dict[str, object]]) -> None:
        self.tools = tools
        self.session = 0

    def turns(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "exec_command", {"cmd": "echo 'print(\"hello\")' > greet.py && python3 greet.py"}
        yield "apply_patch", {"patch": PATCH}
        yield "exec_command", {"cmd": "python3 greet.py", "tty": True, "yield_time_ms": 1000}
        yield "write_stdin", {"session_id": self.session, "chars": "world\n", "yield_time_ms": 9000}
        yield "exec_command", {"cmd": "rm -rf greet.py"}

    def hears(self, text: str) -> None:
        for line in text.splitlines():
            if line.startswith("Process running with session ID "):
                self.session = int(line.rsplit(" ", 1)[1])


def careful(question: Question) -> Answer:
    """An approver: says no to everything that is asked, and why."""
    print(f"? {question.argv[-1]!r}: {question.reason}")
    return Answer(Choice.DENY, "keep the file, it is wanted")


async def main(sandbox: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with AgentShell(folder, approver=careful, sandbox=sandbox) as shell:
            model = ScriptedModel(shell.tools())
            for tool, arguments in model.turns():
                print(f"> {tool} {json.dumps(arguments)}")
                answer = await shell.call(tool, arguments)
                print(answer.text, end="\n\n")
                model.hears(answer.text)
                if answer.aborted:
                    break


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or ["workspace-write"]))
