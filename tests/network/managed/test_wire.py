"""``process/start`` with a managed network: what is refused, what runs, what is told."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from handrail.network.managed import porter_life
from handrail.results import store
from handrail.sandbox.bwrap.instance import RunningSandbox
from handrail.server_settings import ResultBounds
from tests.sandbox.arena import managed_network
from tests.support.clients import MemoryClient, chunks_of, dialled
from tests.support.eventually import eventually_so, spin
from tests.support.processes import children, command_line
from tests.support.servers import Served, server_process, serving
from tests.system.permissions import sandbox

#: Connects to the proxy and says what came of it.
CONNECT = """
import os, socket, urllib.parse
place = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])
s = socket.create_connection((place.hostname, place.port), 20)
s.sendall(b"CONNECT denied.example:443 HTTP/1.1\\r\\nHost: denied.example:443\\r\\n\\r\\n")
print(place.port, s.recv(9999).decode())
"""
WITHOUT_CONNECTION = "print('done')"


def start_params(client: MemoryClient, ws: Path, script: str, **members: Any) -> dict[str, Any]:
    words = (sys.executable, "-I", "-c", script)
    return client.start_params("p", *words, cwd=ws.as_uri(), **members)


def restricted(ws: Path) -> dict[str, Any]:
    return {"sandbox": sandbox(ws)}


async def ran(client: MemoryClient) -> dict[str, Any]:
    """The last page of a process that has closed, with all output."""
    while True:
        page = await client.read("p", waitMs=1000)
        if page["closed"]:
            return page


def porters(served: Served) -> list[int]:
    below = children(served.server.launcher.keeper_pid)
    return [pid for pid in below if "network/porter/__main__.py" in command_line(pid)]


# --- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"enabled": False}, "requires an enabled proxy"),
        ({"mode": "none"}, "unknown variant `none`"),
        ({"domains": {"ok.example": "maybe"}}, "unknown variant `maybe`"),
        ({"domains": {"*": "deny"}}, "'*'"),
        ({"domains": {"http://ok.example": "allow"}}, "http://ok.example"),
        ({"domains": {"ok.example:0": "allow"}}, "ok.example:0"),
        ({"domains": {"ok.example": "ask"}}, "unknown variant `ask`"),
        ({"domains": {f"h{n}.example": "allow" for n in range(4097)}}, "4096"),
        ({"unixSockets": {"run/x.sock": "allow"}}, "run/x.sock"),
        ({"allowLocalBinding": "yes"}, "allowLocalBinding"),
    ],
)
async def test_a_configuration_that_makes_no_sense(
    ws: Path, members: dict[str, Any], text: str
) -> None:
    async with serving() as served:
        client = await served.client()
        wanted = managed_network({"ok.example": "allow"})
        wanted["networkProxy"]["proxy"] |= members
        params = start_params(client, ws, "", **restricted(ws), **wanted)
        code, message = await client.refused("process/start", params)
        assert code == -32602
        assert text in message
        assert not porters(served)


@pytest.mark.parametrize("member", list(managed_network({})["networkProxy"]["proxy"]))
async def test_all_members_are_needed(ws: Path, member: str) -> None:
    async with serving() as served:
        client = await served.client()
        wanted = managed_network({})
        del wanted["networkProxy"]["proxy"][member]
        params = start_params(client, ws, "", **restricted(ws), **wanted)
        code, message = await client.refused("process/start", params)
        assert (code, message) == (-32602, f"missing field `{member}`")


@pytest.mark.parametrize(
    ("process_id", "timeout", "text"),
    [
        ("p", 0, "network policy decision callback timeout must be nonzero"),
        ("", 100, "1 to 256 bytes"),
        ("p" * 257, 100, "1 to 256 bytes"),
    ],
)
async def test_limits_of_the_callback(ws: Path, process_id: str, timeout: int, text: str) -> None:
    async with serving() as served:
        client = await served.client()
        wanted = managed_network({})
        wanted["networkProxy"]["policyDecisionTimeoutMs"] = timeout
        params = start_params(client, ws, "", **restricted(ws), **wanted)
        code, message = await client.refused("process/start", {**params, "processId": process_id})
        assert code == -32602
        assert text in message


@pytest.mark.parametrize("left_out", ["sandbox", "networkProxy"])
async def test_what_cannot_be_enforced(ws: Path, left_out: str) -> None:
    async with serving() as served:
        client = await served.client()
        params = start_params(client, ws, "", **restricted(ws), **managed_network({}))
        del params[left_out]
        code, message = await client.refused("process/start", params)
        assert code == -32602
        assert "managed network" in message


async def test_landlock_cannot_enforce_it(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from handrail.errors import SandboxUnavailable
    from handrail.sandbox import probe

    def nowhere() -> probe.Bubblewrap:
        raise SandboxUnavailable("bubblewrap is not there")

    monkeypatch.setattr(probe, "bubblewrap", nowhere)
    async with serving() as served:
        client = await served.client()
        params = start_params(client, ws, "", **restricted(ws), **managed_network({}))
        code, message = await client.refused("process/start", params)
        assert code == -32602
        assert "bubblewrap is not there; a managed network needs that" in message


# --- what runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "permissions",
    [
        {"type": "disabled"},
        {"type": "external", "network": "enabled"},
        {"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"},
    ],
    ids=lambda permissions: permissions["type"],
)
async def test_it_is_enforced_whatever_the_profile_says(
    ws: Path, permissions: dict[str, Any]
) -> None:
    script = f"import os; print(os.readlink('/proc/self/ns/net'))\n{CONNECT}"
    async with serving() as served:
        client = await served.client()
        given = {"sandbox": {**sandbox(ws), "permissions": permissions}}
        params = start_params(client, ws, script, **given, **managed_network({}))
        assert (await client.call("process/start", params))["sandboxType"] == "linuxSeccomp"
        text = chunks_of(await ran(client)).decode()
        assert os.readlink("/proc/self/ns/net") not in text
        assert "800 HTTP/1.1 403" in text


@pytest.mark.parametrize("network", [None, "restricted", "enabled"])
async def test_without_enforcement_only_variables_lead_to_the_proxy(
    ws: Path, network: str | None
) -> None:
    """A sandbox has the network that its profile says: a restricted one has no way to the proxy."""
    async with serving() as served:
        client = await served.client()
        wanted = {**managed_network({}), "enforceManagedNetwork": False}
        given = {} if network is None else restricted(ws)
        if network is not None:
            given["sandbox"]["permissions"]["network"] = network
        params = start_params(client, ws, CONNECT, **given, **wanted)
        result = await client.call("process/start", params)
        assert result["sandboxType"] == ("none" if network is None else "linuxSeccomp")
        page = await ran(client)
        text = chunks_of(page).decode()
        if network == "restricted":
            assert "ConnectionRefusedError" in text
        else:
            assert "HTTP/1.1 403" in text
            assert [denial["host"] for denial in page["denials"]] == ["denied.example"]


async def test_a_refused_host_is_told_and_in_the_result(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        params = start_params(client, ws, CONNECT, **restricted(ws), **managed_network({}))
        await client.call("process/start", params)
        page = await ran(client)
        (denial,) = page["denials"]
        assert denial["path"] == "denied.example:443"
        assert (denial["host"], denial["port"], denial["op"]) == ("denied.example", 443, "connect")
        assert (denial["reason"], denial["source"]) == ("not_allowed", "proxy")
        await spin(lambda: any(_decisions(client)))
        (told,) = _decisions(client)
        assert told["processId"] == "p"
        assert (told["decision"], told["protocol"]) == ("deny", "https_connect")
        name = "handrail_network_decisions_total"
        labels = '{decision="deny",reason="not_allowed",protocol="https_connect"}'
        assert served.metrics()[name + labels] == 1


async def test_dials_are_counted(ws: Path) -> None:
    script = CONNECT.replace("denied.example:443", "127.0.0.1:9")
    async with serving() as served:
        client = await served.client()
        lists = managed_network({"127.0.0.1:9": "allow"})
        await client.call(
            "process/start", start_params(client, ws, script, **restricted(ws), **lists)
        )
        assert b"502" in chunks_of(await ran(client))
        await spin(lambda: served.metrics().get("handrail_network_dial_seconds_count") == 1)


def _decisions(client: MemoryClient) -> list[dict[str, Any]]:
    messages = [m for m in client.messages if m.get("method") == "network/policyDecision"]
    return [message["params"] for message in messages]


@pytest.mark.parametrize("extended", [False, True])
async def test_a_question_and_odd_answers(ws: Path, extended: bool) -> None:
    """A yes opens no private address; ``allowLocalBinding`` does, so that there is one to ask."""
    script = CONNECT.replace("denied.example:443", "127.0.0.1:9")
    async with serving() as served:
        client = await served.client(**({"resumeSecret": None} if extended else {}))
        wanted = managed_network({}, allowLocalBinding=True)
        wanted["networkProxy"]["policyDecisionTimeoutMs"] = 60_000
        await client.call(
            "process/start", start_params(client, ws, script, **restricted(ws), **wanted)
        )
        asked = await client.until(lambda: _question(client))
        request = asked["params"]["request"]
        assert asked["params"]["processId"] == "p"
        plain = {"protocol": "https_connect", "host": "127.0.0.1", "port": 9}
        assert {name: request[name] for name in plain} == plain
        assert ("argv" in request) is extended
        for said in ({"decision": {"type": "deny", "reason": "because"}}, "nonsense"):
            client.send_text(json.dumps({"id": asked["id"], "result": said}))  # one too many
        page = await ran(client)
        assert b"403" in chunks_of(page)
        assert [denial["reason"] for denial in page["denials"]] == ["because"]


async def test_a_no_that_is_called_ask(ws: Path) -> None:
    """The label is told and stands in the proxy's answer, as with the Codex exec-server 0.169."""
    script = CONNECT.replace("CONNECT denied.example:443", "GET http://denied.example/")
    script = script.replace(":443", "")
    async with serving() as served:
        client = await served.client()
        wanted = managed_network({})
        wanted["networkProxy"]["policyDecisionTimeoutMs"] = 60_000
        await client.call(
            "process/start", start_params(client, ws, script, **restricted(ws), **wanted)
        )
        asked = await client.until(lambda: _question(client))
        said = {"decision": {"type": "ask", "reason": "later"}}
        client.send_text(json.dumps({"id": asked["id"], "result": said}))
        page = await ran(client)
        assert b'"reason":"later","decision":"ask","source":"decider"' in chunks_of(page)
        assert [denial["reason"] for denial in page["denials"]] == ["later"]
        await spin(lambda: any(_decisions(client)))
        assert [told["decision"] for told in _decisions(client)] == ["ask"]


def _question(client: MemoryClient) -> dict[str, Any] | None:
    asked = (m for m in client.messages if m.get("method") == "network/policyRequest")
    return next(asked, None)


# --- the porter --------------------------------------------------------------------------------


async def test_a_command_that_never_connects_opens_nothing(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        wanted = managed_network({"ok.example": "allow"})
        params = start_params(client, ws, WITHOUT_CONNECTION, **restricted(ws), **wanted)
        await client.call("process/start", params)
        (process,) = served.server.network.processes.values()
        await ran(client)
        assert process.holdings == {}
        assert not process.is_open


async def test_the_porter_ends_some_time_after_the_last_process(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(porter_life, "IDLE_SECONDS", 0.01)
    async with serving() as served:
        client = await served.client()
        params = start_params(client, ws, CONNECT, **restricted(ws), **managed_network({}))
        await client.call("process/start", params)
        await spin(lambda: porters(served))
        await ran(client)
        await spin(lambda: not porters(served))
        again = {**params, "processId": "q"}
        await client.call("process/start", again)
        assert b"403" in await client.read_to_close("q")


async def test_a_sandbox_that_is_set_up_twice_has_its_network(
    ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up = RunningSandbox.set_up
    tries: list[RunningSandbox] = []

    async def once_more(self: RunningSandbox, loop: Any) -> bool:
        stood = await set_up(self, loop)
        if self not in tries:
            tries.append(self)
        return stood and len(tries) > 1

    monkeypatch.setattr(RunningSandbox, "set_up", once_more)
    async with serving() as served:
        client = await served.client()
        params = start_params(client, ws, CONNECT, **restricted(ws), **managed_network({}))
        await client.call("process/start", params)
        assert b"403" in chunks_of(await ran(client))
        assert len(tries) == 2


# --- what a command tries ----------------------------------------------------------------------


async def test_a_command_cannot_take_the_addresses_of_its_way_out(ws: Path) -> None:
    script = """
import errno, socket
for kind, port in ((socket.SOCK_STREAM, 800), (socket.SOCK_DGRAM, 53)):
    for address in ("127.0.0.1", "0.0.0.0"):
        try:
            socket.socket(socket.AF_INET, kind).bind((address, port))
        except OSError as error:
            print(errno.errorcode[error.errno])
try:
    open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w").write("0")
except OSError as error:
    print("closed")
"""
    async with serving() as served:
        client = await served.client()
        params = start_params(client, ws, script, **restricted(ws), **managed_network({}))
        await client.call("process/start", params)
        assert chunks_of(await ran(client)).split() == [b"EACCES"] * 4 + [b"closed"]


async def test_a_name_that_is_looked_up_is_unknown_at_once_and_recorded(ws: Path) -> None:
    script = """
import socket
try:
    socket.getaddrinfo("stolen.example", 80)
except socket.gaierror as error:
    print(error.errno == socket.EAI_NONAME)
"""
    async with serving() as served:
        client = await served.client()
        params = start_params(client, ws, script, **restricted(ws), **managed_network({}))
        await client.call("process/start", params)
        page = await ran(client)
        assert chunks_of(page) == b"True\n"
        told = [(d["op"], d["host"], d["source"]) for d in page["denials"]]
        assert ("resolve", "stolen.example", "resolver") in told


async def test_no_command_reaches_a_server_of_ours(ws: Path, tmp_path: Path) -> None:
    """Every address of loopback is listed, but a server would start commands without a sandbox."""
    script = CONNECT.replace("denied.example:443", "127.0.0.1:%PORT%")
    with server_process(tmp_path / "state") as server:
        async with dialled(server.url) as client:
            port = server.url.rpartition(":")[2].strip("/")
            words = (sys.executable, "-I", "-c", script.replace("%PORT%", port))
            wanted = managed_network({"127.0.0.1": "allow"}, allowLocalBinding=True)
            given = {"cwd": ws.as_uri(), "sandbox": sandbox(ws)}
            await client.start("p", *words, **given, **wanted)
            assert b"HTTP/1.1 403" in await client.read_to_close("p")


async def test_a_porter_that_was_not_needed_is_there_when_it_is(ws: Path) -> None:
    """One without connections ends by itself, and counts as no failure."""
    script = f"print('ready', flush=True); input()\n{CONNECT}"
    async with serving() as served:
        client = await served.client()
        wanted = {**restricted(ws), **managed_network({})}
        params = start_params(client, ws, script, pipeStdin=True, **wanted)
        await client.call("process/start", params)
        await client.until_output("p", b"ready")
        await spin(lambda: porters(served))
        os.kill(porters(served)[0], signal.SIGKILL)
        await spin(lambda: not porters(served) and served.server.network.holdings() is None)
        await client.write("p", b"\n", "w")
        assert b"403" in chunks_of(await ran(client))
        assert served.metrics()["handrail_network_porter_restarts_total"] == 0


async def test_a_stored_result_names_the_refused_host(
    ws: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    async with serving(results=ResultBounds(), detach_ttl=0.0) as served:
        client = await served.client()
        params = start_params(client, ws, waits + CONNECT, **restricted(ws), **managed_network({}))
        await client.call("process/start", params)
        await client.call("session/detach")
        client.transport.close()
        await client.until_ended()
        (ws / "go").touch()
        (stored,) = await eventually_so(lambda: [one for one in store.every() if one.about.exit])
        (denial,) = (one for one in stored.about.denials if one["source"] == "proxy")
        assert (denial["host"], denial["port"]) == ("denied.example", 443)
        assert denial["reason"] == "not_allowed"
