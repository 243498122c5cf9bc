"""Every recorded attack is held and everything that must work works, as root and as a user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.sandbox.arena import (
    ORDINARY_UID,
    Case,
    Room,
    Wire,
    load,
    python_for,
    run_by_command_line,
    serving,
)


def users() -> list[int]:
    own = os.getuid()
    return [own, ORDINARY_UID] if own == 0 and python_for(ORDINARY_UID) else [own]


def on_the_wire() -> Iterator[object]:
    for case in load():
        if case["level"] == "hard" or "domains" in case or "fds" in case:
            continue
        for uid in users():
            if not (case.get("unpriv_only") and uid == 0):
                yield pytest.param(case, uid, id=f"{case['name']}-{'root' if uid == 0 else 'user'}")


@pytest.fixture(scope="session")
def base() -> Iterator[str]:
    base = tempfile.mkdtemp(prefix="handrail-attack-", dir="/var/tmp")
    os.chmod(base, 0o755)
    yield base
    shutil.rmtree(base)


@pytest.fixture(scope="session")
def wires(base: str) -> Iterator[dict[int, Wire]]:
    """A client of a server of each user."""
    found: dict[int, Wire] = {}
    with ExitStack() as stack:
        for uid in users():
            found[uid] = Wire(stack.enter_context(serving(base, uid)))
            stack.callback(found[uid].close)
        yield found


@pytest.mark.parametrize(("case", "uid"), list(on_the_wire()))
def test_case(case: Case, uid: int, base: str, wires: dict[int, Wire]) -> None:
    with Room(case, base, uid) as room:
        output, code, said = wires[uid].run(room)
        assert room.holds(output, code), said


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c["name"]) for c in load() if "fds" in c and c["level"] != "hard"]
)
def test_case_with_descriptors(case: Case, base: str) -> None:
    with Room(case, base, os.getuid()) as room:
        output, code, said = run_by_command_line(room)
        assert room.holds(output, code), said


@pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in load() if "domains" in c])
def test_a_managed_network_is_refused(case: Case, base: str, wires: dict[int, Wire]) -> None:
    with Room({**case, "setup": ""}, base, os.getuid()) as room:
        params = {
            "processId": "managed",
            "argv": room.argv(),
            "cwd": f"file://{room.ws}",
            "env": room.command_env(),
            "tty": False,
            "arg0": None,
            "enforceManagedNetwork": True,
            "sandbox": {
                "permissions": case["profile"],
                "workspaceRoots": [f"file://{room.ws}"],
                "windowsSandboxLevel": "disabled",
            },
        }
        answer = wires[os.getuid()].call("process/start", params)
        assert answer["error"]["code"] == -32602
        assert "managed network proxy" in answer["error"]["message"]


@pytest.mark.parametrize("uid", users(), ids=lambda uid: "root" if uid == 0 else "user")
def test_a_command_cannot_have_its_own_server_start_another(base: str, uid: int) -> None:
    """With an open network the server is one of the machine's addresses like any other."""
    command = (
        'python3 -c \'import os, socket; s = socket.create_connection(("localhost",'
        ' int(os.environ["PORT_OF_OURS"])), 5); s.sendall(b"GET /readyz HTTP/1.0\\r\\n\\r\\n");'
        " print(s.recv(99))'"
    )
    root = {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}
    case: Case = {
        "name": "own-server",
        "profile": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": [root]},
            "network": "enabled",
        },
        "command": command,
        "must": "fail",
        "check": 'grep -q HTTP "$CMD_OUT"',
    }
    with serving(base, uid) as url:
        wire = Wire(url)
        case["env"] = {"PORT_OF_OURS": url.rpartition(":")[2]}
        with Room(case, base, uid) as room:
            output, code, said = wire.run(room)
            assert room.holds(output, code)
            assert "Permission denied" in said
        wire.close()


def test_a_state_directory_of_the_servers_own_is_hidden(base: str) -> None:
    root = {"path": {"type": "special", "value": {"kind": "root"}}, "access": "write"}
    files = {"type": "restricted", "entries": [root]}
    state = tempfile.mkdtemp(prefix="state", dir=base)
    case: Case = {
        "name": "state-dir",
        "profile": {"type": "managed", "file_system": files, "network": "restricted"},
        "command": f"ls {state}; rm -f {state}/lock; echo x > {state}/new; chmod 700 {state}",
        "must": "fail",
        "check": f'grep -q lock "$CMD_OUT" || test -e {state}/new || ! test -e {state}/lock',
    }
    with serving(base, os.getuid(), "--state-dir", state) as url:
        wire = Wire(url)
        with Room(case, base, os.getuid()) as room:
            output, code, said = wire.run(room)
            assert room.holds(output, code), said
        wire.close()
