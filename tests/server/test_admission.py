"""Who is let in: secrets of sessions, connections that say nothing, and guessed tokens."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from handrail.server import connection
from handrail.server.auth.tokens import Throttle
from tests.support.clients import MemoryClient
from tests.support.eventually import LIMIT
from tests.support.servers import server_process, serving


async def lose(client: MemoryClient) -> str:
    client.abort()
    await client.until_ended()
    return client.session


# --- the secret of a session ----------------------------------------------------------------------


async def test_a_wrong_secret_is_refused_for_a_detached_session_too() -> None:
    async with serving() as served:
        client = await served.client(resumeSecret=None)
        await client.start("p", "sleep", "600")
        session = await lose(client)
        unknown = (-32600, f"unknown session id {session}")
        for wrong in ("", "wrong", client.secret[:-1], client.secret + "x"):  # type: ignore[index, operator]
            other = served.dial()
            answer = await other.refused(
                "initialize", clientName="x", resumeSessionId=session, resumeSecret=wrong
            )
            # As if it did not exist.
            assert answer == unknown
        again = await served.client(resumeSessionId=session, resumeSecret=client.secret)
        assert (await again.read("p"))["exited"] is False
        # The one before is worth nothing after a resume.
        first, second = client.secret, again.secret
        assert first != second
        await lose(again)
        other = served.dial()
        answer = await other.refused(
            "initialize", clientName="x", resumeSessionId=session, resumeSecret=first
        )
        assert answer == unknown
        await served.client(resumeSessionId=session, resumeSecret=second)


async def test_a_secret_for_a_session_that_has_none_is_wrong() -> None:
    async with serving() as served:
        client = await served.client()
        session = await lose(client)
        other = served.dial()
        answer = await other.refused(
            "initialize", clientName="x", resumeSessionId=session, resumeSecret="x"
        )
        assert answer[0] == -32600
        # By its id alone, as on the wire.
        await served.client(resumeSessionId=session)


# --- connections that say nothing -----------------------------------------------------------------


async def test_who_never_initializes_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "INITIALIZE_SECONDS", 0.05)
    async with serving() as served:
        silent = served.dial()
        failing = served.dial()
        await failing.refused("initialize", resumeSessionId="nobody", clientName="x")
        good = await served.client()
        for client in (silent, failing):
            assert "no initialize within 0.05 s" in await client.until_ended()
        assert await good.call("environment/status") == {"status": "ready"}


async def test_who_is_gone_before_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "INITIALIZE_SECONDS", 3600.0)
    async with serving() as served:
        client = served.dial()
        await client.close()


# --- guessing -------------------------------------------------------------------------------------


async def test_who_guesses_waits_and_nobody_else(tmp_path: Path) -> None:
    """More failures than are free, then one that is right: only the wrong ones are slow."""
    token = "a-good-token-" * 3
    digest = hashlib.sha256(token.encode()).hexdigest()
    args = ("--ws-auth", "capability-token", "--ws-token-sha256", digest)

    async def attempt(url: str, given: str) -> tuple[int, float]:
        """The status it was answered, and how long that took."""
        began = time.monotonic()
        headers = {"Authorization": f"Bearer {given}"}
        status = 101
        async with asyncio.timeout(LIMIT):
            try:
                async with connect(url, proxy=None, additional_headers=headers):
                    pass
            except InvalidStatus as error:
                status = error.response.status_code
        return status, time.monotonic() - began

    with server_process(tmp_path / "state", *args) as server:
        for number in range(Throttle.FREE):
            assert (await attempt(server.url, f"guess-{number}"))[0] == 401
        answers = [await attempt(server.url, f"guess-{number}") for number in range(4)]
        # 50, 100, 200 and 400 ms at least: nothing answers sooner than it is told to.
        for number, (status, wait) in enumerate(answers):
            assert status == 401
            assert wait >= 0.05 * 2**number
        # One who hangs up while waiting does no harm, nor do many at once.
        guesses = [asyncio.create_task(attempt(server.url, f"many-{n}")) for n in range(5)]
        await asyncio.sleep(0)
        guesses[0].cancel()
        assert (await attempt(server.url, token))[0] == 101
        rest = await asyncio.gather(*guesses[1:])
        assert {status for status, _ in rest} == {401}
        assert (await attempt(server.url, token))[0] == 101
