"""The handshake and its violations: exec-server.md 2.2 to 2.5 and 3, C8 and C9."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from handrail.server.environment import EXTENSIONS
from handrail.version import __version__
from tests.support.clients import MemoryClient
from tests.support.servers import Served, serving

START = {"processId": "p", "argv": ["true"], "cwd": "file:///", "env": {}, "tty": False}

#: A method with good params, and how the wire calls its family.
FAMILIES: dict[str, tuple[Any, str]] = {
    "environment/info": ({}, "environment info"),
    "environment/status": ({}, "environment status"),
    "process/start": (START, "exec"),
    "process/read": ({"processId": "p"}, "exec"),
    "process/write": ({"processId": "p", "chunk": "", "writeId": "1"}, "exec"),
    "process/signal": ({"processId": "p", "signal": "interrupt"}, "exec"),
    "process/terminate": ({"processId": "p"}, "exec"),
    "process/resize": ({"processId": "p", "rows": 1, "cols": 1}, "exec"),
    "process/closeStdin": ({"processId": "p"}, "exec"),
    "process/list": ({}, "exec"),
    "session/close": ({}, "exec"),
    "session/temporary": ({}, "exec"),
    "fs/readFile": ({"path": "file:///x"}, "filesystem"),
    "fs/close": ({"handleId": "h"}, "filesystem"),
    "http/request": ({"method": "GET", "url": "http://x", "requestId": "r"}, "http"),
    "capabilityRoots/discoverV1": ({"roots": []}, "capability discovery"),
    "environmentConfig/read": (
        {"cwd": "file:///", "configPaths": [["a"]], "requirementsPaths": []},
        "environment config",
    ),
}

BEFORE = "client must call initialize before using {} methods"
BETWEEN = "client must send initialized before using {} methods"


async def refusals(client: MemoryClient) -> dict[str, tuple[int, str]]:
    return {
        method: await client.refused(method, params) for method, (params, _) in FAMILIES.items()
    }


async def test_every_family_wants_the_handshake_first() -> None:
    async with serving() as served:
        client = served.dial()
        assert await refusals(client) == {
            method: (-32600, BEFORE.format(family)) for method, (_, family) in FAMILIES.items()
        }
        await client.call("initialize", clientName="x")
        assert await refusals(client) == {
            method: (-32600, BETWEEN.format(family)) for method, (_, family) in FAMILIES.items()
        }
        client.notify("initialized")
        assert await client.call("environment/status") == {"status": "ready"}


async def test_params_are_looked_at_before_the_handshake() -> None:
    async with serving() as served:
        client = served.dial()
        for method, params in (
            ("environment/status", []),
            ("process/read", {}),
            ("process/start", {**START, "tty": 1}),
            ("process/list", {"a": 1}),
        ):
            code, _ = await client.refused(method, params)
            assert code == -32602, method


async def test_text_that_does_not_decode_is_found_before_the_handshake() -> None:
    """As the peer, for which URIs, base64 and sandboxes are part of the params' shape."""
    disabled = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}
    write = {"processId": "p", "writeId": "1"}
    get = {"method": "GET", "url": "http://x", "requestId": "r"}
    toml = {"configPaths": [["a"]], "requirementsPaths": []}
    rows: list[tuple[str, dict[str, Any], bool]] = [
        ("process/start", {**START, "cwd": "/native"}, False),
        ("process/start", {**START, "sandbox": {}}, False),
        ("process/start", {**START, "sandbox": disabled}, True),
        ("process/start", {**START, "cwd": "file://host/x"}, True),
        ("process/write", {**write, "chunk": "A"}, False),
        ("process/write", {**write, "chunk": "AA==", "writeId": ""}, True),
        ("fs/readFile", {"path": "http://x"}, False),
        ("fs/readFile", {"path": "file:///x", "sandbox": {"permissions": {}}}, False),
        ("fs/writeFile", {"path": "file:///x", "dataBase64": "A"}, True),
        ("fs/copy", {"sourcePath": "file:///x", "destinationPath": "x", "recursive": True}, False),
        ("fs/watchMissing", {"watchId": 1, "missing": ["file:///x", "x"]}, False),
        ("http/request", {**get, "bodyBase64": "A"}, False),
        ("http/request", {**get, "bodyBase64": None}, True),
        ("environmentConfig/read", {**toml, "cwd": "x"}, False),
        ("capabilityRoots/discoverV1", {"roots": [{"id": "a", "path": "x"}]}, False),
    ]
    async with serving() as served:
        client = served.dial()
        for method, params, decodes in rows:
            code, _ = await client.refused(method, params)
            assert code == (-32600 if decodes else -32602), (method, params)


async def test_an_unknown_method_needs_no_handshake() -> None:
    async with serving() as served:
        client = served.dial()
        for method in ("nosuch", "", "process/nosuch", "fs/rename", "shutdown", "x" * 10_000):
            code, text = await client.refused(method)
            assert code == -32601
            assert method[:200] in text
            assert len(text) < 300


async def test_initialize_only_once() -> None:
    once = (-32600, "initialize may only be sent once per connection")
    async with serving() as served:
        client = served.dial()
        await client.call("initialize", clientName="x")
        assert await client.refused("initialize", clientName="x") == once
        client.notify("initialized")
        assert await client.refused("initialize", clientName="x") == once
        assert await client.refused("initialize", clientName="x", resumeSessionId="y") == once
        assert (await client.refused("initialize", {}))[0] == -32602
        # And the session is none the worse for it.
        assert await client.call("environment/status") == {"status": "ready"}


async def test_a_failed_initialize_can_be_repeated() -> None:
    async with serving() as served:
        first = await served.client()
        client = served.dial()
        for params, code in (
            ({}, -32602),
            (None, -32602),
            ([], -32602),
            ({"clientName": 1}, -32602),
            ({"clientName": "x", "detachTtlMs": -1}, -32602),
            ({"clientName": "x", "detachTtlMs": 10**400}, -32602),
            ({"clientName": "x", "resumeSessionId": 5}, -32602),
            ({"clientName": "x", "resumeSessionId": "nosuch"}, -32600),
            ({"clientName": "x", "resumeSessionId": first.session}, -32010),
            ({"clientName": "x", "resumeSessionId": first.session, "resumeSecret": "é"}, -32010),
        ):
            before = len(client.messages)
            client.send_text(json.dumps({"id": 0, "method": "initialize", "params": params}))
            await client.until(lambda before=before: len(client.messages) > before)
            assert client.messages[-1]["error"]["code"] == code, params
        # A failed one leaves no session behind.
        assert len(served.server.sessions) == 1
        await client.handshake()
        assert await client.call("environment/status") == {"status": "ready"}


async def test_initialize_answers_with_what_was_asked_for() -> None:
    async with serving() as served:
        plain = await served.client()
        result = plain.messages[0]["result"]
        assert set(result) == {"sessionId", "environmentInfo"}
        assert uuid.UUID(result["sessionId"]).version == 4
        assert await plain.call("environment/info") == result["environmentInfo"]
        other = await served.client(resumeSecret=None)
        assert len(other.secret or "") >= 43  # 256 bits
        assert other.session != plain.session


async def test_initialized_may_come_again_with_any_params() -> None:
    async with serving() as served:
        client = await served.client()
        for params in (None, {}, [], {"a": 1}, "x"):
            client.notify("initialized", params)
        assert await client.call("environment/status") == {"status": "ready"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"method":"initialized"}', "`initialized` before a successful `initialize`"),
        ('{"method":"nosuch"}', "unknown notification nosuch"),
        ('{"method":"process/start","params":{}}', "unknown notification process/start"),
        ('{"method":"initialize","params":{"clientName":"x"}}', "unknown notification initialize"),
        ('{"id":1,"result":{}}', "never asked"),
        ('{"id":"x","error":{"code":1,"message":"no"}}', "never asked"),
    ],
)
async def test_a_violation_ends_the_connection_with_a_reason(text: str, why: str) -> None:
    async with serving() as served:
        client = served.dial()
        client.send_text(text)
        end = await client.until_ended()
        assert "1008" in end
        assert why in end
        assert client.messages == []


async def test_a_violation_leaves_the_session_resumable() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        client.notify("nosuch")
        await client.until_ended()
        again = await served.client(resumeSessionId=client.session)
        assert again.session == client.session
        assert (await again.read("p"))["exited"] is False


async def test_initialized_after_a_failed_initialize_ends_the_connection() -> None:
    async with serving() as served:
        client = served.dial()
        await client.refused("initialize", clientName="x", resumeSessionId="nosuch")
        client.notify("initialized")
        assert "1008" in await client.until_ended()


async def test_a_malformed_message_is_answered_under_minus_one() -> None:
    async with serving() as served:
        client = served.dial()
        malformed = [
            "", "nonsense", "[]", "{}", '{"id":null,"method":"m"}', '{"id":1.5,"method":"m"}',
            '{"id":1,"method":"m","method":"m"}', '{"id":1,"method":"m","trace":1}', "[" * 100_000,
            '{"id":1,"method":"m"} {}', "\ud83d\ude00".encode("utf-16", "surrogatepass").hex(),
        ]  # fmt: skip
        for text in malformed:
            client.send_text(text)
        client.send_text(b"\xff")
        await client.until(lambda: len(client.messages) == len(malformed) + 1)
        for answer in client.messages:
            assert answer["id"] == -1
            assert answer["error"]["code"] == -32600
            assert answer["error"]["message"].startswith("failed to parse JSON-RPC message from ")
            assert set(answer) == {"id", "error"}
        await client.handshake()


async def test_ids_come_back_as_they_were_sent() -> None:
    ids = [0, -7, 2**63 - 1, -(2**63), "", "1", "ü😀\n", "x" * 1_000_000]
    async with serving() as served:
        client = served.dial()
        for request_id in ids:
            client.send_text(json.dumps({"id": request_id, "method": "nosuch", "jsonrpc": "2.0"}))
        await client.until(lambda: len(client.messages) == len(ids))
        assert [m["id"] for m in client.messages] == ids
        assert [type(m["id"]) for m in client.messages] == [type(i) for i in ids]
        assert all("jsonrpc" not in m for m in client.messages)


async def test_methods_without_params_take_absent_null_and_empty() -> None:
    async with serving() as served:
        client = await served.client()
        before = len(client.messages)
        for params in ("", ',"params":null', ',"params":{}', ',"trace":{"traceparent":"x"}'):
            client.send_text(f'{{"id":0,"method":"environment/status"{params}}}')
        for params in ("[]", '{"a":1}', '""', "0", "false"):
            client.send_text(f'{{"id":0,"method":"environment/info","params":{params}}}')
        await client.until(lambda: len(client.messages) == before + 9)
        answers = client.messages[before:]
        assert [a.get("result") for a in answers[:4]] == [{"status": "ready"}] * 4
        assert [a["error"]["code"] for a in answers[4:]] == [-32602] * 5


async def test_environment_info_says_where_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/var/tmp/a b")
    monkeypatch.setenv("HOME", "/home/ü")
    async with serving() as served:
        client = await served.client()
        info = await client.call("environment/info")
        assert info["executorVersion"] == __version__
        assert info["providerId"].startswith("sha256:")
        assert info["platformOs"] == "linux"
        assert info["cwd"] == Path.cwd().as_uri()
        assert info["userHomeDir"] == "file:///home/%C3%BC"
        assert info["tempDir"] == "file:///var/tmp/a%20b"
        assert info["temporaryDirectories"] == ["file:///var/tmp/a%20b"]
        assert info["prependPathDirs"] == []
        assert os.access(info["shell"]["path"], os.X_OK)
        assert info["shell"]["name"] == os.path.basename(info["shell"]["path"])
        capabilities = info["capabilities"]
        ours = capabilities.pop("handrail")
        assert all(ours[name] is True for name in EXTENSIONS)
        assert all(type(value) is bool for value in ours.values())
        # How a tree is ended is said by exactly one of these.
        assert ours["treeKillCgroup"] is not ours["treeKillWalk"]
        assert all(type(value) is bool for value in capabilities.values())


async def test_a_server_whose_directory_is_gone_still_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    async with serving() as served:
        client = await served.client()
        assert (await client.call("environment/info"))["cwd"] == "file:///"


async def test_connections_do_not_know_of_each_other() -> None:
    async with serving() as served:
        await two_processes_named_alike(served)


async def two_processes_named_alike(served: Served) -> None:
    a, b = await served.client(), await served.client()
    for client, word in ((a, "a"), (b, "b")):
        await client.shell("p", f"echo {word}; exec sleep 600")
        await client.until_output("p", word.encode() + b"\n")
    await a.call("process/terminate", processId="p")
    await a.until_closed("p")
    assert (await b.read("p"))["exited"] is False
    assert a.output("p") == b"a\n"
    assert b.output("p") == b"b\n"
