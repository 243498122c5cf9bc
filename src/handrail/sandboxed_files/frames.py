"""Frames between a server and its sandboxed file helper.  Pure: bytes in, frames out.

A frame is a head (JSON) and a body (raw bytes), each with its length before it, so that content of
files is never encoded.  Paths are in heads as text with surrogate escapes.  Both ends know the
other's bounds: a frame beyond them means that the other side is broken.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any

_LENGTHS = struct.Struct(">II")
#: Made once: `dumps` with separators makes an encoder each time, and `loads` looks at the encoding.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # missing in the stubs
#: Listings of 50 000 names are the largest heads, one block of a file is the largest body.
LONGEST_HEAD = 64 * 1024 * 1024
LONGEST_BODY = 4 * 1024 * 1024
#: Copied, to be sent with its head.
_SMALL_BODY = 64 * 1024
#: What comes before all frames of a helper.
GREETING = b"\n"


class BrokenFrame(Exception):
    """The input cannot be a frame of ours."""


def encode(head: Any, body: bytes | bytearray | memoryview = b"") -> list[bytes | memoryview]:
    """One frame, in pieces to be sent one after the other."""
    text = _encode(head).encode()
    first = _LENGTHS.pack(len(text), len(body)) + text
    if len(body) <= _SMALL_BODY:
        return [first + body]  # a second piece would wake the other side a second time
    return [first, memoryview(body)]


def decode_head(head: bytes) -> Any:
    """The head as an object."""
    try:
        text = head.decode()
        value, end = _scan(text, 0)
    except (ValueError, StopIteration) as error:
        raise BrokenFrame(f"the head of a frame is not JSON: {error}") from None
    if end != len(text):
        raise BrokenFrame("the head of a frame is longer than its JSON")
    return value


def path_text(path: bytes) -> str:
    """A path for a head."""
    return os.fsdecode(path)


def path_bytes(text: str) -> bytes:
    """A path of a head."""
    return os.fsencode(text)


class FrameReader:
    """Turns bytes into complete frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[bytes, bytes]]:
        """Head and body of every frame that ``data`` completes."""
        buffer = self._buffer
        if not buffer and len(data) >= _LENGTHS.size:
            head, body = _LENGTHS.unpack_from(data)
            if _LENGTHS.size + head + body == len(data):  # as most do
                text = bytes(data[_LENGTHS.size : _LENGTHS.size + head])
                yield text, bytes(data[_LENGTHS.size + head :])
                return
        buffer += data
        while len(buffer) >= _LENGTHS.size:
            head, body = _LENGTHS.unpack_from(buffer)
            if head > LONGEST_HEAD or body > LONGEST_BODY:
                raise BrokenFrame("a frame is longer than any frame of ours")
            whole = _LENGTHS.size + head + body
            if len(buffer) < whole:
                return
            with memoryview(buffer) as view:
                text = bytes(view[_LENGTHS.size : _LENGTHS.size + head])
                content = bytes(view[_LENGTHS.size + head : whole])
            del buffer[:whole]
            yield text, content
