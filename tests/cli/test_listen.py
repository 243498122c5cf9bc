"""``--listen`` and who may be let in without a question."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.errors import UsageError
from handrail.server.auth.exposure import check_exposure
from handrail.server.auth.tokens import AuthMode, AuthSettings
from handrail.server_settings import Listen, ServerSettings, parse_listen

GOOD = {
    "stdio": Listen("stdio"),
    "stdio://": Listen("stdio"),
    "ws://127.0.0.1:0": Listen("websocket", "127.0.0.1", 0),
    "ws://127.0.0.1:65535": Listen("websocket", "127.0.0.1", 65535),
    "ws://0.0.0.0:80": Listen("websocket", "0.0.0.0", 80),
    "ws://[::1]:0": Listen("websocket", "::1", 0),
    "ws://[::]:1": Listen("websocket", "::", 1),
    "ws://[2001:DB8::1]:1": Listen("websocket", "2001:db8::1", 1),
    "unix:/run/x.sock": Listen("unix", path="/run/x.sock"),
    "unix:///run/x.sock": Listen("unix", path="/run/x.sock"),
}

INVALID = [
    "ws://", "ws://localhost:0", "ws://127.0.0.1", "ws://127.0.0.1:", "ws://:0", "ws://127.0.0.1:x",
    "ws://127.0.0.1:65536", "ws://127.0.0.1:100000", "ws://127.0.0.1:-1", "ws://127.0.0.1:0/",
    "ws://127.0.0.1:0/path", "ws://127.0.0.1:0?x", "ws://127.1:0", "ws://0x7f000001:0",
    "ws://256.0.0.1:0", "ws://::1:0", "ws://[::1]", "ws://[127.0.0.1]:0", "ws://[::1%lo]:0",
    "ws://user@127.0.0.1:0", "ws:// 127.0.0.1:0", "ws://127.0.0.1:0\n", "ws://127.0.0.1:٣",
]  # fmt: skip

UNSUPPORTED = ["", "x", "ws:", "ws:/127.0.0.1:0", "WS://127.0.0.1:0", "wss://127.0.0.1:0",
               "http://127.0.0.1:0", "tcp://127.0.0.1:0", "stdio:", "stdio:/", "STDIO", " stdio",
               "127.0.0.1:0"]  # fmt: skip


@pytest.mark.parametrize(("url", "listen"), GOOD.items())
def test_where_to_listen(url: str, listen: Listen) -> None:
    assert parse_listen(url) == listen


@pytest.mark.parametrize("url", INVALID)
def test_a_websocket_url_that_does_not_parse(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_listen(url)
    expected = f"invalid websocket --listen URL `{url}`; expected `ws://IP:PORT`"
    assert str(caught.value) == expected


@pytest.mark.parametrize("url", UNSUPPORTED)
def test_a_url_of_another_kind(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_listen(url)
    expected = f"unsupported --listen URL `{url}`; expected `ws://IP:PORT` or `stdio`"
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("url", ["unix:", "unix:x", "unix://", "unix://x/y", "unix:./x"])
def test_a_unix_socket_needs_an_absolute_path(url: str) -> None:
    with pytest.raises(UsageError, match="expected `unix:/ABSOLUTE/PATH`"):
        parse_listen(url)


@given(st.text())
def test_any_text_is_a_place_or_refused(text: str) -> None:
    for url in (text, f"ws://{text}", f"unix:{text}"):
        try:
            assert parse_listen(url).kind in ("websocket", "unix", "stdio")
        except UsageError:
            pass


def settings(url: str, mode: AuthMode = AuthMode.NONE, *, insecure: bool = False) -> ServerSettings:
    return ServerSettings(parse_listen(url), AuthSettings(mode=mode), insecure_no_auth=insecure)


@pytest.mark.parametrize(
    "url", ["ws://127.0.0.1:0", "ws://127.9.9.9:0", "ws://[::1]:0", "unix:/x/y", "stdio"]
)
def test_near_ones_need_no_authentication(url: str) -> None:
    check_exposure(settings(url))


@pytest.mark.parametrize(
    "url", ["ws://0.0.0.0:0", "ws://[::]:0", "ws://10.0.0.1:0", "ws://[2001:db8::1]:0"]
)
def test_far_ones_do(url: str) -> None:
    with pytest.raises(UsageError, match=r"refusing to listen on .* without authentication"):
        check_exposure(settings(url))
    check_exposure(settings(url, AuthMode.CAPABILITY_TOKEN))
    check_exposure(settings(url, AuthMode.SIGNED_BEARER_TOKEN))
    check_exposure(settings(url, insecure=True))


@pytest.mark.parametrize("url", ["ws://127.0.0.1:0", "ws://[::1]:0", "ws://0.0.0.0:0"])
def test_the_overflow_user_needs_a_token(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user without a number in our user namespace would be taken for our own."""
    monkeypatch.setattr("os.geteuid", lambda: 65_534)
    with pytest.raises(UsageError, match="give --ws-auth, or --any-user"):
        check_exposure(settings(url, insecure=True))
    check_exposure(settings(url, AuthMode.CAPABILITY_TOKEN))
    check_exposure(replace(settings(url, insecure=True), any_user=True))


@pytest.mark.parametrize("url", ["unix:/x/y", "stdio"])
def test_the_overflow_user_may_use_what_is_no_tcp(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 65_534)
    check_exposure(settings(url))
