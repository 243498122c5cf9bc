"""Patterns of hosts: what may be reached is read narrowly, what is denied widely.

====================  ======================================================================
``ok.example``        that name; an address in any of its spellings
``*.ok.example``      one or more labels below it, not itself
``**.ok.example``     itself and all below
``*``                 every host; only to allow
``...:8080``          the same, on that port alone
``*`` and ``?``       elsewhere: within a label where they allow, across dots where they deny
====================  ======================================================================

No wildcard but ``*`` itself allows an address.  A pattern of allowed characters that no host can
have (``.ok.example``, ``*.1.2.3.4``) is accepted, as the peer does, and matches nothing;
`PatternSet.warnings` names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from handrail.network import hosts
from handrail.network.hosts import BadHost, Host

LONGEST = 260
MOST = 4096

_CHARACTERS = re.compile(r"[a-z0-9._*?-]+")
_PREFIXES = {"**.": "tree", "*.": "below"}
_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")


class BadPattern(ValueError):
    """The text is no pattern; the sentence has it and says why."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"invalid domain pattern {text!r}: {why}")
        self.text = text


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern, read.  ``host`` has its canonical text without the port."""

    text: str
    host: str
    port: int | None
    #: ``exact``, ``below`` (``*.x``), ``tree`` (``**.x``), ``any`` (``*``), ``glob``, ``nothing``
    kind: str
    #: What is behind ``*.`` or ``**.``; else empty.
    base: str = ""


@lru_cache(4096)  # the same lists come with every start
def parse(text: str) -> Pattern:
    """Read one pattern; raises BadPattern."""
    if len(text) > LONGEST:
        raise BadPattern(text[:40] + "...", f"it is longer than {LONGEST} characters")
    plain = text.strip()
    if not plain:
        raise BadPattern(text, "it is empty")
    host, port = _split_port(text, plain)
    if ":" in host:
        return _exact(text, host, port)
    host = _ascii(text, host).lower()
    if not _CHARACTERS.fullmatch(host):
        raise BadPattern(text, "give a host name without scheme, path, network or spaces")
    if host == "*":
        return Pattern(text, host, port, "any")
    return _name(text, host.removesuffix("."), port)


def _name(text: str, host: str, port: int | None) -> Pattern:
    prefix = next((one for one in _PREFIXES if host.startswith(one)), "")
    base = host.removeprefix(prefix)
    if base in ("", "*") or "**" in base:
        raise BadPattern(text, "`**` is written `**.name`, and every host is `*`")
    if "*" in base or "?" in base:
        return Pattern(text, host, port, "glob")
    try:
        found = hosts.canonical(base)
    except BadHost:
        return Pattern(text, host, port, "nothing")
    if not prefix:
        return Pattern(text, found.text, port, "exact")
    if found.address is not None:
        return Pattern(text, host, port, "nothing")
    return Pattern(text, prefix + found.text, port, _PREFIXES[prefix], found.text)


def _exact(text: str, host: str, port: int | None) -> Pattern:
    try:
        return Pattern(text, hosts.canonical(host).text, port, "exact")
    except BadHost as error:
        raise BadPattern(text, str(error)) from None


def _split_port(text: str, plain: str) -> tuple[str, int | None]:
    if not plain.startswith("[") and plain.count(":") > 1:
        return plain, None  # an IPv6 address without a port
    try:
        host, port = hosts.split_authority(plain)
    except BadHost as error:
        raise BadPattern(text, str(error)) from None
    if host.startswith("[") and ":" not in host:
        raise BadPattern(text, "brackets are for IPv6 addresses only")
    return host, port


def _ascii(text: str, host: str) -> str:
    """The same with other letters as ``xn--`` labels."""
    if host.isascii():
        return host
    return ".".join(_ascii_label(text, label) for label in host.translate(_DOTS).split("."))


def _ascii_label(text: str, label: str) -> str:
    if label.isascii():
        return label
    from unicodedata import category, normalize  # large, and seldom needed

    others = (category(char) for char in label if not char.isascii())
    if any(kind[0] not in "LMN" and kind != "So" for kind in others):
        raise BadPattern(text, "it has characters that no host name has")
    plain = normalize("NFKC", normalize("NFKC", label.lower()).lower())
    if "*" in plain or "?" in plain:
        raise BadPattern(text, "a label has either wildcards or letters beyond ASCII")
    encoded = plain if plain.isascii() else "xn--" + plain.encode("punycode").decode("ascii")
    if len(encoded) > 63:
        raise BadPattern(text, "a label is longer than 63 bytes in its xn-- form")
    return encoded


class PatternSet:
    """Many patterns of one meaning, found by the host's labels instead of one by one."""

    def __init__(self, patterns: Iterable[Pattern], *, wide: bool) -> None:
        self._wide = wide
        self._exact: dict[str, list[Pattern]] = {}
        self._below: dict[str, list[Pattern]] = {}
        self._any: list[Pattern] = []
        self._globs: list[Pattern] = []
        #: Patterns that match nothing.
        self.warnings: list[str] = []
        for pattern in patterns:
            self._add(pattern)

    def _add(self, pattern: Pattern) -> None:
        if pattern.kind == "exact":
            self._exact.setdefault(pattern.host, []).append(pattern)
        elif pattern.kind in ("below", "tree"):
            self._below.setdefault(pattern.base, []).append(pattern)
        elif pattern.kind == "any":
            self._any.append(pattern)
        elif pattern.kind == "glob":
            self._globs.append(pattern)
        else:
            self.warnings.append(pattern.text)

    def find(self, host: Host, port: int) -> Pattern | None:
        """The pattern that matches, the most exact one first; None without any."""
        return (
            self.find_exact(host, port)
            or self._find_below(host, port)
            or self._find_glob(host, port)
            or _on_port(self._any, port)
        )

    def find_exact(self, host: Host, port: int) -> Pattern | None:
        """The pattern that names this very host, without wildcards."""
        return _on_port(self._exact.get(host.text, ()), port)

    def _find_below(self, host: Host, port: int) -> Pattern | None:
        if host.address is not None or not self._below:
            return None
        base = host.text
        found = _on_port((one for one in self._below.get(base, ()) if one.kind == "tree"), port)
        while found is None and "." in base:
            base = base.partition(".")[2]
            found = _on_port(self._below.get(base, ()), port)
        return found

    def _find_glob(self, host: Host, port: int) -> Pattern | None:
        if host.address is not None and not self._wide:
            return None
        for pattern in self._globs:
            if pattern.port in (None, port) and _matches_glob(pattern, host.text, self._wide):
                return pattern
        return None


def _on_port(patterns: Iterable[Pattern], port: int) -> Pattern | None:
    return next((one for one in patterns if one.port in (None, port)), None)


def _matches_glob(pattern: Pattern, text: str, wide: bool) -> bool:
    glob = pattern.host
    prefix = next((one for one in _PREFIXES if glob.startswith(one)), "")
    base = glob.removeprefix(prefix)
    if wide:
        # ``*`` crosses dots here, and no host begins with one: the prefix needs no rule of its own.
        return _fits(text, f"*.{base}" if prefix else base) or (
            prefix == "**." and _fits(text, base)
        )
    parts, wanted = text.split("."), base.split(".")
    more = len(parts) - len(wanted)
    if more < (prefix == "*.") or (more and not prefix):
        return False
    return all(map(_fits, parts[more:], wanted))


def _fits(text: str, glob: str) -> bool:
    """Whether the glob matches the whole text, in time proportional to both lengths at most.

    Only the last star is ever tried again: a regular expression would try them all, and the text
    is the command's.
    """
    at = place = 0
    star = mark = -1
    while at < len(text):
        if place < len(glob) and glob[place] == "*":
            star, mark = place, at
            place += 1
        elif place < len(glob) and glob[place] in ("?", text[at]):
            place += 1
            at += 1
        elif star >= 0:
            mark += 1
            place, at = star + 1, mark
        else:
            return False
    return not glob[place:].strip("*")
