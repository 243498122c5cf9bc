"""What the client's sandbox modes come to: enforced by the server, or refused, never ignored.

In these modes the client sends a ``sandbox`` with every start and every file operation.  A server
that cannot enforce it has to refuse; both outcomes are written down here.
"""

from __future__ import annotations

from tests.interop.script import Run
from tests.interop.tasks.files import patch, patched
from tests.interop.tasks.task import SANDBOX, Outcome, Task

REFUSAL = "sandbox intent cannot be enforced on this executor"
CONNECT = "exec 3<>/dev/tcp/127.0.0.1/9"
#: No socket at all, no way out, or a loopback of its own on which nobody listens.
NO_NETWORK = (
    "Operation not permitted",
    "Permission denied",
    "Network is unreachable",
    "Connection refused",
)


def refused(o: Outcome, *steps: int) -> None:
    """Assert that nothing was run in these steps, and why."""
    for step in steps:
        answer = o.answer(step)
        assert REFUSAL in answer.text
        assert answer.exit_code is None
    for start in o.recording.requests("process/start"):
        assert start.params["sandbox"] is not None
        assert start.error is not None


def denied(o: Outcome, step: int, *reasons: str) -> None:
    """Assert that a command was run, and was stopped by the sandbox."""
    answer = o.answer(step)
    assert answer.exit_code not in (0, None), answer.text
    assert any(reason in answer.output for reason in reasons), answer.text


def sandboxed(o: Outcome) -> None:
    """Assert that the server says so of every process."""
    starts = o.recording.requests("process/start")
    assert {start.result["sandboxType"] for start in starts} == {"linuxSeccomp"}


def check_read_only(o: Outcome) -> None:
    assert [path.name for path in o.workspace.iterdir()] == ["given.txt"]
    assert list(o.outside.iterdir()) == []
    assert "read-only sandbox" in o.answer(3).text  # the client's own rule
    if SANDBOX not in o.offers:
        refused(o, 0, 1, 2, 4)
        return
    sandboxed(o)
    o.ran(0, "given\n")
    denied(o, 1, "Read-only file system", "Permission denied")
    denied(o, 2, "Read-only file system", "Permission denied")
    denied(o, 4, *NO_NETWORK)


def check_workspace(o: Outcome) -> None:
    assert list(o.outside.iterdir()) == []
    assert not (o.workspace / ".git" / "evil").exists()
    if SANDBOX not in o.offers:
        refused(o, 0, 1, 2, 3, 4)
        assert not (o.workspace / "made.txt").exists()
        return
    sandboxed(o)
    o.ran(0, "made\n")
    assert (o.workspace / "made.txt").read_text() == "made\n"
    denied(o, 1, "Read-only file system", "Permission denied")
    denied(o, 2, "Read-only file system", "Permission denied")
    denied(o, 3, *NO_NETWORK)
    o.ran(4, "a terminal\r\n1\r\n")


def check_patches(o: Outcome) -> None:
    assert list(o.outside.iterdir()) == []
    assert "outside of the project" in o.answer(1).text  # the client's own rule
    # The client looks at names only, so it is the server that has to see where the link leads.
    assert "Success" not in o.answer(2).text
    for call in o.recording.requests("fs/writeFile"):
        assert call.params["sandbox"]["permissions"]["type"] == "managed"
    if SANDBOX in o.offers:
        patched(o, 0, "A new.txt")
        assert (o.workspace / "new.txt").read_text() == "x\n"
    else:
        assert "Success" not in o.answer(0).text
        assert not (o.workspace / "new.txt").exists()


TASKS = (
    Task(
        "sandbox-read-only",
        (
            Run("cat given.txt"),
            Run("echo x > new.txt"),
            Run("echo x > ../outside/new.txt"),
            patch("*** Add File: patched.txt", "+x"),
            Run(CONNECT),
        ),
        check_read_only,
        files={"given.txt": "given\n"},
        sandbox="read-only",
    ),
    Task(
        "sandbox-workspace-write",
        (
            Run("echo made > made.txt && cat made.txt"),
            Run("echo x > ../outside/new.txt"),
            Run("echo x > .git/evil"),
            Run(CONNECT),
            Run("test -t 0 && echo a terminal; echo $CODEX_SANDBOX_NETWORK_DISABLED", tty=True),
        ),
        check_workspace,
        files={".git/HEAD": "ref: refs/heads/main\n"},
        sandbox="workspace-write",
    ),
    Task(
        "sandbox-patches",
        (
            patch("*** Add File: new.txt", "+x"),
            patch("*** Add File: ../outside/new.txt", "+x"),
            patch("*** Add File: link/new.txt", "+x"),
        ),
        check_patches,
        links={"link": "../outside"},
        sandbox="workspace-write",
    ),
)
