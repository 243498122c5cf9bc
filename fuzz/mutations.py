"""Making new inputs out of old ones.  Pure: all chance comes from the generator given."""

from __future__ import annotations

import random
from collections.abc import Sequence

LARGEST = 64 * 1024
#: Bytes that tend to stand at an edge of something.
EDGES = b"\x00\x01\x09\x0a\x0d\x20\x22\x25\x2f\x3a\x5c\x7e\x7f\x80\xc0\xfe\xff"


class Mutator:
    """Gives inputs near those of a corpus."""

    def __init__(
        self, corpus: Sequence[bytes], tokens: Sequence[bytes], chance: random.Random
    ) -> None:
        self.corpus = list(corpus) or [b""]
        self.tokens = list(tokens) or [b"\0"]
        self.chance = chance
        self.changes = (
            self.flip_bit,
            self.flip_bit,
            self.set_byte,
            self.insert_noise,
            self.remove,
            self.repeat,
            self.splice,
            self.insert_token,
            self.insert_token,
            self.overwrite_with_token,
        )

    def next(self) -> bytes:
        """One more input: a seed with a few changes."""
        data = bytearray(self.chance.choice(self.corpus))
        for _ in range(self.chance.choice((1, 1, 2, 3, 5, 8))):
            data = self.chance.choice(self.changes)(data)
        return bytes(data[:LARGEST])

    def place(self, data: bytearray) -> int:
        """Somewhere in it, or at its end."""
        return self.chance.randint(0, len(data))

    def span(self, data: bytearray) -> slice:
        """A stretch of it; short ones are likelier."""
        start = self.place(data)
        longest = self.chance.choice((1, 2, 4, 16, 64, 1024))
        return slice(start, start + self.chance.randint(1, longest))

    def flip_bit(self, data: bytearray) -> bytearray:
        if data:
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        return data

    def set_byte(self, data: bytearray) -> bytearray:
        if data:
            data[self.chance.randrange(len(data))] = self.chance.choice(EDGES)
        return data

    def insert_noise(self, data: bytearray) -> bytearray:
        at = self.place(data)
        data[at:at] = self.chance.randbytes(self.chance.randint(1, 8))
        return data

    def remove(self, data: bytearray) -> bytearray:
        del data[self.span(data)]
        return data

    def repeat(self, data: bytearray) -> bytearray:
        """Write a stretch several times over."""
        span = self.span(data)
        data[span.start : span.start] = data[span] * self.chance.choice((1, 1, 2, 8, 64))
        return data

    def splice(self, data: bytearray) -> bytearray:
        """The beginning of this one and the end of another."""
        other = self.chance.choice(self.corpus)
        return data[: self.place(data)] + other[self.chance.randint(0, len(other)) :]

    def insert_token(self, data: bytearray) -> bytearray:
        at = self.place(data)
        data[at:at] = self.chance.choice(self.tokens)
        return data

    def overwrite_with_token(self, data: bytearray) -> bytearray:
        token = self.chance.choice(self.tokens)
        at = self.place(data)
        data[at : at + len(token)] = token
        return data
