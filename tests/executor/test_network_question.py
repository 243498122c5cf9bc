"""Questions of a server about hosts: read as our own proxy reads a host, or answered with no."""

from __future__ import annotations

import pytest

from handrail.executor.network_question import asked
from handrail.network.config import ManagedNetwork
from handrail.network.managed.start import NetworkAnswer, NetworkQuestion, NetworkRequest
from tests.support.coroutines import run


@pytest.mark.parametrize(
    ("host", "port", "shown"),
    [
        ("api.example", 443, "api.example"),
        ("0x7f.1", 443, "127.0.0.1"),
        ("API.example.", 443, "api.example"),
        ("moc.live\u202eexample", 443, None),
        ("*.example", 443, None),
        ("a.example\nb.example", 443, None),
        ("a.example", 0, None),
    ],
)
def test_a_host_is_shown_in_its_canonical_form(host: str, port: int, shown: str | None) -> None:
    hosts: list[str] = []

    async def ask(question: NetworkQuestion) -> NetworkAnswer:
        hosts.append(question.host)
        return NetworkAnswer(allow=True)

    question = NetworkQuestion(0, "https_connect", host, port)
    answer = run(asked(NetworkRequest(ManagedNetwork(), ask), question))
    assert hosts == ([] if shown is None else [shown])
    assert answer.allow == (shown is not None)
