"""Every recorded attack is held and everything that must work works, as root and as a user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.sandbox.arena import (
    PATH,
    Case,
    Room,
    Wire,
    load,
    run_by_command_line,
    serving,
    users,
)


def on_the_wire() -> Iterator[object]:
    """Each case for each user: by turns in a sandbox that waited for it, and in one made for it.

    With ``HANDRAIL_ATTACKS=all`` each in both.
    """
    for number, case in enumerate(load()):
        if case["level"] == "hard" or "fds" in case:
            continue
        for turn, uid in enumerate(users()):
            if case.get("unpriv_only") and uid == 0:
                continue
            ways = ["on", "off"] if (number + turn) % 2 else ["off", "on"]
            for warm in ways if os.environ.get("HANDRAIL_ATTACKS") == "all" else ways[:1]:
                who = "root" if uid == 0 else "user"
                yield pytest.param(case, uid, warm, id=f"{case['name']}-{who}-{warm}")


def tool_of(case: Case) -> str | None:
    """The program that a case says to work in a sandbox, if it is one that few machines have."""
    tools = (tool for tool in ("gcc", "node") if case["name"].startswith(f"ok-{tool}"))
    return next(tools, None)


@pytest.mark.parametrize(("case", "uid", "warm"), list(on_the_wire()))
def test_case(
    case: Case, uid: int, warm: str, base: str, wires: dict[tuple[int, str], Wire]
) -> None:
    tool = tool_of(case)
    if tool is not None and shutil.which(tool, path=PATH) is None:
        pytest.skip(f"{tool} is not installed here, and the case is that it works")
    with Room(case, base, uid) as room:
        output, code, said = wires[uid, warm].run(room)
        assert room.holds(output, code), said


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c["name"]) for c in load() if "fds" in c and c["level"] != "hard"]
)
def test_case_with_descriptors(case: Case, base: str) -> None:
    with Room(case, base, os.getuid()) as room:
        output, code, said = run_by_command_line(room)
        assert room.holds(output, code), said


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
    with serving(base, uid) as (url, _):
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
    with serving(base, os.getuid(), "--state-dir", state) as (url, _):
        wire = Wire(url)
        with Room(case, base, os.getuid()) as room:
            output, code, said = wire.run(room)
            assert room.holds(output, code), said
        wire.close()
