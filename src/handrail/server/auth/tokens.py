"""Authentication by token: its flags, the check of one request, the throttle against guessing.

Owns secrets from the file to the comparison.  No secret is in a repr, a log line, an error or
the chain behind an error, which is why errors about a secret are raised after the ``except``
that found them.  ``admission.py`` has the rules before the token; the listener waits for as long as
``Throttle`` says.

The wording of failures, the order of the checks and the 30 seconds are those of the Codex
exec-server 0.166.  It accepts any readable path as a token file; we refuse pipes, devices and
files of other users, and warn about files that others can read.
PyJWT is imported by the mode that needs it: it costs more than the rest of this module.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from handrail.errors import UsageError
from handrail.secret_file import read_secret
from handrail.transport.http_head import HttpRequest

logger = logging.getLogger(__name__)

DEFAULT_SKEW = 30
_CALLED = "websocket auth secret"
_SHORTEST_SECRET = 32  # bytes: the key size of HS256
_SHORTEST_TOKEN = 16  # bytes: 128 bits if they are random
_I64 = range(-(2**63), 2**63)
_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}")
# Stricter than PyJWT: some versions skip foreign characters, and all accept padding.
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)")
_CLAIMS = ("exp", "nbf", "iss", "aud")
_GIVEN_ONCE = (*_CLAIMS, "sub")
#: Begins a subject that is no text.
_WRITTEN = "\0"


class AuthMode(enum.Enum):
    """How clients authenticate; the value is the word on the command line."""

    NONE = "none"
    CAPABILITY_TOKEN = "capability-token"  # noqa: S105  the name of a mode
    SIGNED_BEARER_TOKEN = "signed-bearer-token"  # noqa: S105  the name of a mode


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """The flags as given; None for a flag that was not."""

    mode: AuthMode = AuthMode.NONE
    token_file: str | None = None
    token_sha256: str | None = field(default=None, repr=False)
    shared_secret_file: str | None = None
    issuer: str | None = None
    audience: str | None = None
    max_clock_skew_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated client.  Equal principals are the same client."""

    mode: AuthMode
    subject: str = ""
    issuer: str = ""

    @property
    def text(self) -> str:
        """The client in one line, as the owner of sessions; no two clients have the same."""
        words = (self.mode.value, self.issuer, self.subject)
        return ":".join(word.replace("%", "%25").replace(":", "%3A") for word in words)

    @property
    def tenant(self) -> str | None:
        """The one tenant whose workspaces it may use; None: all."""
        return self.subject if self.mode is AuthMode.SIGNED_BEARER_TOKEN and self.subject else None


@dataclass(frozen=True, slots=True)
class AuthFailure:
    """Why a request was refused.  ``body`` is a fixed text and has nothing of the request."""

    body: bytes
    status: int = 401


MISSING = AuthFailure(b"missing websocket bearer token")
BAD_HEADER = AuthFailure(b"invalid authorization header")
BAD_TOKEN = AuthFailure(b"invalid websocket bearer token")
BAD_JWT = AuthFailure(b"invalid websocket jwt")
EXPIRED = AuthFailure(b"expired websocket jwt")
NOT_YET = AuthFailure(b"websocket jwt is not valid yet")
BAD_ISSUER = AuthFailure(b"websocket jwt issuer mismatch")
BAD_AUDIENCE = AuthFailure(b"websocket jwt audience mismatch")


class Authenticator(Protocol):
    """Checks one request; pure but for the clock."""

    mode: AuthMode

    def check(self, request: HttpRequest) -> Principal | AuthFailure: ...


def build_authenticator(
    settings: AuthSettings,
    *,
    listener: Literal["websocket", "unix", "stdio"] = "websocket",
    clock: Callable[[], float] = time.time,
) -> Authenticator:
    """Make the authenticator for these flags.  Raises UsageError; flags that contradict each other
    are refused before any file is read."""
    _check_flags(settings)
    if settings.mode is AuthMode.NONE:
        return _Anyone()
    if listener == "stdio":
        raise UsageError("WebSocket auth requires a WebSocket listener, not stdio")
    if settings.mode is AuthMode.CAPABILITY_TOKEN:
        return _CapabilityToken(_token_digest(settings))
    return _signed_bearer_token(settings, clock)


def _check_flags(settings: AuthSettings) -> None:
    token_flags = settings.token_file is not None or settings.token_sha256 is not None
    jwt_flags = any(
        flag is not None
        for flag in (
            settings.shared_secret_file,
            settings.issuer,
            settings.audience,
            settings.max_clock_skew_seconds,
        )
    )
    if settings.mode is AuthMode.NONE:
        if token_flags or jwt_flags:
            raise UsageError(
                "websocket auth flags require `--ws-auth capability-token`"
                " or `--ws-auth signed-bearer-token`"
            )
    elif settings.mode is AuthMode.CAPABILITY_TOKEN:
        if jwt_flags:
            raise UsageError(
                "`--ws-shared-secret-file`, `--ws-issuer`, `--ws-audience`, and"
                " `--ws-max-clock-skew-seconds` require `--ws-auth signed-bearer-token`"
            )
        if not token_flags:
            raise UsageError(
                "`--ws-token-file` or `--ws-token-sha256` is required"
                " when `--ws-auth capability-token` is set"
            )
        if settings.token_file is not None and settings.token_sha256 is not None:
            raise UsageError("`--ws-token-file` and `--ws-token-sha256` are mutually exclusive")
    else:
        _check_jwt_flags(settings, token_flags)


def _check_jwt_flags(settings: AuthSettings, token_flags: bool) -> None:
    if token_flags:
        raise UsageError(
            "`--ws-token-file` and `--ws-token-sha256` require"
            " `--ws-auth capability-token`, not `signed-bearer-token`"
        )
    if settings.shared_secret_file is None:
        raise UsageError(
            "`--ws-shared-secret-file` is required when `--ws-auth signed-bearer-token` is set"
        )
    skew = settings.max_clock_skew_seconds
    if skew is not None and (skew < 0 or skew not in _I64):
        raise UsageError("websocket auth clock skew must fit in a signed 64-bit integer")


# --- the modes -----------------------------------------------------------------------------


class _Anyone:
    mode = AuthMode.NONE

    def check(self, request: HttpRequest) -> Principal | AuthFailure:
        return Principal(self.mode)


class _CapabilityToken:
    """Keeps only the digest of the token."""

    mode = AuthMode.CAPABILITY_TOKEN

    def __init__(self, digest: bytes) -> None:
        self._digest = digest

    def check(self, request: HttpRequest) -> Principal | AuthFailure:
        token = _bearer_token(request)
        if isinstance(token, AuthFailure):
            return token
        if not hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self._digest):
            return BAD_TOKEN
        return Principal(self.mode)


class _SignedBearerToken:
    """HS256 only.  ``verify`` gives the signed claims, None for any token it does not accept."""

    mode = AuthMode.SIGNED_BEARER_TOKEN

    def __init__(
        self,
        verify: Callable[[str], dict[str, object] | None],
        settings: AuthSettings,
        clock: Callable[[], float],
    ) -> None:
        self._verify = verify
        # Blank after trimming means: not checked, as with the real peer.
        self._issuer = (settings.issuer or "").strip()
        self._audience = (settings.audience or "").strip()
        skew = settings.max_clock_skew_seconds
        self._skew = DEFAULT_SKEW if skew is None else skew
        self._clock = clock

    def check(self, request: HttpRequest) -> Principal | AuthFailure:
        token = _bearer_token(request)
        if isinstance(token, AuthFailure):
            return token
        claims = self._verify(token)
        if claims is None:
            return BAD_JWT
        return self._judge(claims)

    def _judge(self, claims: dict[str, object]) -> Principal | AuthFailure:
        exp, nbf, iss, aud = (claims.get(name) for name in _CLAIMS)
        # type() and not isinstance: True is an int in Python, and 1.5e9 is no integer here.
        if type(exp) is not int or exp not in _I64:
            return BAD_JWT
        if nbf is not None and (type(nbf) is not int or nbf not in _I64):
            return BAD_JWT
        audiences = aud if isinstance(aud, list) else [] if aud is None else [aud]
        if not all(isinstance(one, str) for one in audiences):
            return BAD_JWT
        if iss is not None and not isinstance(iss, str):
            return BAD_JWT
        now = int(self._clock())
        if now > exp + self._skew:
            return EXPIRED
        if nbf is not None and now < nbf - self._skew:
            return NOT_YET
        if self._issuer and iss != self._issuer:
            return BAD_ISSUER
        if self._audience and self._audience not in audiences:
            return BAD_AUDIENCE
        return Principal(self.mode, _subject(claims), iss or "")


def _signed_bearer_token(settings: AuthSettings, clock: Callable[[], float]) -> Authenticator:
    import jwt

    path = settings.shared_secret_file or ""
    secret = read_secret(path, _CALLED)
    if len(secret) < _SHORTEST_SECRET:
        raise UsageError(
            f"signed websocket bearer secret {os.path.abspath(path)}"
            f" must be at least {_SHORTEST_SECRET} bytes"
        )
    jws = jwt.PyJWS(algorithms=["HS256"])

    def verify(token: str) -> dict[str, object] | None:
        match = _COMPACT.fullmatch(token)
        if match is None:
            return None
        try:
            decoded = jws.decode_complete(token, secret, algorithms=["HS256"])
            claims = json.loads(
                decoded["payload"].decode("utf-8"),
                object_pairs_hook=_object,
                parse_constant=_no_constant,
            )
            # Half of a character in an escape sequence: it could be neither stored nor shown.
            json.dumps(claims, ensure_ascii=False).encode()
        except (jwt.PyJWTError, ValueError, RecursionError):
            return None
        # The last character of the signature has two bits that decoders ignore.
        canonical = base64.urlsafe_b64encode(decoded["signature"]).rstrip(b"=").decode()
        return claims if match[1] == canonical and isinstance(claims, dict) else None

    return _SignedBearerToken(verify, settings, clock)


def _subject(claims: dict[str, object]) -> str:
    """The subject of a token; "" without the claim alone, for such a token is for all tenants.

    What is no text is written as JSON behind a NUL: no other subject reads like it.
    """
    subject = claims.get("sub")
    if subject is None:
        return ""
    if isinstance(subject, str) and subject and subject[0] != _WRITTEN:
        return subject
    return _WRITTEN + json.dumps(subject, sort_keys=True)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a repeated claim: two readers could disagree about which one counts."""
    names = [name for name, _ in pairs]
    if any(names.count(claim) > 1 for claim in _GIVEN_ONCE):
        raise ValueError("a claim is given twice")
    return dict(pairs)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _bearer_token(request: HttpRequest) -> str | AuthFailure:
    value = request.header("authorization")
    if value is None:
        return MISSING
    scheme, _, token = value.strip(" \t").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or not value.isascii():
        return BAD_HEADER
    return token


# --- secrets -------------------------------------------------------------------------------


def _token_digest(settings: AuthSettings) -> bytes:
    if settings.token_sha256 is not None:
        digest = settings.token_sha256.strip()
        if not _SHA256_HEX.fullmatch(digest):
            raise UsageError("--ws-token-sha256 must be a 64-character hex SHA-256 digest")
        return bytes.fromhex(digest)
    path = settings.token_file or ""
    token = read_secret(path, _CALLED)
    if len(token) < _SHORTEST_TOKEN:
        logger.warning(
            "the token in %s is shorter than %d bytes and can be guessed; make a longer one,"
            " for instance with: openssl rand -hex 32",
            os.path.abspath(path),
            _SHORTEST_TOKEN,
        )
    return hashlib.sha256(token).digest()


# --- the throttle against guessing -----------------------------------------------------------


class Throttle:
    """How long the answer to a failed attempt waits, per client address.

    The first ten failures cost nothing: a client with a stale token retries a few times.
    After that the wait doubles from 50 ms to one second.  Five minutes without a failure reset it.
    Successful requests never wait, so a guesser cannot slow down an honest client behind the
    same address.
    """

    FREE = 10
    FIRST = 0.05
    LONGEST = 1.0
    FORGET = 300.0
    PEERS = 1024

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[int, float]] = {}  # last failure last

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, peer: str) -> float:
        """Count a failure of this address (with or without a port); returns how many seconds its
        answer waits."""
        now = self._clock()
        key = _network(peer)
        count, last = self._failures.pop(key, (0, now))
        count = 1 if now - last > self.FORGET else count + 1
        self._failures[key] = (count, now)
        if len(self._failures) > self.PEERS:
            del self._failures[next(iter(self._failures))]
        if count <= self.FREE:
            return 0.0
        return float(min(self.LONGEST, self.FIRST * 2 ** min(count - self.FREE - 1, 16)))


def _network(peer: str) -> str:
    """The network that counts as one client: an IPv4 address, or the /64 of an IPv6 host."""
    host = peer
    if peer.startswith("["):
        host = peer[1:].partition("]")[0]
    elif peer.count(":") == 1:
        host = peer.partition(":")[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return peer[:100]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
