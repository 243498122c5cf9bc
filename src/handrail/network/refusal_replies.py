"""What a command is told, by each protocol, when its connection is refused or fails."""

from __future__ import annotations

import json
from http import HTTPStatus

from handrail.network import decide
from handrail.network.decide import Kind, Target, Verdict

#: Reason -> value of ``x-proxy-error``, message.
_TEXTS = {
    decide.NOT_ALLOWED: ("blocked-by-allowlist", "Domain not in allowlist."),
    decide.NOT_ALLOWED_LOCAL: (
        "blocked-by-allowlist",
        "Sandbox policy blocks local/private network addresses.",
    ),
    decide.DENIED: ("blocked-by-denylist", "Domain denied by the sandbox policy."),
    decide.METHOD_NOT_ALLOWED: (
        "blocked-by-method-policy",
        "Method not allowed in limited mode.",
    ),
    decide.MITM_REQUIRED: ("blocked-by-mitm-required", "MITM required for limited HTTPS."),
}
_OTHERS = ("blocked-by-policy", "Request blocked by network policy.")

# Replies of SOCKS 5.
SOCKS_OK, SOCKS_REFUSED_BY_RULE, SOCKS_NETWORK, SOCKS_NO_HOST = 0, 2, 3, 4
SOCKS_REFUSED, SOCKS_TIMEOUT, SOCKS_COMMAND, SOCKS_ADDRESS_TYPE = 5, 6, 7, 8

ESTABLISHED = b"HTTP/1.1 200 OK\r\n\r\n"


def error_field(verdict: Verdict) -> str:
    """The value of ``x-proxy-error``."""
    return _TEXTS.get(verdict.reason, _OTHERS)[0]


def message(verdict: Verdict) -> str:
    """One sentence: that of the configuration, else the standard one."""
    return verdict.message or _TEXTS.get(verdict.reason, _OTHERS)[1]


def refusal(target: Target, verdict: Verdict, *, keep: bool) -> bytes:
    """The answer to a plain request or a CONNECT; ``keep``: the connection stays usable."""
    if target.protocol == decide.CONNECT:
        text = f"{message(verdict)} ({target.host.bracketed}:{target.port})"
        body, kind = text.encode(), "text/plain"
    else:
        body, kind = _json_body(target, verdict), "application/json"
    fields = [("content-type", kind), ("x-proxy-error", error_field(verdict))]
    return response(403, body, fields, keep=keep, head_only=target.method == "HEAD")


def _json_body(target: Target, verdict: Verdict) -> bytes:
    asked = verdict.kind is Kind.ASK
    values = {
        "status": "blocked",
        "host": target.host.text,
        "reason": verdict.reason,
        "decision": "ask" if asked else "deny",
        "source": verdict.source,
        "protocol": target.protocol,
        "port": target.port,
        "message": message(verdict),
    }
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()


def failure(why: str, *, keep: bool, head_only: bool = False) -> bytes:
    """The answer when the other side was not reached, or answered nonsense."""
    body = f"upstream failure: {why}".encode("utf-8", "replace")
    return response(502, body, [("content-type", "text/plain")], keep=keep, head_only=head_only)


def bad(status: int, sentence: str) -> bytes:
    """The answer to a head that is refused; the connection ends."""
    return response(status, sentence.encode(), [("content-type", "text/plain")], keep=False)


def response(
    status: int,
    body: bytes,
    fields: list[tuple[str, str]],
    *,
    keep: bool,
    head_only: bool = False,
) -> bytes:
    """A whole response."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in fields]
    lines.append(f"content-length: {len(body)}")
    if not keep:
        lines.append("connection: close")
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head if head_only else head + body


def socks_reply(code: int) -> bytes:
    """A reply of SOCKS 5; the address in it means nothing to clients of CONNECT."""
    return bytes((5, code, 0, 1, 0, 0, 0, 0, 0, 0))


#: Reason -> what a model is told; hosts without one are on no list.
_SENTENCES = {
    decide.DENIED: "domain is explicitly denied by policy and cannot be approved from this prompt",
    decide.NOT_ALLOWED_LOCAL: "local and private addresses are closed unless they are listed",
    decide.METHOD_NOT_ALLOWED: "only GET, HEAD and OPTIONS of plain HTTP are allowed here",
    decide.MITM_REQUIRED: "only GET, HEAD and OPTIONS of plain HTTP are allowed here",
    decide.BAD_HOST: "it is no valid host",
    decide.UNSUPPORTED: "the proxy of the sandbox does not carry this",
    decide.TOO_MANY: "one command may not ask about so many hosts or open so many connections",
}


def sentence(place: str, reason: str, *, by_answer: bool, text: str | None = None) -> str:
    """What a model is told behind the output of a command; ``place`` is host and port."""
    if text is not None:
        why = text.rstrip(".")
    elif by_answer and reason != decide.DENIED:
        why = "not approved"
    else:
        standard = "domain is not on the allowlist for the current sandbox mode"
        why = _SENTENCES.get(reason, standard)
    return f'Network access to "{place}" was blocked: {why}.'
