"""Secrets of a workspace: values that commands get and that no text and no record shows.  Pure.

``Masker`` replaces every value in a stream of bytes by ``[secret NAME]``, also one that is split
between two pieces: the end of a piece that a value may begin with is kept for the next piece.
Where bytes of the stream are missing (``cut``), what may be the rest of a value on either side is
replaced too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from handrail.errors import UsageError
from handrail.process.env_policy import bad_name

#: The name of a stream.
Stream = TypeVar("Stream")

#: A shorter value is found in ordinary text by chance.
LEAST_BYTES = 4
#: What a masker keeps of a stream is shorter than this.
MOST_BYTES = 64 * 1024
#: So much of a value is looked for before the rest is compared.
_FIRST = 8
_NOTHING = re.compile(b"")


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
        self._pattern = _NOTHING
        if self._forms:
            longest_first = sorted(self._forms, key=len, reverse=True)
            self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))

    def __repr__(self) -> str:
        return f"<Secrets {', '.join(self.values) or 'none'}>"

    def __bool__(self) -> bool:
        return bool(self.values)

    def masked(self, data: bytes) -> bytes:
        """The whole text with every value replaced by its name; never raises."""
        return self._pattern.sub(self._mark, data) if self._forms else data

    def masked_part(self, data: bytes, start: int, end: int, *, cut: bool = False) -> bytes:
        """A part of a text, where every value that is at least partly in it is replaced.

        ``cut``: bytes are missing before the text.
        """
        out: list[bytes] = []
        last = start
        if cut and self._forms and (found := self._after_cut(data, last=True)):
            mark, rest = found
            out += [mark] if len(data) - len(rest) > start else []
            last = start = max(start, len(data) - len(rest))
        for value in self._pattern.finditer(data, start if cut else 0) if self._forms else ():
            if value.end() <= start:
                continue
            if value.start() >= end:
                break
            out += data[last : max(last, value.start())], self._mark(value)
            last = value.end()
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
        return _shown(self._forms[found[0]])

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

    def _before_cut(self, data: bytes) -> bytes:
        """A part of a value whose rest is missing, masked; a few bytes may be anything."""
        if len(data) < LEAST_BYTES:
            return data
        name = next((name for form, name in self._forms.items() if data in form), None)
        return self.masked(data) if name is None else _shown(name)

    def _after_cut(self, data: bytes, *, last: bool = False) -> tuple[bytes, bytes] | None:
        """The mark for a value whose beginning is missing before ``data``, and what follows it.

        None: more data may make it one, which does not come if this is the ``last``.
        """
        if not last and any(form.find(data, 0, len(form) - 1) >= 0 for form in self._forms):
            return None
        if self._pattern.match(data):
            return b"", data
        count, name = max(
            (_begun(data[: len(form) - 1][::-1], form[::-1]), name)
            for form, name in self._forms.items()
        )
        return (b"", data) if count < LEAST_BYTES else (_shown(name), data[count:])


NO_SECRETS = Secrets({})


class Masker:
    """Masks one stream."""

    __slots__ = ("_after_cut", "_kept", "_out", "_secrets")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._kept = b""
        self._after_cut = False
        #: What can be shown and was not asked for yet.
        self._out = b""

    def cut(self) -> None:
        """Bytes are missing behind what was fed: the next ones may be the rest of a value."""
        if self._secrets:
            self._out += self._secrets._before_cut(self._kept)  # noqa: SLF001 (of this module)
            self._kept = b""
            self._after_cut = True

    def feed(self, data: bytes) -> bytes:
        """What of the stream can be shown now; never raises."""
        if not self._secrets:
            return data
        shown, self._out = self._out, b""
        data = self._kept + data
        if self._after_cut:
            found = self._secrets._after_cut(data)  # noqa: SLF001 (of this module)
            if found is None:
                self._kept = data
                return shown
            self._after_cut = False
            mark, data = found
            shown += mark
        more, self._kept = self._secrets._split(data)  # noqa: SLF001 (of this module)
        return shown + more

    @property
    def holds(self) -> bool:
        """Whether the end of the stream so far may be the beginning of a value."""
        return bool(self._kept)

    def finish(self) -> bytes:
        """The rest, at the end of the stream; never raises."""
        shown, kept = self._out, self._kept
        self._out = self._kept = b""
        if self._after_cut:
            found = self._secrets._after_cut(kept, last=True)  # noqa: SLF001 (of this module)
            self._after_cut = False
            mark, kept = found or (b"", kept)
            shown += mark
        return shown + self._secrets.masked(kept)


class StreamMasker(Generic[Stream]):
    """Masks the streams of one process, of which bytes may be missing."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._streams: dict[Stream, Masker] = {}
        self._cut = False

    def feed(self, stream: Stream, data: bytes, omitted: int = 0) -> bytes:
        """What of a stream can be shown now; ``omitted`` bytes, of any stream, are missing before
        it."""
        if omitted:
            self.cut()
        masker = self._streams.get(stream)
        if masker is None:
            masker = self._streams[stream] = Masker(self._secrets)
            if self._cut:
                masker.cut()
        return masker.feed(data)

    def cut(self) -> None:
        """Bytes are missing behind what was fed."""
        self._cut = True
        for masker in self._streams.values():
            masker.cut()

    def part(self) -> Iterator[tuple[Stream, bytes]]:
        """What is kept of each stream, where waiting for the rest of a value takes too long."""
        self.cut()
        for stream, masker in self._streams.items():
            if rest := masker.feed(b""):
                yield stream, rest

    @property
    def holds(self) -> bool:
        """Whether the end of a stream so far may be the beginning of a value."""
        return any(masker.holds for masker in self._streams.values())

    def finish(self) -> Iterator[tuple[Stream, bytes]]:
        """The rest of each stream that has any."""
        for stream in self._streams:
            if rest := self.finish_one(stream):
                yield stream, rest

    def finish_one(self, stream: Stream) -> bytes:
        """The rest of a stream."""
        masker = self._streams.get(stream)
        return b"" if masker is None else masker.finish()


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


def _shown(name: str) -> bytes:
    return b"[secret %s]" % name.encode()


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
