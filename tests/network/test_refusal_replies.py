"""What commands and models are told."""

from __future__ import annotations

import json

import pytest

from handrail.network import refusal_replies as replies
from handrail.network.decide import CONNECT, HTTP, Kind, Target, Verdict
from handrail.network.hosts import canonical


def refusal(reason: str, protocol: str = HTTP, method: str = "GET", host: str = "h.example") -> str:
    target = Target(protocol, canonical(host), 443, method)
    verdict = Verdict(Kind.DENY, reason, "baseline_policy")
    return replies.refusal(target, verdict, keep=True).decode()


@pytest.mark.parametrize(
    ("reason", "field", "message"),
    [
        ("not_allowed", "blocked-by-allowlist", "Domain not in allowlist."),
        (
            "not_allowed_local",
            "blocked-by-allowlist",
            "Sandbox policy blocks local/private network addresses.",
        ),
        ("denied", "blocked-by-denylist", "Domain denied by the sandbox policy."),
        ("method_not_allowed", "blocked-by-method-policy", "Method not allowed in limited mode."),
        ("mitm_required", "blocked-by-mitm-required", "MITM required for limited HTTPS."),
        ("too_many", "blocked-by-policy", "Request blocked by network policy."),
    ],
)
def test_refusals(reason: str, field: str, message: str) -> None:
    head, _, body = refusal(reason).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 403 Forbidden\r\n")
    assert f"x-proxy-error: {field}\r\n" in head + "\r\n"
    assert "content-type: application/json" in head
    assert body == (
        f'{{"status":"blocked","host":"h.example","reason":"{reason}","decision":"deny",'
        f'"source":"baseline_policy","protocol":"http","port":443,"message":"{message}"}}'
    )
    assert json.loads(body)["port"] == 443
    connect = refusal(reason, CONNECT, "CONNECT", "::1")
    assert connect.endswith(f"{message} ([::1]:443)")
    assert "content-type: text/plain" in connect


def test_head_gets_no_body() -> None:
    head, _, body = refusal("denied", method="HEAD").partition("\r\n\r\n")
    assert body == ""
    assert "content-length: 0" not in head


def test_the_text_of_the_configuration_replaces_the_standard_one() -> None:
    target = Target(CONNECT, canonical("h.example"), 443)
    verdict = Verdict(Kind.DENY, "denied", "baseline_policy", message="use the mirror")
    assert replies.refusal(target, verdict, keep=False).endswith(b"use the mirror (h.example:443)")


def test_sentences_for_a_model() -> None:
    assert replies.sentence("h:443", "denied", by_answer=False) == (
        'Network access to "h:443" was blocked: domain is explicitly denied by policy and cannot'
        " be approved from this prompt."
    )
    assert replies.sentence("h:443", "nope", by_answer=True).endswith("blocked: not approved.")
    told = replies.sentence("h:443", "denied", by_answer=False, text="Use the mirror.")
    assert told.endswith("blocked: Use the mirror.")
