"""An agent loop in the form of OpenAI's Chat Completions, with approvals.

``ScriptedModel`` stands in for ``client.chat.completions.create``: it gets the same messages and
tools and answers with the same shape, without a network.  ``python examples/agent_openai.py``.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from typing import Any

from handrail import AgentShell, Answer, Choice, Question

SCRIPT = [
    {"cmd": "echo 'print(6 * 7)' > answer.py"},
    {"cmd": "python3 answer.py"},
    {"cmd": "rm -rf answer.py"},
    {"cmd": "rm -rf answer.pyc"},
]


class ScriptedModel:
    """Says one command after the other, then that it is done."""

    def create(
        self, *, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        assert any(tool["function"]["name"] == "exec_command" for tool in tools)
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == len(SCRIPT):
            return {"role": "assistant", "content": "done"}
        function = {"name": "exec_command", "arguments": json.dumps(SCRIPT[turn])}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


def approve(question: Question) -> bool | Answer:
    """Keep sources; the rest may go."""
    if question.argv[-1].endswith(".py"):
        return Answer(Choice.DENY, "keep the sources")
    print(f"? {question.argv[-1]}: {question.reason}")
    return True


async def main() -> None:
    model = ScriptedModel()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "what is 6 * 7?"}]
    with tempfile.TemporaryDirectory() as folder:
        async with AgentShell(folder, approver=approve) as shell:
            tools = shell.tools("openai-chat")
            while True:
                message = model.create(messages=messages, tools=tools)
                messages.append(message)
                for call in message.get("tool_calls", []):
                    function = call["function"]
                    answer = await shell.call(function["name"], function["arguments"])
                    print("ok " if answer.ok else "no ", answer.text.splitlines()[-1])
                    reply = {"role": "tool", "tool_call_id": call["id"], "content": answer.text}
                    messages.append(reply)
                if not message.get("tool_calls"):
                    print(message["content"])
                    return


if __name__ == "__main__":
    asyncio.run(main())
