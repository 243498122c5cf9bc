"""``http:`` and ``https:`` URLs as the peer reads them: like a browser.  Pure.

White space around is dropped, back slashes are slashes, dot segments are resolved, hosts are
mapped to their ASCII form (``0x7f.1`` is 127.0.0.1), and what may not stand in a request line
is percent-encoded.  The sentences are the peer's; callers put their own in front.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from urllib.parse import quote_from_bytes, unquote_to_bytes

from handrail.errors import HandrailError

_PORTS = {"http": 80, "https": 443}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):", re.ASCII)
_AROUND = "".join(map(chr, range(0x21)))
_DROPPED = {9: None, 10: None, 13: None}
_DOT = {".", "%2e"}
_DOT_DOT = {"..", ".%2e", "%2e.", "%2e%2e"}
#: What no decoded host name may hold (forbidden domain code points of the standard).
_NOT_IN_HOST = re.compile(r"[\x00-\x20#/:<>?@\[\\\]^|%\x7f]")
#: Characters that stay as they are; letters, digits and ``-._~`` always do.
_IN_PATH = "%!$&'()*+,:;=@[]^|"
_IN_QUERY = "%!$&()*+,/:;=?@[]^|\\`{}"
_IN_FRAGMENT = "%!$&'()*+,/:;=?@[]^|\\{}#"


class BadUrl(HandrailError):
    """Not a URL."""


class OtherScheme(HandrailError):
    """A URL of another kind."""

    def __init__(self, scheme: str) -> None:
        super().__init__(f"{scheme} is not http or https")
        self.scheme = scheme


@dataclass(frozen=True, slots=True)
class HttpUrl:
    """Everything in the form it is sent in; ``host`` of an IPv6 address is in brackets."""

    scheme: str
    host: str
    #: None if it is the scheme's default.
    port: int | None
    path: str
    query: str | None = None
    fragment: str | None = None
    #: ``user:password`` as bytes, None when neither is given.
    credentials: bytes | None = None

    @property
    def authority(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def target(self) -> str:
        """The target in the request line."""
        return self.path if self.query is None else f"{self.path}?{self.query}"

    @property
    def place(self) -> tuple[str, int]:
        """Host and port: secrets for one are not sent to another."""
        return self.host, self.port or _PORTS[self.scheme]

    def __str__(self) -> str:
        """The URL without credentials, for messages."""
        text = self.origin + self.target
        return text if self.fragment is None else f"{text}#{self.fragment}"

    def join(self, reference: str) -> HttpUrl:
        """Where a ``Location`` leads to; raises as ``parse`` does."""
        text = reference.strip(_AROUND).translate(_DROPPED)
        match = _SCHEME.match(text)
        if match is not None:
            rest = text[match.end() :]
            if match[1].lower() != self.scheme or rest[:2].replace("\\", "/") == "//":
                return parse(text)
            text = rest
        bare, fragment = _split_fragment(text)
        flat, mark, query = bare.partition("?")
        flat = flat.replace("\\", "/")
        if flat.startswith("//"):
            return parse(f"{self.scheme}:{text}")
        if not flat and not mark:
            return replace(self, fragment=fragment)
        if not flat:
            path = self.path
        elif flat.startswith("/"):
            path = _path(flat)
        else:
            path = _path(self.path.rpartition("/")[0] + "/" + flat)
        return replace(self, path=path, query=_query(query) if mark else None, fragment=fragment)


def parse(text: str) -> HttpUrl:
    """Read an absolute URL; raises BadUrl or OtherScheme."""
    text = text.strip(_AROUND).translate(_DROPPED)
    match = _SCHEME.match(text)
    if match is None:
        raise BadUrl("relative URL without a base")
    scheme = match[1].lower()
    if scheme not in _PORTS:
        raise OtherScheme(scheme)
    text, fragment = _split_fragment(text[match.end() :])
    text, mark, query = text.partition("?")
    text = text.replace("\\", "/").lstrip("/")
    authority, slash, path = text.partition("/")
    userinfo, _, place = authority.rpartition("@")
    host, port = _place(place, scheme)
    return HttpUrl(
        scheme=scheme,
        host=host,
        port=port,
        path=_path(slash + path),
        query=_query(query) if mark else None,
        fragment=fragment,
        credentials=_credentials(userinfo),
    )


def _split_fragment(text: str) -> tuple[str, str | None]:
    text, mark, fragment = text.partition("#")
    return text, quote_from_bytes(fragment.encode(), safe=_IN_FRAGMENT) if mark else None


def _query(text: str) -> str:
    return quote_from_bytes(text.encode(), safe=_IN_QUERY)


def _credentials(userinfo: str) -> bytes | None:
    user, _, password = userinfo.partition(":")
    if not user and not password:
        return None
    return unquote_to_bytes(user) + b":" + unquote_to_bytes(password)


def _path(text: str) -> str:
    out: list[str] = []
    segments = text.removeprefix("/").split("/")
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        folded = segment.lower()
        if folded in _DOT_DOT or folded in _DOT:
            if folded in _DOT_DOT and out:
                out.pop()
            if last:
                out.append("")
        else:
            out.append(quote_from_bytes(segment.encode(), safe=_IN_PATH))
    return "/" + "/".join(out)


# --- hosts ------------------------------------------------------------------------------------


def _place(text: str, scheme: str) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port or (text.startswith("[") and not host.endswith("]")):
        host, port = text, ""
    host = _host(host)
    if not port:
        return host, None
    if not (port.isascii() and port.isdigit()) or int(port[:16]) > 65_535:
        raise BadUrl("invalid port number")
    number = int(port)
    return host, None if number == _PORTS[scheme] else number


def _host(text: str) -> str:
    if text.startswith("["):
        return _ipv6(text)
    name = unquote_to_bytes(text).decode("utf-8", "replace")
    name = name.lower() if name.isascii() and "xn--" not in name.lower() else _to_ascii(name)
    if not name:
        raise BadUrl("empty host")
    if _NOT_IN_HOST.search(name):
        raise BadUrl("invalid international domain name")
    last = name.removesuffix(".").rpartition(".")[2]
    if last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last):
        return _ipv4(name)
    return name


def _ipv6(text: str) -> str:
    try:
        if not text.endswith("]") or "%" in text:
            raise ValueError
        return f"[{ipaddress.IPv6Address(text[1:-1])}]"
    except ValueError:
        raise BadUrl("invalid IPv6 address") from None


def _ipv4(name: str) -> str:
    """Up to four numbers, decimal, octal or hexadecimal; the last fills what is left."""
    parts = name.removesuffix(".").split(".")
    try:
        if len(parts) > 4:
            raise ValueError
        *most, last = [_number(part) for part in parts]
        if any(number > 255 for number in most) or last >= 256 ** (4 - len(most)):
            raise ValueError
    except ValueError:
        raise BadUrl("invalid IPv4 address") from None
    value = last + sum(number << 8 * (3 - place) for place, number in enumerate(most))
    return str(ipaddress.IPv4Address(value))


def _number(text: str) -> int:
    if not re.fullmatch(r"0x[0-9a-f]*|[0-9]+", text):
        raise ValueError
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8) if len(text) > 1 and text.startswith("0") else int(text)


def _to_ascii(name: str) -> str:
    # Comes with the HTTP client, and only such names need it.
    import idna

    try:
        labels = idna.uts46_remap(name, std3_rules=False, transitional=False).split(".")
        return ".".join(_label(label) for label in labels)
    except (idna.IDNAError, UnicodeError):
        raise BadUrl("invalid international domain name") from None


def _label(label: str) -> str:
    if label.startswith("xn--"):
        if not label[4:].encode("ascii").decode("punycode"):
            raise UnicodeError
        return label
    return label if label.isascii() else "xn--" + label.encode("punycode").decode()
