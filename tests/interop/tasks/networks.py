"""The client's managed network, carried by the server: allowed, denied and unlisted hosts."""

from __future__ import annotations

from tests.interop.script import Run
from tests.interop.tasks.task import SANDBOX, Outcome, Task

CONFIG = """
[sandbox_workspace_write]
network_access = true

[features.network_proxy]
enabled = true
mode = "full"

[features.network_proxy.domains]
"127.0.0.1" = "allow"
"bad.example" = "deny"
"""


def check_managed(o: Outcome) -> None:
    """The client sends its lists with a profile whose network is open: the lists hold."""
    for start in o.recording.requests("process/start"):
        assert start.params["enforceManagedNetwork"] is True
        assert start.params["networkProxy"]["proxy"]["enabled"] is True
        assert start.params["sandbox"]["permissions"]["network"] == "enabled"
        assert start.result["sandboxType"] == "linuxSeccomp"
    # It was dialled: nothing listens there.
    assert "upstream failure" in o.answer(0).output
    assert '"host":"bad.example","reason":"denied"' in o.answer(1).output
    assert '"host":"new.example","reason":"not_allowed"' in o.answer(2).output
    assert o.answer(3).exit_code not in (0, None)
    told = o.recording.notes("network/policyDecision")
    decided = [(one["host"], one["decision"], one["protocol"]) for one in told]
    assert ("bad.example", "deny", "http") in decided
    assert ("127.0.0.1", "allow", "http") in decided


TASKS = (
    Task(
        name="managed-network",
        steps=(
            Run("curl -sS -m 20 http://127.0.0.1:9/"),
            Run("curl -sS -m 20 http://bad.example/"),
            Run("curl -sS -m 20 http://new.example/"),
            Run("curl -sS -m 20 --noproxy '*' http://192.0.2.1/"),
        ),
        check=check_managed,
        needs=frozenset({SANDBOX}),
        sandbox="workspace-write",
        config=CONFIG,
    ),
)
