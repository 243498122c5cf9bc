"""An agent loop in the form of Anthropic's Messages, with approvals from a list.

``ScriptedModel`` stands in for ``client.messages.create``: it gets the same messages and tools and
answers with the same blocks, without a network.  ``python examples/agent_anthropic.py``.
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from handrail import AgentShell, AllowListApprover, Question

PATCH = "*** Begin Patch\n*** Add File: notes.txt\n+hello\n*** End Patch\n"
SCRIPT: list[tuple[str, dict[str, Any]]] = [
    ("apply_patch", {"patch": PATCH}),
    ("exec_command", {"cmd": "cat notes.txt"}),
    ("exec_command", {"cmd": "rm -rf build"}),
    ("exec_command", {"cmd": "rm -rf notes.txt"}),
]


class ScriptedModel:
    """Uses one tool after the other, then ends its turn."""

    def create(
        self, *, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        assert all(tool["input_schema"]["type"] == "object" for tool in tools)
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == len(SCRIPT):
            return {"stop_reason": "end_turn", "content": [{"type": "text", "text": "done"}]}
        name, given = SCRIPT[turn]
        block = {"type": "tool_use", "id": f"toolu_{turn}", "name": name, "input": given}
        return {"stop_reason": "tool_use", "content": [block]}


def refuse(question: Question) -> bool:
    """What the list does not have."""
    print(f"? {question.argv[-1]}: {question.reason}")
    return False


async def main() -> None:
    model = ScriptedModel()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "tidy up"}]
    approver = AllowListApprover(["rm -rf build"], otherwise=refuse)
    with tempfile.TemporaryDirectory() as folder:
        async with AgentShell(folder, approver=approver) as shell:
            tools = shell.tools("anthropic")
            while True:
                reply = model.create(messages=messages, tools=tools)
                messages.append({"role": "assistant", "content": reply["content"]})
                if reply["stop_reason"] != "tool_use":
                    print(reply["content"][0]["text"])
                    return
                results = []
                for block in reply["content"]:
                    answer = await shell.call(block["name"], block["input"])
                    print("ok " if answer.ok else "no ", answer.text.splitlines()[-1])
                    results.append(
                        {
                            "type": "tool_result",
                            "tool_use_id": block["id"],
                            "content": answer.text,
                            "is_error": not answer.ok,
                        }
                    )
                messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    asyncio.run(main())
