"""Executables of some hundred bytes for x86_64, put together by hand.  Pure.

There need be no compiler where this runs, and a binary in a repository cannot be read.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

_TEXT_AT, _DATA_AT = 0x400000, 0x600000
_HEADERS = 64 + 2 * 56
#: Below these, for a program with memory at an address that it does not choose.
_LOW_TEXT_AT, _LOW_DATA_AT, _PAGE = 0x100000, 0x300000, 0x1000
EAX, EDX, ESI, EDI = 0, 2, 6, 7
#: The arguments of a system call, in order.
_ARGUMENTS = (EDI, ESI, EDX, 10, 8, 9)
_EXIT = 60


class Held(int):
    """A register that keeps its value over system calls, as an argument of one."""


#: They are free for the program: the kernel and ``call`` change none of them.
EBX, R12D, R13D, R14D, R15D = map(Held, (3, 12, 13, 14, 15))


class At(int):
    """An address whose four bytes are an argument of a system call."""


def number(value: int, size: int) -> bytes:
    """A number in the byte order of the machine."""
    return value.to_bytes(size, "little")


def put(register: int, value: int) -> bytes:
    """mov register, value"""
    return bytes((0xB8 + register,)) + number(value, 4)


def call(which: int, *arguments: int) -> bytes:
    """The system call, and a test whether it returned a negative number."""
    code = b"".join(_pass(*one) for one in zip(_ARGUMENTS, arguments, strict=False))
    return code + put(EAX, which) + b"\x0f\x05" + b"\x85\xc0"  # syscall; test eax, eax


def _pass(register: int, value: int) -> bytes:
    """mov register, value: a number, what a register holds, or what is at an address"""
    high = register >= 8
    if isinstance(value, Held):
        return bytes((0x40 | (value >= 8) << 2 | high, 0x89, 0xC0 | value % 8 << 3 | register % 8))
    if isinstance(value, At):
        return bytes((0x40 | high << 2, 0x8B, 4 | register % 8 << 3, 0x25)) + number(value, 4)
    return (b"\x41" if high else b"") + put(register % 8, value % 2**32)


def hold(register: Held) -> bytes:
    """mov register, eax: keep what the last call returned"""
    return bytes((0x40 | (register >= 8), 0x89, 0xC0 | register % 8))


def store(address: int) -> bytes:
    """mov [address], eax: keep what the last call returned"""
    return b"\x89\x04\x25" + number(address, 4)


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
    parts = (
        (5, 0, end, _TEXT_AT, 0),
        (6, end, end + len(data), _DATA_AT + end, more),
    )
    return _head(parts) + text + data


class Data:
    """The data of a program: each text once, and ``memory``, the address of what is behind them."""

    __slots__ = ("_base", "_places", "_size", "memory")

    def __init__(self, base: int, size: int) -> None:
        self._base = base
        self._places: dict[bytes, int] = {}
        self._size = 0
        self.memory = base + size

    def text(self, text: bytes) -> int:
        """The address of this text, with a NUL behind it."""
        found = self._places.get(text)
        if found is None:
            found = self._places[text] = self._base + self._size
            self._size += len(text) + 1
        return found

    def bytes(self) -> bytes:
        """All texts."""
        return b"".join(text + b"\0" for text in self._places)


def built(write: Callable[[Data], bytes], memory: int, fixed: tuple[int, int] | None) -> bytes:
    """The executable of code that needs the addresses of its data and of ``memory`` bytes more.

    ``write`` is called twice, the second time with the right addresses, and gives as much code.
    ``fixed``: address and size of other memory, above all that.
    """
    data = Data(0, 0)
    text = write(data)
    if fixed is None:
        data = Data(data_at(text), len(data.bytes()))
        return executable(write(data), data.bytes(), memory)
    end = _HEADERS + 56 + len(text)
    data = Data(_LOW_DATA_AT + end, len(data.bytes()))
    text = write(data)
    begin = fixed[0] & -_PAGE  # so that all kernels take it
    parts = (
        (5, 0, end, _LOW_TEXT_AT, 0),
        (6, end, end + len(data.bytes()), _LOW_DATA_AT + end, memory),
        (6, 0, 0, begin, fixed[0] + fixed[1] - begin),
    )
    return _head(parts) + text + data.bytes()


class Code:
    """Code in which places have names, to jump to from before and behind them."""

    ALWAYS, BELOW, EQUAL, NOT_EQUAL = b"\xe9", b"\x0f\x82", b"\x0f\x84", b"\x0f\x85"
    NEGATIVE, NOT_NEGATIVE, NOT_POSITIVE = b"\x0f\x88", b"\x0f\x89", b"\x0f\x8e"

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

    def jump_if_result(self, value: int, name: str) -> None:
        """Jump there if the last call returned this small number."""
        self._text += b"\x83\xf8" + number(value % 256, 1)  # cmp eax, value
        self.jump(self.EQUAL, name)

    def jump_unless_result(self, value: int, name: str) -> None:
        """Jump there if the last call returned another than this small number."""
        self._text += b"\x83\xf8" + number(value % 256, 1)  # cmp eax, value
        self.jump(self.NOT_EQUAL, name)

    def bytes(self) -> bytes:
        """The code with all distances."""
        for behind, name in self._to:
            distance = self._labels[name] - behind
            self._text[behind - 4 : behind] = distance.to_bytes(4, "little", signed=True)
        return bytes(self._text)


def _head(loaded: Sequence[tuple[int, int, int, int, int]]) -> bytes:
    """The head of an executable, by its parts: the first is run, the others are read and written.

    Of each its rights, where it begins and ends in the file, its address, and the bytes behind it
    that are not in the file.
    """
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    kind = number(2, 2) + number(62, 2) + number(1, 4)  # EXEC, x86_64
    sizes = number(0, 4) + b"".join(number(n, 2) for n in (64, 56, len(loaded), 0, 0, 0))
    begin = loaded[0][3] + 64 + 56 * len(loaded)
    entry = number(begin, 8) + number(64, 8) + number(0, 8)
    parts = b""
    for flags, start, end, at, behind in loaded:
        parts += number(1, 4) + number(flags, 4) + number(start, 8) + number(at, 8) * 2
        parts += number(end - start, 8) + number(end - start + behind, 8) + number(_PAGE, 8)
    return ident + kind + entry + sizes + parts
