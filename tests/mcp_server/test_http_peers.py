"""Who reaches the HTTP server: no other user, no command of its own, and its token no command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.mcp_server.hosts import LIMIT, http_server, played, text

#: As another user: the status of an answer, or the kind of the error.
_VISIT = """
import encodings.idna, http.client, os, sys  # before the library is out of reach
os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
try:
    line = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
    line.request("POST", "/mcp", b"{}")
    print(line.getresponse().status)
except OSError as error:
    print(type(error).__name__)
"""

#: Inside: the server by many names, then by ordinary ones.
_INSIDE = """
import json, socket, sys
said = {}
for host in ("127.0.0.1", "127.0.0.9", "0.0.0.0", "localhost", "::ffff:127.0.0.1", "::1"):
    try:
        with socket.create_connection((host, int(sys.argv[1])), 5) as s:
            s.sendall(b"GET /mcp HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
            said[host] = s.recv(9).decode()
    except OSError as error:
        said[host] = type(error).__name__
try:
    said["token"] = open(sys.argv[2]).read()
except OSError as error:
    said["token"] = type(error).__name__
print("SAID" + json.dumps(said))
"""


def port_of(url: str) -> str:
    return str(urlsplit(url).port)


def test_another_user_gets_no_answer(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be another user")
    for words, expected in (((), {"RemoteDisconnected", "ConnectionResetError", "BrokenPipeError"}),
                            (("--any-user",), {"400", "406", "421", "415"})):  # fmt: skip
        with http_server("--cwd", str(tmp_path), "--insecure-no-auth", *words) as url:
            visit = [sys.executable, "-I", "-c", _VISIT, port_of(url)]
            done = subprocess.run(visit, capture_output=True, text=True, timeout=LIMIT, check=False)
            assert done.stdout.strip() in expected, (done.stdout, done.stderr)


def test_a_command_reaches_neither_its_server_nor_the_token(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "inside.py").write_text(_INSIDE)
    token = tmp_path / "token"
    token.write_text("T" * 40)
    token.chmod(0o600)

    async def main(url: str) -> None:
        headers = {"Authorization": f"Bearer {'T' * 40}"}
        async with httpx2.AsyncClient(headers=headers, timeout=LIMIT) as http:
            transport = streamable_http_client(url, http_client=http)
            async with Client(transport, read_timeout_seconds=LIMIT) as client:
                command = f"/usr/bin/python3 -I inside.py {port_of(url)} {token}"
                result = await client.call_tool(
                    "exec_command", {"cmd": command, "yield_time_ms": 20_000}
                )
                said = json.loads(text(result).partition("SAID")[2].splitlines()[0])
        read = said.pop("token")
        assert "T" not in read.replace("PermissionError", ""), read
        assert set(said.values()) == {"PermissionError"}, said

    with http_server("--cwd", str(work), "--network", "--token-file", str(token)) as url:
        played(main(url))
