"""Hosts: the SDK's own client on both transports and in both eras of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

PROGRAM = [sys.executable, "-m", "handrail", "mcp"]
TOKEN = "a-token-for-the-test"
LIMIT = 30.0

Elicit = Callable[[types.ElicitRequestFormParams], types.ElicitResult]


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HANDRAIL_MCP_TOKEN": TOKEN, "SHELL": "/bin/bash"}


class Host:
    """A way to open a client against a server of its own."""

    def __init__(self, transport: str, era: str) -> None:
        self.transport = transport
        self.era = era

    @contextlib.asynccontextmanager
    async def client(
        self, cwd: Path, *flags: str, elicit: Elicit | None = None
    ) -> AsyncIterator[Client]:
        """A connected client; its server has ended when the block has."""

        async def asked(context: Any, params: Any) -> types.ElicitResult:
            assert elicit is not None
            return elicit(params)

        options: dict[str, Any] = {"mode": self.era, "read_timeout_seconds": LIMIT}
        if elicit is not None:
            options["elicitation_callback"] = asked
        words = ["--cwd", str(cwd), *flags]
        if self.transport == "stdio":
            parameters = StdioServerParameters(
                command=PROGRAM[0], args=[*PROGRAM[1:], *words], env=environment()
            )
            async with Client(stdio_client(parameters), **options) as client:
                yield client
            return
        with http_server(*words) as url:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx2.AsyncClient(headers=headers, timeout=LIMIT) as http:
                transport = streamable_http_client(url, http_client=http)
                async with Client(transport, **options) as client:
                    yield client


@contextlib.contextmanager
def http_server(*words: str, expect: int = 0) -> Any:
    """``handrail mcp --http`` on a free port; the URL it prints."""
    process = subprocess.Popen(
        [*PROGRAM, "--http", "127.0.0.1:0", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT)
        assert process.returncode == expect, said.decode()


def text(result: types.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def played(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, LIMIT * 2))
