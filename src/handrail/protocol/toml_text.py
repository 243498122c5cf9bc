"""Values as TOML, in the form the peer writes them.  Pure.

A table's plain values come first, then its tables in their order; a table that holds nothing
but tables has no header of its own.  Arrays of tables are written as such unless they stand
inside another array.  A string gets the first of these forms that needs no escapes: basic,
literal, both over several lines; else a basic one with escapes.

What ``tomllib`` does not keep is lost: digits of a second beyond six, and whether UTC was
written as ``Z`` or ``+00:00``.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ESCAPES = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}
_ESCAPED = re.compile(r'[\x00-\x1f"\\\x7f]')
#: In a multi-line string: line ends stay, and every third of several quotes in a row is escaped.
_ESCAPED_IN_LINES = re.compile(r"[\x00-\x09\x0b-\x1f\\\x7f]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def document(table: Mapping[str, Any]) -> str:
    """A whole document."""
    blocks: list[str] = []
    _write_table(table, (), blocks, header=None)
    return "\n".join(blocks)


def _write_table(
    table: Mapping[str, Any], path: tuple[str, ...], blocks: list[str], header: str | None
) -> None:
    plain = [
        f"{_key(name)} = {_value(value)}\n" for name, value in table.items() if not _nests(value)
    ]
    if header is not None or plain:
        blocks.append((f"{header}\n" if header is not None else "") + "".join(plain))
    for name, value in table.items():
        if not _nests(value):
            continue
        inner = (*path, name)
        dotted = ".".join(map(_key, inner))
        if isinstance(value, Mapping):
            _write_table(value, inner, blocks, f"[{dotted}]" if _shows(value) else None)
        else:
            for item in value:
                _write_table(item, inner, blocks, f"[[{dotted}]]")


def _nests(value: Any) -> bool:
    """Whether a value is written as separate tables."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def _shows(table: Mapping[str, Any]) -> bool:
    """Whether a table needs its header: it has values, or nothing at all."""
    return not table or not all(map(_nests, table.values()))


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int():
            return str(value)
        case float():
            return _float(value)
        case dt.datetime():
            return _datetime(value)
        case dt.time():
            return _time(value)
        case dt.date():
            return value.isoformat()
        case Mapping():
            inner = ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case Sequence():
            return "[" + ", ".join(map(_value, value)) + "]"
    raise TypeError(f"no TOML form for {type(value).__name__}")


def _float(value: float) -> str:
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    text = format(Decimal(repr(value)), "f")
    return text if "." in text else text + ".0"


def _datetime(value: dt.datetime) -> str:
    text = value.date().isoformat() + "T" + _time(value.time())
    if value.tzinfo is None:
        return text
    if not value.utcoffset():
        return text + "Z"
    return text + value.strftime("%z")[:3] + ":" + value.strftime("%z")[3:5]


def _time(value: dt.time) -> str:
    text = value.isoformat()
    return text.rstrip("0") if value.microsecond else text


# --- strings ------------------------------------------------------------------------------------


def _key(name: str) -> str:
    if _BARE.fullmatch(name):
        return name
    literal = '"' in name or "\\" in name
    if literal and not _CONTROL.search(name) and "'" not in name and "\n" not in name:
        return f"'{name}'"
    return _basic(name)


def _string(text: str) -> str:
    lines = "\n" in text
    newline = "\n" if lines else ""
    if not _CONTROL.search(text):
        escapes = "\\" in text
        if not escapes and '"' not in text and not lines:
            return _basic(text)
        if "'" not in text and not lines:
            return f"'{text}'"
        if not escapes and '"""' not in text:
            return _in_lines(text)
        if "'''" not in text:
            return f"'''{newline}{text}'''"
    return _in_lines(text) if lines else _basic(text)


def _basic(text: str) -> str:
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _in_lines(text: str) -> str:
    newline = "\n" if "\n" in text else ""
    text = _ESCAPED_IN_LINES.sub(_escape, text).replace('"""', '""\\"')
    return f'"""{newline}{text}"""'


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04X}"
