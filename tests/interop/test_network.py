"""The client's managed network with questions: an administrator requires it, a reviewer answers.

The released client asks its automatic reviewer alone, another conversation with the model, and
only where /etc requires a managed network.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest

from tests.interop.codex import INSTALL_LIMIT
from tests.interop.kinds import KINDS, Servers, over_websocket
from tests.interop.model import Model, event, stream
from tests.interop.requirements import with_requirements
from tests.interop.script import Run, Script, message
from tests.interop.stage import Stage
from tests.network.origin import origin

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(INSTALL_LIMIT + 60),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

REQUIRED = """
[experimental_network]
enabled = true
allow_local_binding = true

[experimental_network.domains]
"127.0.0.1" = "allow"
"denied.localhost" = "deny"
"""
_HOST = re.compile(r'\\"host\\": \\"([^"\\]+)\\"')


class ReviewedModel(Model):
    """A model that is its own reviewer: it approves of the hosts that are called good."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.reviewed: list[str] = []

    def answer(self, body: bytes) -> bytes:
        request = json.loads(body)
        if "format" not in (request.get("text") or {}):
            return super().answer(body)
        host = _HOST.findall(json.dumps(request["input"]))[-1]
        self.reviewed.append(host)
        good = host.startswith("good")
        verdict = {"outcome": "allow" if good else "deny", "rationale": "as the test has it"}
        verdict |= {"risk_level": "low" if good else "high", "user_authorization": "high"}
        items = [message(json.dumps(verdict))]
        return b"".join(map(event, stream(f"review-{len(self.reviewed)}", items)))


@pytest.mark.parametrize("sandbox", ["read-only", "workspace-write"])
def test_hosts(sandbox: str, servers: Servers, stage: Stage) -> None:
    (kind,) = [kind for kind in KINDS if kind.name == "ours-ws"]
    wrapped = with_requirements(stage.codex, stage.room / "required", REQUIRED)
    with origin() as port, over_websocket(servers.url(kind), ()) as attachment:
        hosts = ["127.0.0.1", "denied.localhost", "good.localhost", "bad.localhost"]
        # Local hosts are exempt from the proxy, by a variable.
        steps = [Run(f"curl -sS -m 60 --noproxy '' http://{host}:{port}/") for host in hosts]
        model = stage.set_up(steps, make=ReviewedModel)
        config = stage.home / "config.toml"
        asking = 'approval_policy = "on-request"\napprovals_reviewer = "auto_review"'
        config.write_text(config.read_text().replace('approval_policy = "never"', asking))
        replace(stage, codex=wrapped).play(model, attachment.environment, sandbox, limit=120)
    allowed, denied, asked_allowed, asked_denied = model.script.answers
    assert allowed.output == asked_allowed.output == "ORIGIN"
    assert '"host":"denied.localhost","reason":"denied"' in denied.output
    # The client ends a command whose host was refused by its reviewer.
    assert "rejected" in asked_denied.text
    assert "ORIGIN" not in asked_denied.text
    assert isinstance(model, ReviewedModel)
    assert model.reviewed == hosts[2:]
    asked = [
        frame.message["params"]["request"]
        for frame in attachment.recording.frames
        if frame.method == "network/policyRequest"
    ]
    assert asked == [{"protocol": "http", "host": host, "port": port} for host in hosts[2:]]
    for start in attachment.recording.requests("process/start"):
        assert start.params["enforceManagedNetwork"] is True
        assert start.result["sandboxType"] == "linuxSeccomp"
