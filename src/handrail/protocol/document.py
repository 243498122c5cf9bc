"""Generate ``docs/protocol.md`` from the method table and the shapes.

The page's text about a method is its row in ``methods``; about a member, its type in the shape and
the ``#:`` comment above it, where one that begins with «Ours:» marks a member the peer does not
have.  ``python -m handrail.protocol.document`` prints the page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec.inspect as shapes
from msgspec import NODEFAULT, Struct

from handrail.protocol import codec, envelope
from handrail.protocol.methods import (
    INITIALIZE,
    INITIALIZED,
    METHODS,
    NOTIFICATIONS,
    Method,
    Origin,
)

_HEAD = f"""\
# The protocol

<!-- Made by `python -m handrail.protocol.document`. Change the shapes, not this page. -->

This page lists every method, notification and error between a client and `handrail serve`: JSON-RPC
in the dialect of the Codex exec-server, one message per WebSocket message or line, no `jsonrpc`
member, ids that are strings or signed 64-bit integers. Requests have `id` and `method`,
notifications only `method`; missing `params` are null; unknown members are ignored. A malformed
message is answered under the id {envelope.MALFORMED_ID}. Duplicate keys, more than
{codec.MAX_VALUES} values or more than {codec.MAX_DEPTH} levels make a message malformed.

A client calls `{INITIALIZE}`, then notifies `{INITIALIZED}`; all other calls come after that.
Requests run concurrently; those of the control lane never wait for those of the ordinary one.
Bytes are sent as base64, paths as `file:` URIs.

**Origin** says which server defines a method or member: *wire* is the Codex exec-server,
*handrail* this one; `environmentInfo.capabilities.handrail` says which of these a server has.
"""

_CODES = {
    envelope.INVALID_REQUEST: (
        "a malformed message; a call before the handshake; an unknown session or process; an id"
        " that is taken; a start that was cancelled; invalid input or missing permission for a file"
    ),
    envelope.METHOD_NOT_FOUND: "no such method here",
    envelope.INVALID_PARAMS: "params that do not fit their shape or make no sense",
    envelope.INTERNAL_ERROR: "a process that could not be started, other failures of the system",
    envelope.NOT_FOUND: "no such file or file handle",
    envelope.ALREADY_ATTACHED: "the session belongs to another connection; try again",
}

_OURS = "Ours: "
_COMMENT = re.compile(r"\s*#:\s?(.*)")
_FIELD = re.compile(r"    (\w+)\s*:")


def render() -> str:
    """The whole page."""
    offered = [method for method in METHODS.values() if method.params is not None]
    missing = [method.name for method in METHODS.values() if method.params is None]
    roots = [shape for method in offered for shape in (method.params, method.result) if shape]
    roots += [notification.params for notification in NOTIFICATIONS]
    lines = [_HEAD, "## Methods", ""]
    lines += _table(
        ("method", "lane", "origin", "what it does"),
        ((_link(m.name), m.lane.value, m.origin.value, m.about) for m in offered),
    )
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        lines += ["", f"Of the wire and not offered yet (-32601): {names}."]
    for method in offered:
        lines += ["", f"### `{method.name}`", "", *_method(method)]
    lines += ["", "## Notifications", ""]
    lines += [f"From the client: `{INITIALIZED}`, params ignored. From the server:"]
    for notification in NOTIFICATIONS:
        lines += ["", f"### `{notification.name}`", "", notification.about, ""]
        lines += _members(notification.params, Origin.WIRE)
    lines += ["", "## Shapes"]
    for shape in _inner(roots):
        lines += ["", f"### {shape.__name__} object", "", _about(shape), ""]
        lines += _members(shape, Origin.WIRE)
    lines += ["", "## Errors", ""]
    lines += _table(("code", "when"), ((str(code), when) for code, when in _CODES.items()))
    return "\n".join(lines) + "\n"


def _method(method: Method) -> Iterator[str]:
    yield f"{method.about} Origin: {method.origin.value}. Lane: {method.lane.value}."
    for name, shape in (("Params", method.params), ("Result", method.result)):
        if shape is not None:
            yield ""
            yield f"**{name}.** {_about(shape)}"
            yield ""
            yield from _members(shape, method.origin)


def _members(shape: type[Any], origin: Origin) -> Iterable[str]:
    """The table of an object's members."""
    described = shapes.type_info(shape)
    if not isinstance(described, shapes.StructType):
        raise TypeError(f"{shape} is no object of the wire")
    if not described.fields:
        return ["No members."]
    comments = _comments(shape)
    ours = origin is Origin.OURS or (shape.__doc__ or "").startswith(_OURS)
    rows = []
    for field in described.fields:
        about = comments.get(field.name, "")
        whose = Origin.OURS if ours or about.startswith(_OURS) else Origin.WIRE
        rows.append(
            (
                f"`{field.encode_name}`",
                _type(field.type),
                _need(field),
                whose.value,
                _sentence(about.removeprefix(_OURS)),
            )
        )
    return _table(("member", "type", "required", "origin", "about"), rows)


def _need(field: shapes.Field) -> str:
    if field.required:
        return "yes"
    if field.default is NODEFAULT or field.default is None:
        return "no"
    return f"no ({str(field.default).lower()})"


def _type(kind: shapes.Type) -> str:
    """A type in words."""
    match kind:
        case shapes.UnionType():
            return " or ".join(map(_type, kind.types))
        case shapes.StructType():
            return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()}-object)"
        case shapes.ListType():
            return f"array of {_inside(kind.item_type)}"
        case shapes.DictType():
            return f"object of {_inside(kind.value_type)}"
        case shapes.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values)
        case shapes.IntType():
            return "integer" + _bounds(kind)
    return _WORDS.get(type(kind)) or type(kind).__name__.removesuffix("Type").lower()


_WORDS = {
    shapes.StrType: "string",
    shapes.BoolType: "boolean",
    shapes.FloatType: "number",
    shapes.NoneType: "null",
    shapes.AnyType: "anything",
}


def _inside(kind: shapes.Type) -> str:
    text = _type(kind)
    return f"({text})" if isinstance(kind, shapes.UnionType) else text


def _bounds(kind: shapes.IntType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" {kind.ge} to {kind.le}"
    return f" from {kind.ge}" if kind.ge is not None else ""


def _inner(roots: Iterable[type[Any]]) -> list[type[Struct]]:
    """The objects nested in others, each once, in order of appearance."""
    found: dict[type[Struct], None] = {}

    def visit(kind: shapes.Type) -> None:
        match kind:
            case shapes.UnionType():
                for one in kind.types:
                    visit(one)
            case shapes.ListType():
                visit(kind.item_type)
            case shapes.DictType():
                visit(kind.value_type)
            case shapes.StructType() if kind.cls not in found:
                found[kind.cls] = None
                descend(kind)

    def descend(kind: shapes.Type) -> None:
        if isinstance(kind, shapes.StructType):
            for field in kind.fields:
                visit(field.type)

    for root in roots:
        descend(shapes.type_info(root))
    return list(found)


def _comments(shape: type[Any]) -> dict[str, str]:
    """The ``#:`` comments of a class and its bases, by field."""
    found: dict[str, str] = {}
    for cls in reversed(shape.__mro__):
        if cls.__module__.startswith("handrail."):
            said: list[str] = []
            for line in inspect.getsource(cls).splitlines():
                if comment := _COMMENT.fullmatch(line):
                    said.append(comment[1])
                    continue
                if (field := _FIELD.match(line)) and said:
                    found[field[1]] = " ".join(said)
                said = []
    return found


def _about(shape: type[Any]) -> str:
    """The docstring of a shape, on one line."""
    return _sentence(" ".join((shape.__doc__ or "").split()).removeprefix(_OURS))


def _sentence(text: str) -> str:
    text = text.replace("``", "`")
    return text[:1].upper() + text[1:]


def _link(name: str) -> str:
    anchor = re.sub(r"[^a-z0-9_ -]", "", name.lower())
    return f"[`{name}`](#{anchor})"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row).rstrip() + " |"


if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
