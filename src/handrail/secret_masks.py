"""Secrets of a workspace: values that commands get and that no text and no record shows.  Pure.

``Masker`` replaces every value in a stream of bytes by ``[secret NAME]``, also one that is split
between two pieces: the end of a piece that a value may begin with is kept for the next piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from handrail.errors import UsageError
from handrail.process.env_policy import bad_name

#: A shorter value is found in ordinary text by chance.
LEAST_BYTES = 4
#: What a masker keeps of a stream is shorter than this.
MOST_BYTES = 64 * 1024
#: So much of a value is looked for before the rest is compared.
_FIRST = 8


class Secrets:
    """Values by the name of their variable; neither ``repr`` nor an error shows one.

    Raises UsageError for a value that is no text, too short to be masked or too long.
    """

    __slots__ = ("_forms", "_pattern", "missing", "values")

    def __init__(self, given: Mapping[str, str | bytes], known: Iterable[str] = ()) -> None:
        """``known``: names of secrets that commands of this workspace were given before."""
        wrong = bad_name(given)
        if wrong is not None:
            raise UsageError(f"a secret cannot be named {wrong!r}; its name is that of a variable")
        #: Names of secrets whose values are not masked, for they were not given again.
        self.missing = tuple(name for name in known if name not in given)
        self.values: dict[str, str | bytes | None] = {}
        #: The name for each form in which a value may be printed.
        self._forms: dict[bytes, str] = {}
        for name, value in given.items():
            data = _checked(name, value)
            self.values[name] = data.decode()
            stripped = data.strip()
            for form in (data, stripped, stripped.replace(b"\n", b"\r\n")):
                if len(form) >= LEAST_BYTES:
                    self._forms.setdefault(form, name)
        longest_first = sorted(self._forms, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))

    def __repr__(self) -> str:
        return f"<Secrets {', '.join(self.values) or 'none'}>"

    def __bool__(self) -> bool:
        return bool(self.values)

    def masked(self, data: bytes) -> bytes:
        """The whole text with every value replaced by its name; never raises."""
        return self._pattern.sub(self._mark, data) if self._forms else data

    def masked_part(self, data: bytes, start: int, end: int) -> bytes:
        """A part of a text, where every value that is at least partly in it is replaced."""
        out: list[bytes] = []
        last = start
        for found in self._pattern.finditer(data) if self._forms else ():
            if found.end() <= start:
                continue
            if found.start() >= end:
                break
            out += data[last : max(last, found.start())], self._mark(found)
            last = found.end()
        out.append(data[last : max(last, end)])
        return b"".join(out)

    @property
    def longest(self) -> int:
        """The length of the longest form of a value, in bytes."""
        return max(map(len, self._forms), default=0)

    def masked_text(self, text: str) -> str:
        """The text with every secret masked; never raises."""
        if not self._forms:
            return text
        return self.masked(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def masked_value(self, value: Any) -> Any:
        """A JSON value with the secrets in all its texts masked, names included; not in bytes.

        Raises RecursionError for a value that is nested too deeply.
        """
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.masked_text(value)
        if isinstance(value, Mapping):
            return {self.masked_text(name): self.masked_value(v) for name, v in value.items()}
        return [self.masked_value(v) for v in value] if isinstance(value, list) else value

    def masked_words(self, argv: tuple[str | bytes, ...]) -> tuple[str | bytes, ...]:
        """The words of a command as they may be shown; never raises."""
        if not self._forms:
            return argv
        return tuple(
            self.masked(word) if isinstance(word, bytes) else self.masked_text(word)
            for word in argv
        )

    def _mark(self, found: re.Match[bytes]) -> bytes:
        return b"[secret %s]" % self._forms[found[0]].encode()

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        """What can be shown now, masked, and the end that more data may make a value of."""
        keep = len(data) - max(_begun(data, form) for form in self._forms)
        out: list[bytes] = []
        last = 0
        for found in self._pattern.finditer(data):
            if found.start() >= keep:
                break
            out += data[last : found.start()], self._mark(found)
            last = found.end()
        keep = max(keep, last)
        return b"".join((*out, data[last:keep])), data[keep:]


NO_SECRETS = Secrets({})


class Masker:
    """Masks one stream."""

    __slots__ = ("_kept", "_secrets")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        """What of the stream can be shown now; never raises."""
        if not self._secrets:
            return data
        shown, self._kept = self._secrets._split(self._kept + data)  # noqa: SLF001 (of this module)
        return shown

    @property
    def holds(self) -> bool:
        """Whether the end of the stream so far may be the beginning of a value."""
        return bool(self._kept)

    def finish(self) -> bytes:
        """The rest, at the end of the stream; never raises."""
        kept, self._kept = self._kept, b""
        return self._secrets.masked(kept)


def _checked(name: str, value: object) -> bytes:
    """The bytes of a value; raises UsageError, which does not show it."""
    problem = ""
    data = b""
    if isinstance(value, str | bytes):
        try:
            data = value.encode() if isinstance(value, str) else value
            data.decode()
        except UnicodeError:
            problem = "is no UTF-8 text"
        if b"\0" in data:
            problem = "holds NUL, which no variable can"
        elif len(data.strip()) < LEAST_BYTES:
            problem = (
                f"is shorter than {LEAST_BYTES} bytes, so that masking it would mask ordinary text;"
                " give it by env, which masks nothing"
            )
        elif len(data) > MOST_BYTES:
            problem = f"is longer than {MOST_BYTES} bytes; put it into a file"
    else:
        problem = f"is str or bytes, not {type(value).__name__}"
    if problem:
        raise UsageError(f"the secret {name} {problem}")
    return data


def _begun(data: bytes, form: bytes) -> int:
    """How many bytes at the end of ``data`` are the beginning of ``form``, and not all of it."""
    first = form[:_FIRST]
    at = max(0, len(data) - len(form) + 1)
    while (at := data.find(first, at)) >= 0:
        if form.startswith(data[at:]):
            return len(data) - at
        at += 1
    most = min(len(first) - 1, len(form) - 1, len(data))
    return next((n for n in range(most, 0, -1) if data.endswith(form[:n])), 0)
