"""The HTTP surface.  Statuses and bodies marked with nothing are those of the Codex
exec-server 0.166, asked over a raw socket; the Host rule and /metrics are ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.server.auth.admission import HttpAdmission
from handrail.server.auth.tokens import AuthFailure, AuthMode, Principal
from handrail.transport.base import Receiver, Transport
from handrail.transport.http_head import HttpRequest, HttpResponse, parse_request

UPGRADE = {
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
METRICS = b"handrail_processes_active 3\n"
GOOD = {"Authorization": "Bearer good"}


class Client:
    """The receiver of whoever got in."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal

    def connected(self, transport: Transport) -> None: ...

    def message(self, data: str | bytes | bytearray) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def disconnected(self, why: str) -> None: ...


class Guard:
    """Lets ``good`` in and counts how often it was asked."""

    mode = AuthMode.CAPABILITY_TOKEN

    def __init__(self) -> None:
        self.asked = 0

    def check(self, request: HttpRequest) -> Principal | AuthFailure:
        self.asked += 1
        if request.header("authorization") == "Bearer good":
            return Principal(self.mode, "ann")
        return AuthFailure(b"missing websocket bearer token")


def front(
    guard: Guard | None = None,
    *,
    bound: str = "127.0.0.1",
    origins: tuple[str, ...] = (),
    hosts: tuple[str, ...] = (),
) -> HttpAdmission:
    return HttpAdmission(guard or Guard(), lambda _: METRICS, Client, bound, origins, hosts)


def ask(
    route: HttpAdmission,
    line: str,
    headers: dict[str, str] | None = None,
    *,
    host: str | None = "127.0.0.1:4000",
    version: str = "HTTP/1.1",
) -> HttpResponse | Receiver:
    """Through the real parser, so that paths and queries are cut as in life."""
    lines = [f"{line} {version}"]
    lines += [f"Host: {host}"] if host is not None else []
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return route(parse_request("\r\n".join(lines).encode("latin-1")))


def answer(*args: object, **kwargs: object) -> HttpResponse:
    result = ask(*args, **kwargs)  # type: ignore[arg-type]
    assert isinstance(result, HttpResponse)
    return result


def header(response: HttpResponse, name: str) -> str | None:
    return {key.lower(): value for key, value in response.headers}.get(name.lower())


# --- paths and methods ---------------------------------------------------------------------

_GET_ONLY = b"Request method must be `GET`"


@pytest.mark.parametrize(
    ("line", "status", "body"),
    [
        ("GET /readyz", 200, b""),
        ("HEAD /readyz", 200, b""),
        ("GET /readyz?x=1&y", 200, b""),
        ("GET http://127.0.0.1/readyz", 200, b""),
        ("POST /readyz", 405, b""),
        ("PUT /readyz", 405, b""),
        ("OPTIONS /readyz", 405, b""),
        ("get /readyz", 405, b""),
        ("GET /readyz/", 404, b""),
        ("GET /Readyz", 404, b""),
        ("GET /%72eadyz", 404, b""),
        ("GET /./readyz", 404, b""),
        ("GET /healthz", 404, b""),
        ("GET /other", 404, b""),
        ("POST /other", 404, b""),
        ("GET //", 404, b""),
        ("OPTIONS *", 404, b""),
        ("CONNECT 127.0.0.1:1", 404, b""),
        ("HEAD /", 405, _GET_ONLY),
        ("POST /", 405, _GET_ONLY),
        ("OPTIONS /", 405, _GET_ONLY),
        ("DELETE /", 405, _GET_ONLY),
    ],
)
def test_paths_and_methods(line: str, status: int, body: bytes) -> None:
    guard = Guard()
    response = answer(front(guard), line)
    assert (response.status, response.body) == (status, body)
    assert guard.asked == 0
    # The same with upgrade headers: they matter for GET / alone.
    response = answer(front(guard), line, UPGRADE)
    assert (response.status, response.body) == (status, body)
    assert guard.asked == 0


@pytest.mark.parametrize(
    ("line", "allow"),
    [("POST /", "GET"), ("POST /readyz", "GET,HEAD"), ("POST /metrics", "GET,HEAD")],
)
def test_a_wrong_method_is_told_the_right_ones(line: str, allow: str) -> None:
    response = answer(front(), line, GOOD)
    assert response.status == 405
    assert header(response, "Allow") == allow


# --- the upgrade ---------------------------------------------------------------------------


def test_an_authenticated_upgrade_gets_its_receiver() -> None:
    for line in ("GET /", "GET /?token=x&y"):
        receiver = ask(front(), line, UPGRADE | GOOD)
        assert isinstance(receiver, Client)
        assert receiver.principal == Principal(AuthMode.CAPABILITY_TOKEN, "ann")


def test_an_upgrade_without_a_token_is_refused() -> None:
    response = answer(front(), "GET /", UPGRADE)
    assert (response.status, response.body) == (401, b"missing websocket bearer token")
    assert header(response, "WWW-Authenticate") == "Bearer"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Connection", None),
        ("Connection", "close"),
        ("Upgrade", None),
        ("Upgrade", "h2c"),
        ("Sec-WebSocket-Version", None),
        ("Sec-WebSocket-Version", "12"),
        ("Sec-WebSocket-Key", None),
    ],
)
def test_a_get_that_is_no_upgrade_is_told_so_without_a_token(name: str, value: str | None) -> None:
    headers = {key: one for key, one in UPGRADE.items() if key != name}
    if value is not None:
        headers[name] = value
    guard = Guard()
    response = answer(front(guard), "GET /", headers)
    assert response.status == 400
    assert response.body
    assert response.content_type.startswith("text/plain")
    assert header(response, "Sec-WebSocket-Version") == "13"
    assert guard.asked == 0


# --- metrics (ours) ------------------------------------------------------------------------


def test_metrics_need_the_same_token_as_the_upgrade() -> None:
    assert answer(front(), "GET /metrics").status == 401
    assert answer(front(), "HEAD /metrics", {"Authorization": "Bearer bad"}).status == 401
    for line in ("GET /metrics", "HEAD /metrics", "GET /metrics?x"):
        response = answer(front(), line, GOOD)
        assert (response.status, response.body) == (200, METRICS)
        assert response.content_type == "text/plain; version=0.0.4; charset=utf-8"


# --- Origin --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["GET /readyz", "GET /", "POST /", "GET /other", "GET /metrics", "HEAD /"]
)
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "http://127.0.0.1:4000"])
def test_any_origin_is_refused_before_anything_else(line: str, origin: str) -> None:
    guard = Guard()
    response = answer(front(guard), line, {"Origin": origin} | UPGRADE | GOOD)
    assert (response.status, response.body) == (403, b"")
    # Before the Host rule as well, and with no Host at all.
    response = answer(front(guard), line, {"Origin": origin}, host=None)
    assert (response.status, response.body) == (403, b"")
    assert guard.asked == 0


def test_a_listed_origin_goes_on_to_the_next_rule() -> None:
    route = front(origins=("https://Ide.example/", "http://localhost:3000"))
    for origin in ("https://ide.example", "HTTPS://IDE.example", "http://localhost:3000"):
        assert answer(route, "GET /readyz", {"Origin": origin}).status == 200
        assert answer(route, "GET /", {"Origin": origin} | UPGRADE).status == 401
        assert isinstance(ask(route, "GET /", {"Origin": origin} | UPGRADE | GOOD), Client)
    for origin in ("http://ide.example", "https://ide.example:444", "http://localhost:3001", ""):
        assert answer(route, "GET /readyz", {"Origin": origin}).status == 403


def test_every_origin_header_must_be_listed() -> None:
    route = front(origins=("https://ide.example",))
    headers = (
        ("host", "localhost"),
        ("origin", "https://ide.example"),
        ("origin", "http://evil.example"),
    )
    response = route(HttpRequest("GET", "/readyz", "/readyz", "", headers))
    assert isinstance(response, HttpResponse)
    assert response.status == 403


# --- Host (ours) ---------------------------------------------------------------------------

LOOPBACK = [
    "localhost",
    "LocalHost:80",
    "localhost.",
    "127.0.0.1",
    "127.0.0.1:4000",
    "127.9.8.7:1",
    "[::1]",
    "[::1]:4000",
    "[0:0:0:0:0:0:0:1]:4000",
    "[::ffff:127.0.0.1]",
]
FOREIGN_NAMES = [
    "evil.example",
    "evil.example:4000",
    "localhost.evil.example",
    "evil-localhost",
    "127.0.0.1.evil.example",
    "127.0.0.1.nip.io:80",
    "127.1",
    "2130706433",
    "0x7f.0.0.1",
    "",
    ":4000",
    "[::1",
    "[::1]x",
    "[localhost]",
    "[127.0.0.1]",
    "::1",
    "localhost:x",
    "localhost:4000:1",
    "localhost:４",
    "user@localhost",
    "localhost/",
]
FOREIGN_ADDRESSES = ["192.0.2.7", "192.0.2.7:80", "[2001:db8::7]:80", "10.0.0.1"]


@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "192.0.2.5", "0.0.0.0", "::", "[::1]"])
@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_names_are_always_ours(bound: str, host: str) -> None:
    assert answer(front(bound=bound), "GET /readyz", host=host).status == 200


@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "192.0.2.5", "0.0.0.0", "::"])
@pytest.mark.parametrize("host", FOREIGN_NAMES)
def test_foreign_names_are_never_ours(bound: str, host: str) -> None:
    guard = Guard()
    route = front(guard, bound=bound)
    headers = (("host", host), *((name.lower(), value) for name, value in UPGRADE.items()))
    for path in ("/", "/readyz", "/metrics", "/other"):
        response = route(HttpRequest("GET", path, path, "", headers))
        assert isinstance(response, HttpResponse)
        assert response.status == 403
        assert b"Host" in response.body
        assert not host or host.encode() not in response.body
    assert guard.asked == 0


@pytest.mark.parametrize("host", FOREIGN_ADDRESSES)
def test_other_addresses_are_ours_only_when_bound_to_all(host: str) -> None:
    for bound in ("127.0.0.1", "::1", "192.0.2.5"):
        assert answer(front(bound=bound), "GET /readyz", host=host).status == 403
    for bound in ("0.0.0.0", "::"):
        assert answer(front(bound=bound), "GET /readyz", host=host).status == 200


def test_the_bound_address_is_ours() -> None:
    assert answer(front(bound="192.0.2.5"), "GET /readyz", host="192.0.2.5:4000").status == 200
    for bound in ("2001:db8::5", "[2001:db8::5]"):
        route = front(bound=bound)
        assert answer(route, "GET /readyz", host="[2001:DB8:0::5]:4000").status == 200
        assert answer(route, "GET /readyz", host="[2001:db8::6]:4000").status == 403


def test_listed_hosts_are_ours() -> None:
    hosts = ("Box.example.", "alias.example:4000", "192.0.2.9", "[2001:db8::9]")
    for bound in ("127.0.0.1", "0.0.0.0"):
        route = front(bound=bound, hosts=hosts)
        for host in ("box.example", "BOX.example:1", "box.example.", "alias.example:4000"):
            assert answer(route, "GET /readyz", host=host).status == 200
        for host in ("192.0.2.9:1", "[2001:db8::9]:1"):
            assert answer(route, "GET /readyz", host=host).status == 200
        for host in ("alias.example", "alias.example:4001", "x.box.example"):
            assert answer(route, "GET /readyz", host=host).status == 403


def test_exactly_one_host_is_needed() -> None:
    response = answer(front(), "GET /readyz", host=None)
    assert response.status == 400
    assert b"Host" in response.body
    assert answer(front(), "GET /readyz", {"host": "127.0.0.1"}).status == 400
    # HTTP/1.0 has none; and no browser speaks it.
    assert answer(front(), "GET /readyz", host=None, version="HTTP/1.0").status == 200


@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "X"]),
    path=st.sampled_from(["/", "/readyz", "/metrics"]) | st.text(),
    headers=st.lists(
        st.tuples(
            st.sampled_from(["host", "origin", "authorization", *(k.lower() for k in UPGRADE)]),
            st.sampled_from(["localhost", "websocket", "upgrade", "13"]) | st.text(),
        )
    ),
)
def test_without_the_right_token_nobody_gets_in(
    method: str, path: str, headers: list[tuple[str, str]]
) -> None:
    response = front(bound="0.0.0.0")(HttpRequest(method, path, path, "", tuple(headers)))
    assert isinstance(response, HttpResponse)
    assert response.body != METRICS
    if any(name == "origin" for name, _ in headers):
        assert (response.status, response.body) == (403, b"")
