"""Executables of some hundred bytes for x86_64, put together by hand.  Pure.

There need be no compiler where this runs, and a binary in a repository cannot be read.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_TEXT_AT, _DATA_AT = 0x400000, 0x600000
_HEADERS = 64 + 2 * 56
EAX, EDX, ESI, EDI = 0, 2, 6, 7
_EXIT = 60


def number(value: int, size: int) -> bytes:
    """A number in the byte order of the machine."""
    return value.to_bytes(size, "little")


def put(register: int, value: int) -> bytes:
    """mov register, value"""
    return bytes((0xB8 + register,)) + number(value, 4)


def call(which: int) -> bytes:
    """The system call, and a test whether it returned a negative number."""
    return put(EAX, which) + b"\x0f\x05" + b"\x85\xc0"  # syscall; test eax, eax


#: Exit with the error of the last call: neg eax; mov edi, eax.
LEAVE = b"\xf7\xd8" + b"\x89\xc7" + put(EAX, _EXIT) + b"\x0f\x05"
#: The same if there was one: jns over it.
OR_LEAVE = b"\x79" + number(len(LEAVE), 1) + LEAVE


def data_at(text: bytes) -> int:
    """The address of data behind a text of this length."""
    return _DATA_AT + _HEADERS + len(text)


def executable(text: bytes, data: bytes, more: int = 0) -> bytes:
    """The file with its code, and its data, which is readable and writable.

    ``more``: bytes of memory behind the data, which are not in the file.
    """
    end = _HEADERS + len(text)
    return _head(end, end + len(data), more) + text + data


class Code:
    """Code in which places have names, to jump to from before and behind them."""

    ALWAYS, BELOW, EQUAL, NOT_EQUAL = b"\xe9", b"\x0f\x82", b"\x0f\x84", b"\x0f\x85"
    NEGATIVE, NOT_POSITIVE = b"\x0f\x88", b"\x0f\x8e"

    __slots__ = ("_labels", "_text", "_to")

    def __init__(self) -> None:
        self._text = bytearray()
        self._labels: dict[str, int] = {}
        #: Where a distance has to be filled in, and to what.
        self._to: list[tuple[int, str]] = []

    def __iadd__(self, more: bytes) -> Self:
        self._text += more
        return self

    def label(self, name: str) -> None:
        """The next instruction has this name."""
        self._labels[name] = len(self._text)

    def jump(self, kind: bytes, name: str) -> None:
        """Jump there, if the last test says so."""
        self._text += kind + bytes(4)
        self._to.append((len(self._text), name))

    def bytes(self) -> bytes:
        """The code with all distances."""
        for behind, name in self._to:
            distance = self._labels[name] - behind
            self._text[behind - 4 : behind] = distance.to_bytes(4, "little", signed=True)
        return bytes(self._text)


def _head(text_end: int, data_end: int, more: int) -> bytes:
    """An executable of two parts: what is run, and what is read and written."""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    kind = number(2, 2) + number(62, 2) + number(1, 4)  # EXEC, x86_64
    sizes = number(0, 4) + b"".join(number(n, 2) for n in (64, 56, 2, 0, 0, 0))
    entry = number(_TEXT_AT + _HEADERS, 8) + number(64, 8) + number(0, 8)
    parts = b""
    for flags, start, end, at, behind in (
        (5, 0, text_end, _TEXT_AT, 0),
        (6, text_end, data_end, _DATA_AT + text_end, more),
    ):
        parts += number(1, 4) + number(flags, 4) + number(start, 8) + number(at, 8) * 2
        parts += number(end - start, 8) + number(end - start + behind, 8) + number(0x1000, 8)
    return ident + kind + entry + sizes + parts
