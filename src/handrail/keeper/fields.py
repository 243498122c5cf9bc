"""How the fields of a message between the keeper and its server are written and read.  Pure.

Nothing a child can be given contains a NUL, so fields are joined by one and nothing needs escaping.
"""

from __future__ import annotations

from _operator import call, itemgetter
from collections.abc import Callable, Iterator
from itertools import chain, islice, takewhile

# Not imported: ``typing`` takes longer than the whole rest of this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(*, frozen_default: bool) -> Callable[[type], type]:
        """Known to type checkers; changes nothing here."""
        return lambda cls: cls


def _read_words(left: Iterator[bytes], word: bytes | None = None) -> list[bytes]:
    """A list; ``word``: how many there are, if that is read already."""
    if word is None:
        word = next(left)
    if word == b"0":
        return []
    count = int(word)
    found = list(islice(left, count))
    if len(found) != count:
        raise StopIteration
    return found


def _read_pairs(left: Iterator[bytes], word: bytes | None = None) -> dict[bytes, bytes]:
    if word is None:
        word = next(left)
    if word == b"0":
        return {}
    count = int(word)
    words = islice(left, 2 * count)
    found = dict(zip(words, words, strict=False))
    if len(found) != count:
        raise StopIteration
    return found


def _read_number(left: Iterator[bytes]) -> int | None:
    word = next(left)
    return None if word == b"-" else int(word)


def _read_seconds(left: Iterator[bytes]) -> float | None:
    word = next(left)
    return None if word == b"-" else float(word)


def _write_words(to: list[bytes], words: list[bytes]) -> None:
    to.append(b"%d" % len(words))
    to += words


def _write_pairs(to: list[bytes], pairs: dict[bytes, bytes]) -> None:
    to.append(b"%d" % len(pairs))
    to += chain.from_iterable(pairs.items())


def _write_number(to: list[bytes], number: int | None) -> None:
    to.append(b"-" if number is None else b"%d" % number)


def _write_seconds(to: list[bytes], seconds: float | None) -> None:
    to.append(b"-" if seconds is None else repr(seconds).encode())


def _write_numbers(to: list[bytes], numbers: list[int]) -> None:
    if numbers:
        _write_words(to, [b"%d" % number for number in numbers])
    else:
        to.append(b"0")


def _read_numbers(left: Iterator[bytes]) -> list[int]:
    word = next(left)
    return [] if word == b"0" else list(map(int, _read_words(left, word)))


def _write_limits(to: list[bytes], limits: dict[bytes, int]) -> None:
    if limits:
        _write_pairs(to, {name: b"%d" % limits[name] for name in limits})
    else:
        to.append(b"0")


def _read_limits(left: Iterator[bytes]) -> dict[bytes, int]:
    word = next(left)
    if word == b"0":
        return {}
    pairs = _read_pairs(left, word)
    return dict(zip(pairs, map(int, pairs.values()), strict=True))


#: How words and numbers in front of all others are written and read: many at once, and quickly,
#: for most messages consist of them.
_PLAIN: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "bytes": (b"%b", bytes),
    "int": (b"%d", int),
    "bool": (b"%d", b"1".__eq__),
}
#: How other fields, and those behind them, are written and read, by their annotation.
_KINDS: dict[str, tuple[Callable[[list[bytes], Any], None], Callable[[Iterator[bytes]], Any]]] = {
    "bytes": (list.append, next),
    "int": (_write_number, lambda left: int(next(left))),
    "bool": (_write_number, lambda left: next(left) == b"1"),
    "int | None": (_write_number, _read_number),
    "float": (_write_seconds, lambda left: float(next(left))),
    "float | None": (_write_seconds, _read_seconds),
    "list[bytes]": (_write_words, _read_words),
    "list[int]": (_write_numbers, _read_numbers),
    "dict[bytes, bytes]": (_write_pairs, _read_pairs),
    "dict[bytes, int]": (_write_limits, _read_limits),
    "tuple[bytes, ...]": (list.extend, tuple),  # all that are left
}


@dataclass_transform(frozen_default=True)
class Fields(tuple):  # type: ignore[type-arg]  # noqa: SLOT001 (they have no other attributes)
    """The fields of one operation, in the order in which they travel."""

    if TYPE_CHECKING:
        _defaults: ClassVar[dict[str, Any]]
        #: Of the words and numbers in front: how many, and how they are written and read.
        _count: ClassVar[int]
        _form: ClassVar[bytes]
        _read: ClassVar[list[Callable[..., Any]]]
        #: Of the others.
        _rest: ClassVar[list[tuple[Callable[..., None], Callable[..., Any]]]]
    else:
        __slots__ = ()

        def __new__(cls, *values: object, **named: object) -> Self:
            if len(values) < len(cls._defaults):
                missing = list(cls._defaults.items())[len(values) :]
                values += tuple(named.get(name, default) for name, default in missing)
            return tuple.__new__(cls, values)

    def __init_subclass__(cls) -> None:
        own = cls.__annotations__
        cls._defaults = {name: cls.__dict__.get(name) for name in own}
        for at, name in enumerate(own):
            setattr(cls, name, property(itemgetter(at)))
        kinds = list(own.values())
        front = list(takewhile(_PLAIN.__contains__, kinds))
        cls._count = len(front)
        cls._form = b"\0".join(_PLAIN[kind][0] for kind in front)
        cls._read = [_PLAIN[kind][1] for kind in front]
        cls._rest = [_KINDS[kind] for kind in kinds[cls._count :]]

    def pack(self) -> list[bytes]:
        """Encode the fields for the link; raises ValueError when one holds a NUL."""
        count = self._count
        front = self[:count] if self._rest else self
        fields = (self._form % front).split(b"\0") if count else []
        if len(fields) != count:
            raise ValueError("a field of the keeper link holds a NUL")
        if self._rest:
            for (write, _), value in zip(self._rest, self[count:], strict=True):
                write(fields, value)
        return fields

    @classmethod
    def packed(cls, *values: object) -> list[bytes]:
        """Version of `pack` for words and numbers alone, of which none is left out."""
        fields = (cls._form % values).split(b"\0")
        if len(fields) != cls._count:
            raise ValueError("a field of the keeper link holds a NUL")
        return fields

    @classmethod
    def unpack(cls, fields: list[bytes]) -> Self:
        """Decode the fields from the link; raises ValueError when there are too few or too many."""
        if not cls._rest:
            if len(fields) == cls._count:
                return tuple.__new__(cls, map(call, cls._read, fields))
        elif len(fields) >= cls._count:
            left = iter(fields)
            found = list(map(call, cls._read, left))
            try:
                found += [read(left) for _, read in cls._rest]
                if next(left, None) is None:
                    return tuple.__new__(cls, found)
            except StopIteration:
                pass
        raise ValueError(f"{len(fields)} fields are not those of {cls.__name__}")
