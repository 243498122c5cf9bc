"""Who may connect.  The expected texts and statuses were taken from the Codex exec-server
0.166 by asking it; where we differ on purpose, the test says so."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.errors import UsageError
from handrail.server.auth import tokens
from handrail.server.auth.tokens import (
    Authenticator,
    AuthFailure,
    AuthMode,
    AuthSettings,
    Principal,
    Throttle,
    build_authenticator,
)
from handrail.transport.http_head import HttpRequest

NOW = 1_800_000_000
LATER = NOW + 600
SECRET = b"0123456789abcdef0123456789abcdef"
TOKEN = "s3cret-token"
CANARY = "canary-8c1f2e7a-canary-8c1f2e7a-canary"

HEADER = {"alg": "HS256", "typ": "JWT"}


def request(*authorization: str) -> HttpRequest:
    headers = tuple(("authorization", value) for value in authorization)
    return HttpRequest("GET", "/", "/", "", headers)


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(
    claims: object,
    header: object = HEADER,
    *,
    key: bytes = SECRET,
    digest: str = "sha256",
) -> str:
    """A token made without the library under test; bytes are taken as they are."""
    parts = [
        part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, claims)
    ]
    message = ".".join(encode(part) for part in parts)
    return f"{message}.{encode(hmac.new(key, message.encode(), digest).digest())}"


def private(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    path.chmod(0o600)
    return str(path)


def outcome(authenticator: Authenticator, *authorization: str) -> str:
    """``ok`` or the body of the refusal, which is always a 401."""
    result = authenticator.check(request(*authorization))
    if isinstance(result, Principal):
        return "ok"
    assert result.status == 401
    return result.body.decode()


@pytest.fixture
def by_token(tmp_path: Path) -> Authenticator:
    path = private(tmp_path / "token", f"  {TOKEN}\r\n\n".encode())
    return build_authenticator(AuthSettings(AuthMode.CAPABILITY_TOKEN, token_file=path))


def by_jwt(
    tmp_path: Path,
    issuer: str | None = None,
    audience: str | None = None,
    skew: int | None = None,
) -> Authenticator:
    path = private(tmp_path / "secret", SECRET + b"\n")
    settings = AuthSettings(
        AuthMode.SIGNED_BEARER_TOKEN,
        shared_secret_file=path,
        issuer=issuer,
        audience=audience,
        max_clock_skew_seconds=skew,
    )
    return build_authenticator(settings, clock=lambda: NOW + 0.9)


# --- the header ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"Bearer {TOKEN}", "ok"),
        (f"bearer {TOKEN}", "ok"),
        (f"BEARER {TOKEN}", "ok"),
        (f"  Bearer {TOKEN}", "ok"),
        (f"Bearer    {TOKEN}   ", "ok"),
        (f"Bearer \t{TOKEN}", "ok"),
        ("", "invalid authorization header"),
        ("Bearer", "invalid authorization header"),
        ("Bearer ", "invalid authorization header"),
        ("Bearer    ", "invalid authorization header"),
        (f"Bearer\t{TOKEN}", "invalid authorization header"),
        (f"Bearer{TOKEN}", "invalid authorization header"),
        (f"Bearer: {TOKEN}", "invalid authorization header"),
        (f"Basic {TOKEN}", "invalid authorization header"),
        (f"Bearer \xa0{TOKEN}", "invalid authorization header"),
        ("Bearer \xff\xfe", "invalid authorization header"),
        (TOKEN, "invalid authorization header"),
        (f"Bearer {TOKEN[:-1]}", "invalid websocket bearer token"),
        (f"Bearer {TOKEN}x", "invalid websocket bearer token"),
        (f"Bearer {TOKEN},", "invalid websocket bearer token"),
        (f"Bearer {TOKEN} x", "invalid websocket bearer token"),
        (f"Bearer {TOKEN.upper()}", "invalid websocket bearer token"),
    ],
)
def test_capability_token_header(by_token: Authenticator, value: str, expected: str) -> None:
    assert outcome(by_token, value) == expected


def test_no_header_is_a_missing_token(by_token: Authenticator, tmp_path: Path) -> None:
    assert outcome(by_token) == "missing websocket bearer token"
    assert outcome(by_jwt(tmp_path)) == "missing websocket bearer token"


def test_the_first_of_two_headers_counts(by_token: Authenticator) -> None:
    assert outcome(by_token, f"Bearer {TOKEN}", "Bearer x") == "ok"
    assert outcome(by_token, "Bearer x", f"Bearer {TOKEN}") == "invalid websocket bearer token"


def test_a_token_in_the_query_is_not_considered(by_token: Authenticator) -> None:
    asked = HttpRequest("GET", f"/?token={TOKEN}", "/", f"token={TOKEN}", ())
    assert by_token.check(asked) == AuthFailure(b"missing websocket bearer token")


def test_without_a_mode_everybody_is_let_in() -> None:
    anyone = build_authenticator(AuthSettings())
    assert anyone.check(request()) == Principal(AuthMode.NONE)
    assert anyone.check(request("Bearer x")) == Principal(AuthMode.NONE)


@pytest.mark.parametrize("change", [str.lower, str.upper, lambda text: f" {text} "])
def test_token_by_its_digest(change: object) -> None:
    digest = change(hashlib.sha256(TOKEN.encode()).hexdigest())  # type: ignore[operator]
    settings = AuthSettings(AuthMode.CAPABILITY_TOKEN, token_sha256=digest)
    authenticator = build_authenticator(settings)
    assert outcome(authenticator, f"Bearer {TOKEN}") == "ok"
    assert outcome(authenticator, f"Bearer {digest}") == "invalid websocket bearer token"


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1))
def test_exactly_the_token_is_taken(token: str) -> None:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    settings = AuthSettings(AuthMode.CAPABILITY_TOKEN, token_sha256=digest)
    expected = "ok" if token == TOKEN else "invalid websocket bearer token"
    assert outcome(build_authenticator(settings), f"Bearer {token}") == expected


# --- signed tokens -------------------------------------------------------------------------

GOOD = sign({"exp": LATER})
INVALID = "invalid websocket jwt"
EXPIRED = "expired websocket jwt"
NOT_YET = "websocket jwt is not valid yet"
ISSUER = "websocket jwt issuer mismatch"
AUDIENCE = "websocket jwt audience mismatch"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        pytest.param(GOOD, "ok", id="good"),
        # form
        pytest.param(GOOD.rsplit(".", 1)[0], INVALID, id="two parts"),
        pytest.param(GOOD + ".x", INVALID, id="four parts"),
        pytest.param("abc", INVALID, id="one part"),
        pytest.param("..", INVALID, id="only dots"),
        pytest.param(GOOD.rsplit(".", 1)[0] + ".", INVALID, id="empty signature"),
        pytest.param(GOOD + "=", INVALID, id="padded"),
        pytest.param(GOOD[:-4] + "AAAA", INVALID, id="wrong signature"),
        pytest.param(GOOD[:-1] + chr(ord(GOOD[-1]) + 1), INVALID, id="unused bits of signature"),
        pytest.param(GOOD.replace(".", ".!", 1), INVALID, id="foreign character"),
        pytest.param(sign({"exp": LATER}, key=b"x" * 32), INVALID, id="other key"),
        pytest.param(sign({"exp": LATER}, key=SECRET + b"\n"), INVALID, id="untrimmed key"),
        # algorithm
        pytest.param(sign({"exp": LATER}, {"alg": "HS512"}, digest="sha512"), INVALID, id="HS512"),
        pytest.param(sign({"exp": LATER}, {"alg": "HS384"}, digest="sha384"), INVALID, id="HS384"),
        pytest.param(sign({"exp": LATER}, {"alg": "none"}), INVALID, id="none, signed"),
        pytest.param(sign({"exp": LATER}, {"alg": "none"}).rsplit(".", 1)[0] + ".", INVALID),
        pytest.param(sign({"exp": LATER}, {"alg": "hs256"}), INVALID, id="hs256"),
        pytest.param(sign({"exp": LATER}, {"typ": "JWT"}), INVALID, id="no alg"),
        pytest.param(sign({"exp": LATER}, {"alg": "HS256", "typ": "other"}), "ok", id="typ"),
        pytest.param(sign({"exp": LATER}, {"alg": "HS256", "kid": "x"}), "ok", id="kid"),
        pytest.param(sign({"exp": LATER}, {"alg": "HS256", "kid": 5}), INVALID, id="kid number"),
        # The real peer ignores «crit»; RFC 7515 wants a token refused whose rules are unknown.
        pytest.param(sign({"exp": LATER}, {"alg": "HS256", "crit": ["x"]}), INVALID, id="crit"),
        # exp
        pytest.param(sign({}), INVALID, id="no exp"),
        pytest.param(sign({"exp": LATER + 0.5}), INVALID, id="exp float"),
        pytest.param(sign(b'{"exp": %d.0}' % LATER), INVALID, id="exp whole float"),
        pytest.param(sign(b'{"exp": 1e10}'), INVALID, id="exp exponent"),
        pytest.param(sign({"exp": str(LATER)}), INVALID, id="exp string"),
        pytest.param(sign({"exp": True}), INVALID, id="exp bool"),
        pytest.param(sign({"exp": None}), INVALID, id="exp null"),
        pytest.param(sign({"exp": 2**63}), INVALID, id="exp beyond 64 bits"),
        pytest.param(sign(b'{"exp": 1%s}' % (b"0" * 6000)), INVALID, id="exp of 6000 digits"),
        pytest.param(sign({"exp": 2**63 - 1}), "ok", id="exp largest"),
        pytest.param(sign({"exp": -(2**63)}), EXPIRED, id="exp smallest"),
        pytest.param(sign({"exp": 0}), EXPIRED, id="exp 0"),
        pytest.param(sign({"exp": NOW - 30}), "ok", id="exp at skew"),
        pytest.param(sign({"exp": NOW - 31}), EXPIRED, id="exp beyond skew"),
        pytest.param(sign({"exp": 1}, key=b"x" * 32), INVALID, id="expired and forged"),
        pytest.param(sign({"exp": 1, "nbf": LATER}), EXPIRED, id="expired before not yet"),
        # nbf
        pytest.param(sign({"exp": LATER, "nbf": NOW + 30}), "ok", id="nbf at skew"),
        pytest.param(sign({"exp": LATER, "nbf": NOW + 31}), NOT_YET, id="nbf beyond skew"),
        pytest.param(sign({"exp": LATER, "nbf": 2**63 - 1}), NOT_YET, id="nbf largest"),
        pytest.param(sign({"exp": LATER, "nbf": None}), "ok", id="nbf null"),
        pytest.param(sign({"exp": LATER, "nbf": "5"}), INVALID, id="nbf string"),
        pytest.param(sign({"exp": LATER, "nbf": 5.5}), INVALID, id="nbf float"),
        pytest.param(sign({"exp": LATER, "nbf": True}), INVALID, id="nbf bool"),
        pytest.param(sign({"exp": LATER, "nbf": 2**63}), INVALID, id="nbf beyond 64 bits"),
        # claims that are not configured are not compared, but have a type
        pytest.param(sign({"exp": LATER, "iat": LATER}), "ok", id="iat future"),
        pytest.param(sign({"exp": LATER, "iat": "x"}), "ok", id="iat string"),
        pytest.param(sign({"exp": LATER, "sub": 5, "jti": 5}), "ok", id="sub and jti numbers"),
        pytest.param(sign({"exp": LATER, "iss": "x", "aud": "y"}), "ok", id="iss and aud"),
        pytest.param(sign({"exp": LATER, "iss": None, "aud": None}), "ok", id="iss and aud null"),
        pytest.param(sign({"exp": LATER, "iss": 5}), INVALID, id="iss number"),
        pytest.param(sign({"exp": LATER, "aud": 5}), INVALID, id="aud number"),
        pytest.param(sign({"exp": LATER, "aud": {}}), INVALID, id="aud object"),
        pytest.param(sign({"exp": LATER, "aud": ["a", 5]}), INVALID, id="aud mixed list"),
        # JSON
        pytest.param(sign([LATER]), INVALID, id="claims list"),
        pytest.param(sign(b"hello"), INVALID, id="claims no JSON"),
        pytest.param(sign(b'{"exp": %d} x' % LATER), INVALID, id="claims with a tail"),
        pytest.param(sign(b'{"exp": %d, "x": NaN}' % LATER), INVALID, id="claims NaN"),
        pytest.param(sign(b'\xef\xbb\xbf{"exp": %d}' % LATER), INVALID, id="claims BOM"),
        pytest.param(sign(json.dumps({"exp": LATER}).encode("utf-16")), INVALID, id="UTF-16"),
        pytest.param(sign(b'{"exp": 1, "exp": %d}' % LATER), INVALID, id="exp twice"),
        pytest.param(sign(b'{"exp": %d, "exp": 1}' % LATER), INVALID, id="exp twice, other order"),
        pytest.param(sign(b'{"exp":%d,"x":%s}' % (LATER, b"[" * 9000)), INVALID, id="deep claims"),
        pytest.param(sign({"exp": LATER}, b'{"alg":"HS256","x":' + b"[" * 9000), INVALID),
        pytest.param(sign(b' {"exp": %d} ' % LATER), "ok", id="claims in spaces"),
    ],
)
def test_jwt(tmp_path: Path, token: str, expected: str) -> None:
    assert outcome(by_jwt(tmp_path), f"Bearer {token}") == expected


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"iss": "me", "aud": "you"}, "ok"),
        ({"iss": "me", "aud": ["others", "you"]}, "ok"),
        ({"aud": "you"}, ISSUER),
        ({"iss": None, "aud": "you"}, ISSUER),
        ({"iss": "Me", "aud": "you"}, ISSUER),
        ({"iss": " me", "aud": "you"}, ISSUER),
        ({"iss": ["me"], "aud": "you"}, INVALID),
        ({}, ISSUER),
        ({"iss": "me"}, AUDIENCE),
        ({"iss": "me", "aud": None}, AUDIENCE),
        ({"iss": "me", "aud": []}, AUDIENCE),
        ({"iss": "me", "aud": "yo"}, AUDIENCE),
        ({"iss": "me", "aud": ["yo", "u"]}, AUDIENCE),
        ({"iss": "me", "aud": ["you", 5]}, INVALID),
        ({"exp": 5}, EXPIRED),
        ({"nbf": LATER}, NOT_YET),
    ],
)
def test_jwt_issuer_and_audience(tmp_path: Path, claims: dict[str, object], expected: str) -> None:
    authenticator = by_jwt(tmp_path, " me ", " you ")
    assert outcome(authenticator, f"Bearer {sign({'exp': LATER, **claims})}") == expected


def test_blank_issuer_and_audience_are_not_looked_at(tmp_path: Path) -> None:
    assert outcome(by_jwt(tmp_path, " ", ""), f"Bearer {GOOD}") == "ok"


@pytest.mark.parametrize(
    ("skew", "claims", "expected"),
    [
        (0, {"exp": NOW}, "ok"),
        (0, {"exp": NOW - 1}, EXPIRED),
        (0, {"exp": LATER, "nbf": NOW}, "ok"),
        (0, {"exp": LATER, "nbf": NOW + 1}, NOT_YET),
        (2**63 - 1, {"exp": 1}, "ok"),
        (2**63 - 1, {"exp": -(2**63)}, EXPIRED),
        (2**63 - 1, {"exp": LATER, "nbf": 2**63 - 1}, "ok"),
    ],
)
def test_jwt_clock_skew(
    tmp_path: Path, skew: int, claims: dict[str, object], expected: str
) -> None:
    assert outcome(by_jwt(tmp_path, skew=skew), f"Bearer {sign(claims)}") == expected


def test_the_principal_of_a_jwt_is_its_subject(tmp_path: Path) -> None:
    authenticator = by_jwt(tmp_path)
    mode = AuthMode.SIGNED_BEARER_TOKEN
    table: list[tuple[dict[str, object], Principal]] = [
        ({"sub": "ann", "iss": "corp"}, Principal(mode, "ann", "corp")),
        ({"sub": "ann", "iss": "corp", "jti": "2"}, Principal(mode, "ann", "corp")),
        ({"sub": "bob"}, Principal(mode, "bob")),
        ({}, Principal(mode)),
        ({"sub": None}, Principal(mode)),
        ({"sub": 7}, Principal(mode, "\0007")),
        ({"sub": "7"}, Principal(mode, "7")),
        ({"sub": ""}, Principal(mode, '\0""')),
        ({"sub": '""'}, Principal(mode, '""')),
        ({"sub": "\0007"}, Principal(mode, '\0"\\u00007"')),
        ({"sub": ["ann"]}, Principal(mode, '\0["ann"]')),
    ]
    for claims, expected in table:
        found = authenticator.check(request(f"Bearer {sign({'exp': LATER, **claims})}"))
        assert found == expected
        # All tenants are for a token that names no subject, and for no other.
        assert isinstance(found, Principal)
        assert (found.tenant is None) == (claims.get("sub") is None)


@pytest.mark.parametrize("claim", ["sub", "iss", "jti"])
def test_a_claim_with_half_a_character_is_refused(tmp_path: Path, claim: str) -> None:
    token = sign({"exp": LATER, claim: "ann\ud800"})
    assert by_jwt(tmp_path).check(request(f"Bearer {token}")) == tokens.BAD_JWT


def test_no_two_clients_have_one_text() -> None:
    mode = AuthMode.SIGNED_BEARER_TOKEN
    words = ("", "a", ":", "a:", ":a", "%3A", "%253A", "a:b")
    every = [Principal(mode, subject, issuer) for subject in words for issuer in words]
    assert len({one.text for one in every}) == len(every)
    assert Principal(mode, "ann", "corp").text == "signed-bearer-token:corp:ann"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    header=st.dictionaries(st.sampled_from(["alg", "typ", "kid", "crit", "b64", "x"]), JSON),
    claims=JSON,
)
def test_odd_headers_and_claims_are_refused_not_raised(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, object], claims: object
) -> None:
    authenticator = by_jwt(tmp_path_factory.getbasetemp())
    for head in (header, {**header, "alg": "HS256"}):
        assert isinstance(authenticator.check(request(f"Bearer {sign(claims, head)}")), AuthFailure)


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_any_text_is_answered(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    authenticator = by_jwt(tmp_path_factory.getbasetemp())
    assert isinstance(authenticator.check(request(value)), AuthFailure)


# --- configuration -------------------------------------------------------------------------

_CAP = AuthMode.CAPABILITY_TOKEN
_JWT = AuthMode.SIGNED_BEARER_TOKEN
_NO_MODE = (
    "websocket auth flags require `--ws-auth capability-token` or `--ws-auth signed-bearer-token`"
)
_JWT_ONLY = (
    "`--ws-shared-secret-file`, `--ws-issuer`, `--ws-audience`, and"
    " `--ws-max-clock-skew-seconds` require `--ws-auth signed-bearer-token`"
)
_TOKEN_ONLY = (
    "`--ws-token-file` and `--ws-token-sha256` require `--ws-auth capability-token`,"
    " not `signed-bearer-token`"
)
_NO_TOKEN = (
    "`--ws-token-file` or `--ws-token-sha256` is required when `--ws-auth capability-token` is set"
)
_SKEW = "websocket auth clock skew must fit in a signed 64-bit integer"
_DIGEST = "--ws-token-sha256 must be a 64-character hex SHA-256 digest"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (AuthSettings(token_file="t"), _NO_MODE),
        (AuthSettings(token_sha256="a" * 64), _NO_MODE),
        (AuthSettings(shared_secret_file="s"), _NO_MODE),
        (AuthSettings(issuer="i"), _NO_MODE),
        (AuthSettings(audience="a"), _NO_MODE),
        (AuthSettings(max_clock_skew_seconds=0), _NO_MODE),
        (
            AuthSettings(_CAP),
            _NO_TOKEN,
        ),
        (
            AuthSettings(_CAP, token_file="t", token_sha256="a" * 64),
            "`--ws-token-file` and `--ws-token-sha256` are mutually exclusive",
        ),
        (AuthSettings(_CAP, token_file="t", shared_secret_file="s"), _JWT_ONLY),
        (AuthSettings(_CAP, token_file="t", issuer="i"), _JWT_ONLY),
        (AuthSettings(_CAP, token_file="t", audience="a"), _JWT_ONLY),
        (AuthSettings(_CAP, token_file="t", max_clock_skew_seconds=3), _JWT_ONLY),
        (AuthSettings(_CAP, token_sha256=""), _DIGEST),
        (AuthSettings(_CAP, token_sha256="a" * 63), _DIGEST),
        (AuthSettings(_CAP, token_sha256="g" * 64), _DIGEST),
        (AuthSettings(_CAP, token_sha256="١" * 64), _DIGEST),
        (
            AuthSettings(_JWT),
            "`--ws-shared-secret-file` is required when `--ws-auth signed-bearer-token` is set",
        ),
        (AuthSettings(_JWT, token_file="t"), _TOKEN_ONLY),
        (AuthSettings(_JWT, shared_secret_file="s", token_sha256="a" * 64), _TOKEN_ONLY),
        (AuthSettings(_JWT, shared_secret_file="s", max_clock_skew_seconds=2**63), _SKEW),
        (AuthSettings(_JWT, shared_secret_file="s", max_clock_skew_seconds=-1), _SKEW),
    ],
)
def test_flags_that_make_no_sense(settings: AuthSettings, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_authenticator(settings)
    assert str(caught.value) == sentence


def test_stdio_has_no_authentication() -> None:
    # Before the files are read: this one does not exist.
    settings = AuthSettings(_CAP, token_file="/nowhere")
    with pytest.raises(UsageError) as caught:
        build_authenticator(settings, listener="stdio")
    assert str(caught.value) == "WebSocket auth requires a WebSocket listener, not stdio"
    # Contradicting flags are told first, also for stdio.
    with pytest.raises(UsageError, match="is required"):
        build_authenticator(AuthSettings(_CAP), listener="stdio")
    assert build_authenticator(AuthSettings(), listener="stdio").mode is AuthMode.NONE


def _settings(mode: AuthMode, path: str) -> AuthSettings:
    if mode is _CAP:
        return AuthSettings(mode, token_file=path)
    return AuthSettings(mode, shared_secret_file=path)


@pytest.mark.parametrize("mode", [_CAP, _JWT])
def test_secrets_that_cannot_be_read(tmp_path: Path, mode: AuthMode) -> None:
    os.mkfifo(tmp_path / "fifo")
    private(tmp_path / "empty", b" \r\n\t ")
    private(tmp_path / "binary", b"\xff\xfe" * 32)
    private(tmp_path / "huge", b"x" * (64 * 1024 + 1))
    read = "failed to read websocket auth secret {}: "
    for name, sentence in [
        ("nothing", read + "No such file or directory (os error 2)"),
        (".", read + "it is not a regular file"),
        ("fifo", read + "it is not a regular file"),
        ("binary", read + "stream did not contain valid UTF-8"),
        ("huge", read + "it holds more than 65536 bytes"),
        ("empty", "websocket auth secret {} must not be empty"),
    ]:
        path = os.path.normpath(tmp_path / name)
        with pytest.raises(UsageError) as caught:
            build_authenticator(_settings(mode, path))
        assert str(caught.value) == sentence.format(path)
        # Nor is the reason kept behind it: a decoding error holds what it could not decode.
        assert caught.value.__context__ is None


def test_devices_are_no_secret_files() -> None:
    with pytest.raises(UsageError, match="not a regular file"):
        build_authenticator(AuthSettings(_CAP, token_file="/dev/null"))


@pytest.mark.parametrize("length", [1, 31])
def test_a_short_secret_is_refused(tmp_path: Path, length: int) -> None:
    path = private(tmp_path / "secret", b"x" * length + b"\n" * 40)
    with pytest.raises(UsageError) as caught:
        build_authenticator(_settings(_JWT, path))
    assert str(caught.value) == f"signed websocket bearer secret {path} must be at least 32 bytes"


def test_a_secret_of_32_bytes_in_fewer_characters_is_long_enough(tmp_path: Path) -> None:
    path = private(tmp_path / "secret", "é".encode() * 16)
    build_authenticator(_settings(_JWT, path))


def test_a_relative_path_and_a_link_are_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private(tmp_path / "token", TOKEN.encode())
    (tmp_path / "link").symlink_to("token")
    monkeypatch.chdir(tmp_path)
    authenticator = build_authenticator(AuthSettings(_CAP, token_file="link"))
    assert outcome(authenticator, f"Bearer {TOKEN}") == "ok"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_open_to_others_is_taken_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = tmp_path / "token"
    private(path, CANARY.encode())
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        build_authenticator(AuthSettings(_CAP, token_file=str(path)))
    assert f"mode {mode:04o}" in caplog.text
    assert f"chmod 600 {path}" in caplog.text
    assert CANARY not in caplog.text


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    private(path, CANARY.encode())
    path.chmod(mode)
    with pytest.raises(UsageError, match="other users can change it") as refused:
        build_authenticator(AuthSettings(_CAP, token_file=str(path)))
    assert f"chmod 600 {path}" in str(refused.value)
    assert CANARY not in str(refused.value)


def test_a_private_file_is_taken_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = private(tmp_path / "token", CANARY.encode())
    with caplog.at_level(logging.DEBUG):
        build_authenticator(AuthSettings(_CAP, token_file=path))
    assert caplog.text == ""


def test_a_short_token_is_taken_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = private(tmp_path / "token", b"hunter2")
    with caplog.at_level(logging.WARNING):
        build_authenticator(AuthSettings(_CAP, token_file=path))
    assert "shorter than 16 bytes" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_file_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private(tmp_path / "token", TOKEN.encode())
    owner = os.stat(path).st_uid
    if owner == 0:
        os.chown(path, 12345, -1)
        owner = 12345
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UsageError, match=f"belongs to uid {owner}"):
        build_authenticator(AuthSettings(_CAP, token_file=path))


def test_pyjwt_is_loaded_only_by_the_mode_that_needs_it() -> None:
    program = (
        "import sys; from handrail.server.auth.tokens import *;"
        f"build_authenticator(AuthSettings(AuthMode.CAPABILITY_TOKEN, token_sha256={'a' * 64!r}));"
        "sys.exit('jwt' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


# --- nothing gives a secret away -----------------------------------------------------------


@pytest.mark.parametrize("mode", [_CAP, _JWT])
def test_a_planted_secret_is_nowhere_to_be_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: AuthMode
) -> None:
    path = tmp_path / "secret"
    path.write_text(CANARY)
    path.chmod(0o644)  # so that it logs
    seen: list[object] = []
    digest = hashlib.sha256(CANARY.encode()).hexdigest()
    with caplog.at_level(logging.DEBUG):
        settings = _settings(mode, str(path))
        authenticator = build_authenticator(settings)
        seen += [settings, authenticator, vars(authenticator)]
        seen += [AuthSettings(_CAP, token_sha256=digest)]
        for value in (CANARY, f"Bearer {CANARY}", f"Basic {CANARY}", f"Bearer {CANARY}.x.y"):
            seen.append(authenticator.check(request(value)))
        # Every way to fail: the content is there, and something about it is wrong.
        for content in (CANARY.encode() + b"\xff", CANARY.encode() * 4000):
            path.write_bytes(content)
            with pytest.raises(UsageError) as caught:
                build_authenticator(settings)
            seen += traceback.format_exception(caught.value)
            seen += [caught.value.__context__, caught.value.__cause__]
        with pytest.raises(UsageError) as caught:
            build_authenticator(AuthSettings(_CAP, token_sha256=CANARY))
        seen += traceback.format_exception(caught.value)
    text = "\n".join([caplog.text, *(f"{one!r} {one!s}" for one in seen)])
    assert CANARY not in text
    assert digest not in text
    assert "chmod" in caplog.text


def test_the_token_mode_keeps_no_token(by_token: Authenticator) -> None:
    assert TOKEN.encode() not in pickle.dumps(vars(by_token))


# --- the brake -----------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_ten_failures_are_free_then_the_delay_grows_to_a_second() -> None:
    throttle = Throttle(Clock())
    delays = [throttle.failed("192.0.2.1") for _ in range(20)]
    assert delays[:10] == [0.0] * 10
    assert delays[10:] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_the_delay_stays_finite_after_very_many_failures() -> None:
    throttle = Throttle(Clock())
    assert {throttle.failed("a") for _ in range(5000)} >= {1.0}
    assert throttle.failed("a") == 1.0


def test_five_quiet_minutes_forgive() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(30):
        throttle.failed("192.0.2.1")
    clock.now += Throttle.FORGET
    assert throttle.failed("192.0.2.1") == 1.0
    clock.now += Throttle.FORGET + 1
    assert [throttle.failed("192.0.2.1") for _ in range(11)] == [0.0] * 10 + [0.05]


def test_peers_do_not_pay_for_each_other() -> None:
    throttle = Throttle(Clock())
    for _ in range(30):
        throttle.failed("192.0.2.1")
    assert throttle.failed("192.0.2.2") == 0.0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1:1000", "192.0.2.1:2000", True),
        ("192.0.2.1:1000", "192.0.2.1", True),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("[2001:db8::1]:1", "[2001:db8::2]:2", True),
        ("2001:db8::1", "[2001:db8:0:0:ffff::9]:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("uid 1000", "uid 1001", False),
    ],
)
def test_what_counts_as_one_peer(one: str, other: str, same: bool) -> None:
    throttle = Throttle(Clock())
    for _ in range(10):
        throttle.failed(one)
    assert (throttle.failed(other) > 0) is same


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    throttle = Throttle(Clock())
    for _ in range(11):
        throttle.failed("192.0.2.1")
    for number in range(Throttle.PEERS - 1):
        throttle.failed(f"10.0.{number // 256}.{number % 256}")
    assert len(throttle) == Throttle.PEERS
    assert throttle.failed("192.0.2.1") == 0.1  # still known, and now the youngest
    for number in range(Throttle.PEERS):
        throttle.failed(f"10.1.{number // 256}.{number % 256}")
    assert len(throttle) == Throttle.PEERS
    assert throttle.failed("192.0.2.1") == 0.0


def test_the_default_of_the_skew_is_that_of_the_real_peer() -> None:
    assert tokens.DEFAULT_SKEW == 30
