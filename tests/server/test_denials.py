"""``sandboxDenied``, ``denials`` and ``sandboxBackend`` as a client sees them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from handrail.errors import SandboxUnavailable
from handrail.sandbox import probe
from handrail.sandbox.landlock import ruleset
from tests.support.clients import MemoryClient
from tests.support.servers import serving

needs_landlock = pytest.mark.skipif(
    ruleset.abi_version() < ruleset.LOWEST_ABI, reason="this kernel has no Landlock to speak of"
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


def sandbox(workspace: Path, *, write: bool = True) -> dict[str, Any]:
    def special(kind: str) -> dict[str, Any]:
        return {"type": "special", "value": {"kind": kind}}

    entries = [{"path": special("root"), "access": "read"}]
    if write:
        entries.append({"path": special("project_roots"), "access": "write"})
    return {
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": entries},
            "network": "restricted",
        },
        "workspaceRoots": [workspace.as_uri()],
        "windowsSandboxLevel": "disabled",
    }


async def run(
    client: MemoryClient, name: str, script: str, given: dict[str, Any] | None, **members: Any
) -> dict[str, Any]:
    """What is said of a shell that has ended; ``exited`` is the notification."""
    started = await client.shell(name, script, sandbox=given, **members)
    await client.until_closed(name)
    page = await client.read(name)
    page["exited"] = await client.until_exited(name)
    page["started"] = started
    return page


async def test_a_guess_and_where_it_comes_from(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    given = sandbox(workspace)
    async with serving() as served:
        client = await served.client()
        page = await run(client, "p", f"echo x > {outside}", given)
        assert page["started"] == {"processId": "p", "sandboxType": "linuxSeccomp"}
        assert page["sandboxDenied"] is True
        assert page["denials"] == [
            {
                "kind": "file",
                "op": None,
                "path": str(outside),
                "source": "text",
                "certain": False,
            }
        ]
        assert page["exited"]["sandboxDenied"] is True
        assert "denials" not in page["exited"]  # this client named none of our members
        for number, (script, denied) in enumerate(
            [
                ("echo Permission denied; exit 1", True),
                ("echo Permission denied; exit 0", False),
                ("exit 1", False),
                ("exit 127", False),
                ("kill -SYS $$", True),
                ("(sleep 600 &) ; exit 3", False),
            ]
        ):
            page = await run(client, f"p{number}", script, given)
            assert (page["sandboxDenied"], page["exited"]["sandboxDenied"]) == (denied, denied)
            assert page["denials"] == []


async def test_without_a_sandbox_nothing_is_guessed() -> None:
    async with serving() as served:
        client = await served.client()
        page = await run(client, "p", "echo Permission denied; exit 1", None)
        assert page["sandboxDenied"] is False
        assert "denials" not in page
        assert "sandboxBackend" not in page["started"]


async def test_our_clients_are_told_with_the_exit(workspace: Path) -> None:
    async with serving() as served:
        client = await served.client(resumeSecret=None)
        page = await run(client, "p", "echo x > /nowhere", sandbox(workspace))
        assert page["exited"]["denials"] == page["denials"] != []
        assert page["started"]["sandboxBackend"] == "bubblewrap"


async def test_attempts_are_noted_when_asked_for(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    script = f"mkdir {outside}; cd {workspace}; mkdir in .git; exit 1"
    async with serving() as served:
        client = await served.client()
        page = await run(client, "p", f"({script}) 2>&-", sandbox(workspace), watchDenials=True)
        assert page["sandboxDenied"] is True
        assert {(d["op"], d["path"], d["source"], d["certain"]) for d in page["denials"]} <= {
            ("mkdir", str(outside), "notify", True),
            ("mkdir", str(workspace / ".git"), "notify", True),
        }
        assert str(outside) in {d["path"] for d in page["denials"]}
        page = await run(client, "q", "cd /; exit 0", sandbox(workspace), watchDenials=True)
        assert (page["sandboxDenied"], page["denials"]) == (False, [])
        # A terminal, a signal and an end in the middle are as without a watcher.
        members = {"sandbox": sandbox(workspace), "watchDenials": True}
        await client.shell("t", "tty; echo ready; sleep 600", tty=True, **members)
        await client.until_output("t", b"ready")
        await client.call("process/terminate", processId="t")
        await client.until_closed("t")
        assert b"not a tty" not in client.output("t")
    assert os.listdir(workspace) == ["in"]


# --- without bubblewrap ------------------------------------------------------------------------


@pytest.fixture
def no_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> probe.Bubblewrap:
        raise SandboxUnavailable("bubblewrap does not work here")

    monkeypatch.setattr(probe, "bubblewrap", missing)


@needs_landlock
@pytest.mark.usefixtures("no_bubblewrap")
async def test_landlock_holds_what_it_can(workspace: Path) -> None:
    (workspace / "file").write_text("content")
    given = sandbox(workspace, write=False)
    async with serving() as served:
        client = await served.client()
        script = f"cat {workspace}/file; echo x > {workspace}/new"
        page = await run(client, "p", script, given)
        assert page["started"]["sandboxBackend"] == "landlock"
        assert (page["exitCode"], page["sandboxDenied"]) == (2, True)
        assert client.output("p", "stdout") == b"content"
        await client.shell("t", "tty && exec sleep 600", tty=True, sandbox=given)
        await client.until_output("t", b"/dev/pts/")
        await client.call("process/signal", processId="t", signal="term")
        assert (await client.until_exited("t"))["exitCode"] == 143
        code = "import socket; socket.socket(socket.AF_UNIX)"
        page = await run(client, "s", f"python3 -c '{code}'", given)
        assert page["exitCode"] == 1
        path = (workspace / "file").as_uri()
        assert (await client.call("fs/getMetadata", path=path, sandbox=given))["size"] == 7
        refused = await client.refused("fs/remove", path=path, sandbox=given)
        assert refused == (-32600, "Permission denied (os error 13)")
    assert os.listdir(workspace) == ["file"]


@pytest.mark.usefixtures("no_bubblewrap")
async def test_what_landlock_cannot_hold_is_not_run(workspace: Path) -> None:
    given = sandbox(workspace)
    async with serving() as served:
        client = await served.client()
        params = client.start_params("p", "touch", str(workspace / "x"), sandbox=given)
        code, text = await client.refused("process/start", params)
        assert code == -32602
        assert "bubblewrap does not work here" in text
        assert "Landlock" in text
        code, text = await client.refused("fs/remove", path=workspace.as_uri(), sandbox=given)
        assert (code, "Landlock" in text) == (-32602, True)
    assert os.listdir(workspace) == []
