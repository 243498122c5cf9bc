"""Every recorded exchange with the real peer, replayed against our own server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from tests.wire.fixture_http import fixture_http
from tests.wire.replay import CASES, load_cases
from tests.wire.runner import Case, Target, run_case
from tests.wire.servers import WebSocketServer

SERVE = [sys.executable, "-m", "handrail", "serve", "--listen"]
WS_COMMAND = [*SERVE, "ws://127.0.0.1:0"]
STDIO_COMMAND = [*SERVE, "stdio"]

#: Cases that need a method we do not offer yet.  Each must fail, and by an answer that does not
#: fit: whoever adds the method takes the case out.
NOT_YET: dict[str, str] = {}
#: An answer that never comes is waited for; where it cannot come, not for long.
TIMEOUT, TIMEOUT_NOT_YET = 15.0, 2.0

ALL = load_cases(CASES)


def parameters() -> Iterator[object]:
    """Each case on each transport it is meant for."""
    for case in ALL:
        name = case["name"]
        marks = []
        if name in NOT_YET:
            # Only a wrong answer counts: a server that hangs up or breaks is an error here.
            marks.append(
                pytest.mark.xfail(strict=True, raises=AssertionError, reason=NOT_YET[name])
            )
        for transport in ("ws", "stdio") if case["transport"] == "any" else (case["transport"],):
            yield pytest.param(case, transport, id=f"{name}-{transport}", marks=marks)


@pytest.fixture(scope="module")
def http() -> Iterator[str]:
    """The URL of the server that http/request is pointed at."""
    with fixture_http() as url:
        yield url


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """One listening server for all cases; it must not leave anybody behind."""
    server = WebSocketServer(WS_COMMAND)
    yield server.url
    assert server.stop() == []


@pytest.mark.parametrize(("case", "transport"), list(parameters()))
def test_case(case: Case, transport: str, http: str, server_url: str) -> None:
    timeout = TIMEOUT_NOT_YET if case["name"] in NOT_YET else TIMEOUT
    target = Target(http, None, WS_COMMAND, STDIO_COMMAND, timeout)
    if transport == "ws" and case.get("server_args") is None:
        target.url = server_url
    faults = asyncio.run(run_case(case, transport, target))
    assert target.leftovers == []
    assert faults == []


def test_not_yet_names_cases() -> None:
    assert set(NOT_YET) <= {case["name"] for case in ALL}
