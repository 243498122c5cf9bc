"""Closed by default: the token, the Host header, the address."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from handrail.mcp_server.http import TokenGuard
from tests.mcp_server.hosts import LIMIT, PROGRAM, TOKEN, environment, http_server

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": TOKEN}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}, 421),
        ({"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}, 403),
    ],
)
def test_strangers_do_not_get_in(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    with http_server("--cwd", str(tmp_path)) as url:
        answer = httpx2.post(url, json=PING, headers={**HEADERS, **headers}, timeout=LIMIT)
    assert answer.status_code == status


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
def test_the_scheme_may_be_spelled_in_any_case(scheme: str) -> None:
    passed: list[object] = []
    said: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope)

    async def send(message: Any) -> None:
        said.append(message)

    async def receive() -> Any:
        raise AssertionError

    headers = [(b"authorization", f"{scheme} {TOKEN}".encode())]
    asyncio.run(TokenGuard(app, TOKEN)({"type": "http", "headers": headers}, receive, send))
    assert passed
    assert not said


@pytest.mark.parametrize(
    "words",
    [
        ("--http", "localhost"),
        ("--http", "example.org:80"),
        ("--http", "127.0.0.1:99999"),
        ("--http", "127.0.0.1:0", "--token-file", "/nonexistent/token"),
        ("--cwd", "/nonexistent/folder"),
    ],
)
def test_what_cannot_be_served_is_said(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [*PROGRAM, *words], env=environment(), capture_output=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 2
    assert done.stderr.decode().startswith("handrail mcp: ")
