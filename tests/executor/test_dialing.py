"""Addresses, and what ssh and programs are told."""

from __future__ import annotations

import asyncio
import sys

import pytest

from handrail.errors import ConnectionLost, ExecutorTransportFailed, HandrailError, UsageError
from handrail.executor.client import ExecServerClient
from handrail.executor.dialing import dialer_for, ssh_dialer


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("http://host", "cannot connect to"),
        ("host:80", "cannot connect to"),
        ("unix:relative", "ABSOLUTE"),
        ("ssh://", "looks like"),
        ("ssh://host/path", "looks like"),
        ("ssh://me:secret@host", "no password"),
        ("ssh://-oProxyCommand=x", "option"),
        ("ssh://-l@host", "option"),
        ([], "needs a name"),
    ],
)
def test_addresses_that_make_no_sense(where: str | list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        dialer_for(where)


def test_a_token_is_for_websockets() -> None:
    with pytest.raises(UsageError, match="token"):
        dialer_for("unix:/tmp/x", token="t")
    assert dialer_for("ws://127.0.0.1:1", token="t").reconnects


def test_what_ssh_is_told() -> None:
    dialer = ssh_dialer("ssh://me@box:2222", ssh=("ssh", "-F", "none"))
    argv = dialer._argv
    assert argv[:4] == ["ssh", "-F", "none", "-T"]
    assert argv[-7:] == ["-p", "2222", "-l", "me", "--", "box", "handrail proxy"]
    assert dialer.reconnects


@pytest.mark.parametrize("where", ["ws://127.0.0.1:1", "unix:/there/is/no/socket"])
def test_nobody_is_there(where: str) -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLost):
            await ExecServerClient.connect(where)

    asyncio.run(main())


def test_programs_that_are_no_server() -> None:
    async def main() -> None:
        for argv in (["/bin/true"], ["/bin/cat"], ["/bin/echo", "hello"]):
            with pytest.raises(HandrailError):
                await ExecServerClient.connect(argv)
        with pytest.raises(UsageError, match="cannot start"):
            await ExecServerClient.connect(["/there/is/no/program"])

    asyncio.run(main())


def test_why_ssh_did_not_get_through() -> None:
    async def main() -> None:
        script = "import sys; sys.exit('Host key verification failed.')"
        dialer = ssh_dialer("ssh://box", ssh=(sys.executable, "-c", script))
        with pytest.raises(ConnectionLost, match="Host key verification failed"):
            await ExecServerClient.connect(dialer)

    asyncio.run(main())


def test_a_program_that_ends_takes_its_session_along() -> None:
    async def main() -> None:
        serve = [sys.executable, "-m", "handrail", "serve", "--listen", "stdio"]
        client = await ExecServerClient.connect(serve)
        try:
            client._dialer._started[0].process.terminate()  # type: ignore[attr-defined]
            with pytest.raises(ExecutorTransportFailed, match="ended"):
                while True:
                    await client.call("environment/status", {}, timeout=10)
        finally:
            await client.close()

    asyncio.run(main())
