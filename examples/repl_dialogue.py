"""A dialogue with a Python REPL in a terminal: send, wait for what it says, go on.

python examples/repl_dialogue.py
"""

from __future__ import annotations

import sys
import tempfile

from handrail import Process, WaitReason, Workspace


def ask(repl: Process, question: str) -> str:
    """Type one expression and read the line that answers it."""
    repl.send(f"{question}\n")
    repl.wait_for(r"\n")  # the echo of what was typed
    answer = repl.wait_for(r"[^\r\n]+(?=\r?\n)", timeout=10)
    if not answer:
        raise SystemExit(f"no answer to {question!r}: {answer.reason.value}")
    repl.wait_for(r">>> ", timeout=10)
    return answer.match


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, Workspace(directory) as ws:
        repl = ws.start([sys.executable, "-q"], tty=True, env={"PYTHON_BASIC_REPL": "1"})
        if not repl.wait_for(r">>> ", timeout=20):
            raise SystemExit("the REPL did not start")
        for question in ("6 * 7", "sum(range(101))", "'hand' + 'rail'"):
            print(f"{question} -> {ask(repl, question)}")
        repl.send("exit(3)\n")
        end = repl.wait_for(timeout=10)
        assert end.reason is WaitReason.EXIT
        assert end.exit is not None
        print(f"it exited with {end.exit.code}")


if __name__ == "__main__":
    main()
