"""``file:`` URIs and native paths.  Pure.

The peer reads these URIs as a browser would: the scheme without regard to case, back slashes
as slashes, tabs and line ends dropped, dot segments resolved before anything touches the disk.
Bytes that are not UTF-8 travel percent-encoded.
"""

from __future__ import annotations

import re
from urllib.parse import quote_from_bytes, unquote, unquote_to_bytes

from handrail.errors import HandrailError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):", re.ASCII)
_DRIVE = re.compile(r"/?[A-Za-z]:(?:/|$)", re.ASCII)
#: Nothing in it to decode or resolve: most paths, and seven times faster.
_ORDINARY = re.compile(r"file://((?:/[A-Za-z0-9._~\-]+)+)", re.ASCII)
#: Of a path that has no URI form (exec-server 0.169.0): its bytes in base64.
_NO_URI = re.compile(r"/%00/bad/path/[A-Za-z0-9_-]+", re.ASCII)
_NOT_IN_HOST = re.compile(r"[\x00-\x20#%/:<>?@\[\\\]^|\x7f]")
#: Of IP version 6.
_ADDRESS = re.compile(r"\[[0-9a-f:.]+\]", re.ASCII)
_DOTS = re.compile(r"/\.\.?(?:/|$)")
_SAFE = "/!$&'()*+,-.:;=@_~[]|^"
_PLAIN = re.compile(rb"[A-Za-z0-9._~-]+")
_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9._~/-]*")
_DOT = {".", "%2e"}
_DOT_DOT = {"..", ".%2e", "%2e.", "%2e%2e"}


class BadUri(HandrailError):
    """Not a path URI at all."""


class NotNative(HandrailError):
    """A good path URI, but of another operating system."""

    def __init__(self, uri: str) -> None:
        super().__init__(f"'{uri}' is invalid on 'linux'")
        self.uri = uri


def to_path(uri: str) -> bytes:
    """The native path of a URI; raises BadUri or NotNative."""
    match = _ORDINARY.fullmatch(uri)
    if match is not None and ("/." not in uri or _DOTS.search(uri) is None):
        return match[1].encode()
    text = uri.strip("".join(map(chr, range(0x21))))
    text = text.translate({9: None, 10: None, 13: None})
    match = _SCHEME.match(text)
    if match is None:
        raise BadUri("invalid URI: relative URL without a base")
    scheme = match[1].lower()
    if scheme != "file":
        raise BadUri(f"unsupported path URI scheme `{scheme}`")
    rest = text[match.end() :]
    rest, mark, _ = rest.partition("#")
    if mark:
        raise BadUri("fragments are not allowed in path URIs")
    rest, mark, _ = rest.partition("?")
    if mark:
        raise BadUri("query parameters are not allowed in path URIs")
    rest = rest.replace("\\", "/")
    host = ""
    if rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        rest = slash + rest
        if _DRIVE.match(host):
            host, rest = "", "/" + host + rest
    host = _host(host)
    if host not in ("", "localhost"):
        raise NotNative(f"file://{host}{rest}")
    if _DRIVE.match(rest):
        raise NotNative("file:///" + rest.lstrip("/")[:1].upper() + rest.lstrip("/")[1:])
    if _NO_URI.fullmatch(rest):
        raise NotNative(f"file://{rest}")
    path = unquote_to_bytes(_resolve(rest))
    if b"\0" in path:
        raise BadUri(f"'{uri}' is invalid on 'linux'")
    return path


def to_uri(path: bytes) -> str:
    """The URI of an absolute native path."""
    if _PLAIN_PATH.fullmatch(path):
        return f"file://{path.decode('ascii')}"
    uri = quote_from_bytes(path, safe=_SAFE)
    # A directory of the root may look like a drive; encoded, its colon is not taken for one.
    return "file://" + (uri.replace(":", "%3A", 1) if _DRIVE.match(uri) else uri)


def quote(name: bytes) -> bytes:
    """One name as it stands in a URI."""
    if _PLAIN.fullmatch(name):
        return name
    return quote_from_bytes(name, safe=_SAFE).encode()


def _host(text: str) -> str:
    """The host of a URI in lower case; raises BadUri."""
    host = unquote(text).lower()
    if _ADDRESS.fullmatch(host) is None and _NOT_IN_HOST.search(host) is not None:
        raise BadUri("invalid URI: invalid international domain name")
    return host


def _resolve(path: str) -> str:
    out: list[str] = []
    segments = path.lstrip("/").split("/") if path.startswith("/") else path.split("/")
    for index, segment in enumerate(segments):
        folded = segment.lower()
        last = index == len(segments) - 1
        if folded in _DOT_DOT:
            if out:
                out.pop()
            if last:
                out.append("")
        elif folded in _DOT:
            if last:
                out.append("")
        else:
            out.append(segment)
    return "/" + "/".join(out)
