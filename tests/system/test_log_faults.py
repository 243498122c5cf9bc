"""A server goes on when its log is not read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.clients import Refused, dialled
from tests.support.servers import server_process

pytestmark = pytest.mark.fault


async def test_a_full_log_pipe_does_not_stop_the_server(tmp_path: Path) -> None:
    """The pipe is full before the first line, so each line would wait for a reader."""
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    unread = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        with pytest.raises(BlockingIOError):
            while True:
                os.write(unread, b"x" * 4096)
        prefix = ("/bin/sh", "-c", f'exec "$@" 2>{pipe}', "sh")
        with server_process(tmp_path / "state", prefix=prefix) as server:
            async with dialled(server.url) as first:
                session = first.session
            for _ in range(50):
                async with dialled(server.url, handshake=False) as client:
                    with pytest.raises(Refused, match="unknown session id"):
                        await client.handshake(resumeSessionId=session, resumeSecret="wrong")
            async with dialled(server.url) as last:
                assert await last.call("environment/info", {})
    finally:
        os.close(unread)
