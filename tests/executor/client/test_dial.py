"""Addresses, and what ssh and programs are told."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail import AsyncWorkspace
from handrail.errors import ConnectionLost, ExecutorTransportFailed, HandrailError, UsageError
from handrail.executor.client.dial import dialer_for, ssh_dialer, transport_failed
from handrail.executor.client.session import ExecServerClient
from handrail.executor.remote import RemoteExecutor
from handrail.transport.base import Transport
from handrail.transport.websocket import listen
from tests.support.eventually import eventually_so


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


# --- the time until a server is ready ---------------------------------------------------------


class Deaf:
    """The receiver of a server that takes everything and says nothing."""

    def connected(self, transport: Transport) -> None: ...

    def message(self, data: str | bytes | bytearray) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def disconnected(self, why: str) -> None: ...


@asynccontextmanager
async def silent_tcp(base: Path) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # the kernel connects
        yield f"ws://127.0.0.1:{listening.getsockname()[1]}"


@asynccontextmanager
async def silent_tls(base: Path) -> AsyncIterator[str]:
    async with silent_tcp(base) as url:
        yield url.replace("ws:", "wss:")


@asynccontextmanager
async def silent_after_the_upgrade(base: Path) -> AsyncIterator[str]:
    listener = await listen("127.0.0.1", 0, lambda request: Deaf())
    try:
        yield f"ws://127.0.0.1:{listener.sockname[1]}"  # type: ignore[index]
    finally:
        listener.abort()
        await listener.wait_closed()


@asynccontextmanager
async def silent_socket(base: Path) -> AsyncIterator[str]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(base / "s"))
        listening.listen()
        yield f"unix:{base}/s"


@asynccontextmanager
async def silent_program(base: Path) -> AsyncIterator[list[str]]:
    yield ["/bin/sleep", "1000"]


@asynccontextmanager
async def program_that_will_not_end(base: Path) -> AsyncIterator[list[str]]:
    # The second one would outlive the shell if only that were ended.
    yield ["/bin/sh", "-c", "trap '' TERM; sleep 1000 & wait; wait"]


@asynccontextmanager
async def silent_ssh(base: Path) -> AsyncIterator[Any]:
    yield ssh_dialer("ssh://box", ssh=("/bin/sh", "-c", "sleep 1000"))


@pytest.mark.parametrize(
    ("server", "missing"),
    [
        (silent_tcp, "a connection"),
        (silent_tls, "a connection"),
        (silent_after_the_upgrade, "an answer to initialize"),
        (silent_socket, "an answer to initialize"),
        (silent_program, "an answer to initialize"),
        (program_that_will_not_end, "an answer to initialize"),
        (silent_ssh, "an answer to initialize"),
    ],
)
def test_every_step_of_connecting_has_the_callers_time(
    server: Any, missing: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with server(tmp_path) as where:
            with pytest.raises(ConnectionLost, match=rf"{missing} within 1 s"):
                await RemoteExecutor.connect(where, request_timeout=1)

    asyncio.run(main())


def test_a_workspace_says_that_its_machine_is_out_of_reach(tmp_path: Path) -> None:
    async def main() -> None:
        async with silent_tcp(tmp_path) as url:
            workspace = AsyncWorkspace(tmp_path, at=url, request_timeout=1)
            with pytest.raises(ExecutorTransportFailed, match=r"cannot work at ws.*within 1 s"):
                async with workspace:
                    pass

    asyncio.run(main())


def test_connecting_that_is_cancelled_leaves_no_program(tmp_path: Path) -> None:
    async def main() -> None:
        begun = tmp_path / "begun"
        program = ["/bin/sh", "-c", f"echo > {begun}; exec sleep 1000"]
        connecting = asyncio.ensure_future(RemoteExecutor.connect(program))
        await eventually_so(begun.exists)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting

    asyncio.run(main())


def test_scheme_that_is_not_known_is_said_before_its_token() -> None:
    with pytest.raises(UsageError, match=r"cannot connect to 'http://x'; give ws://"):
        dialer_for("http://x", token="t")
    with pytest.raises(UsageError, match="a token is for ws"):
        dialer_for("unix:/x", token="t")


def test_what_to_do_is_said_when_nobody_answers() -> None:
    refused = ConnectionLost("cannot connect to 127.0.0.1:1: Connection refused")
    assert str(transport_failed("no session", refused)).endswith(
        "Connection refused; is `handrail serve` running there, and is the address right?"
    )
    assert str(transport_failed("no session", ConnectionLost("it ended"))).endswith("it ended")
