"""Questions of a real porter: merged, answered, remembered, and handed to the next server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from handrail.network import link
from handrail.network.config import ManagedNetwork
from tests.network.porters import PorterProcess, connect, porter, read_all, read_response

CLOSED = ManagedNetwork()
OTHER = b"GET http://other.invalid/ HTTP/1.1\r\n\r\n"
GET = b"GET http://new.invalid/ HTTP/1.1\r\n\r\n"


@pytest.fixture
def running() -> Iterator[PorterProcess]:
    with porter() as one:
        yield one


def reason(client: socket.socket) -> str:
    status, _, body = read_response(client)
    if status == 502:
        return "asked"  # it was allowed, and there is no such name
    return str(json.loads(body)["reason"])


def asking(running: PorterProcess, process: str = "p", seconds: float = 60) -> tuple[str, int]:
    return running.add(process, CLOSED, ask=True, decision_ms=int(seconds * 1000))


def test_questions_that_are_open_together_are_one(running: PorterProcess) -> None:
    address = asking(running)
    with connect(address) as one, connect(address) as two:
        one.sendall(GET)
        question = running.until(link.QUESTION).fields
        assert {**question, "question": 0} == {
            "question": 0,
            "process": "p",
            "protocol": "http",
            "host": "new.invalid",
            "port": 80,
            "method": "GET",
            "pid": None,
            "comm": None,
        }
        two.sendall(b"CONNECT NEW.invalid.:80 HTTP/1.1\r\n\r\n")
        # It joins the question, whether that is open or was answered a moment ago.
        number = question["question"]
        link.send(running.link, link.ANSWER, {"question": number, "allow": False, "reason": "nope"})
        assert reason(one) == "nope"
        status, _, body = read_response(two)
        assert (status, body) == (403, b"Request blocked by network policy. (new.invalid:80)")
    assert not [one for one in running.heard if one.op == link.QUESTION]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"allow": True}, "asked"),
        ({"allow": False, "reason": ""}, "policy_denied"),
        ({"allow": False, "reason": None}, "not_allowed"),
        ({"allow": False, "reason": "x" * 1025}, "not_allowed"),
        ({"allow": False, "reason": "a\nb"}, "not_allowed"),
        ({"allow": "yes"}, "not_allowed"),
        ({}, "not_allowed"),
    ],
)
def test_answers(running: PorterProcess, answer: dict[str, object], expected: str) -> None:
    with connect(asking(running)) as client:
        client.sendall(GET)
        number = running.until(link.QUESTION).fields["question"]
        for unknown in (0, -1, "x", None, [number]):
            link.send(running.link, link.ANSWER, {"question": unknown, "allow": True})
        link.send(running.link, link.ANSWER, {"question": number, **answer})
        link.send(running.link, link.ANSWER, {"question": number, "allow": True})  # a second one
        assert reason(client) == expected


def test_an_answer_is_remembered_as_long_as_it_says(running: PorterProcess) -> None:
    first, second = asking(running, "p"), asking(running, "q")
    with connect(first) as one, connect(second) as two:
        for scope, expected in ((None, "a"), ("process", "b")):
            one.sendall(GET if scope is None else OTHER)
            number = running.until(link.QUESTION).fields["question"]
            said = {"question": number, "allow": False, "reason": expected, "for": scope}
            link.send(running.link, link.ANSWER, said)
            assert reason(one) == expected
        one.sendall(OTHER)
        assert reason(one) == "not_allowed"  # not asked again
        two.sendall(GET)
        number = running.until(link.QUESTION).fields["question"]
        said = {"question": number, "allow": True, "for": "session"}
        link.send(running.link, link.ANSWER, said)
        assert reason(two) == "asked"
        two.sendall(GET)
        assert reason(two) == "asked"
        one.sendall(GET.replace(b".invalid/", b".invalid:81/"))
        assert running.until(link.QUESTION).fields["port"] == 81


def test_silence_is_no(running: PorterProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(asking(running, seconds=-4.95)) as client:
        client.sendall(GET)
        assert reason(client) == "not_allowed"
    assert running.until(link.WITHDRAWN).fields["why"] == "timeout"


def test_the_end_of_a_process_withdraws_its_question(running: PorterProcess) -> None:
    with connect(asking(running)) as client:
        client.sendall(GET)
        number = running.until(link.QUESTION).fields["question"]
        running.call(link.REMOVE, {"process": "p"})
        assert read_all(client) == b""
    assert running.until(link.WITHDRAWN).fields == {"question": number, "why": "process"}


def test_a_tool_that_gives_up_leaves_the_question_open(running: PorterProcess) -> None:
    address = asking(running)
    with connect(address) as client:
        client.sendall(GET)
        number = running.until(link.QUESTION).fields["question"]
    with connect(address) as client:
        client.sendall(GET)
        said = {"question": number, "allow": True, "for": "process"}
        link.send(running.link, link.ANSWER, said)
        assert reason(client) == "asked"


def test_too_many_questions(running: PorterProcess) -> None:
    address = asking(running)
    clients = []
    for number in range(9):
        client = connect(address)
        clients.append(client)
        client.sendall(f"GET http://n{number}.invalid/ HTTP/1.1\r\n\r\n".encode())
        if number < 8:
            running.until(link.QUESTION)
    assert reason(clients[8]) == "too_many"
    for client in clients:
        client.close()


def test_the_next_server_gets_the_open_questions(running: PorterProcess) -> None:
    address = asking(running)
    held = running.link.dup()  # as the keeper holds it
    with connect(address) as client:
        client.sendall(GET)
        running.until(link.QUESTION)
        running.link.close()  # the server is gone; the porter does not notice
        running.link = held
        with connect(address) as other:
            other.sendall(b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n")
            assert reason(other) == "not_allowed_local"  # the same rules without a server
        running.heard.clear()
        welcome = running.call(link.HELLO, {"version": link.VERSION, "pid": 1})
        assert welcome.fields["processes"] == ["p"]
        assert welcome.fields["written"] == 1
        number = running.until(link.QUESTION).fields["question"]
        link.send(running.link, link.ANSWER, {"question": number, "allow": True})
        assert reason(client) == "asked"


def test_a_server_that_does_not_read_delays_no_decision(running: PorterProcess) -> None:
    address = running.add("p", CLOSED)
    for _ in range(2):
        with connect(address) as client:
            for _ in range(150):
                client.sendall(GET)
                assert reason(client) == "not_allowed"
    assert running.ring.count() == 300
    assert running.call(link.STATE, {}).fields["processes"] == 1
