"""JSON and base64 of the wire, with limits.

Reading: one strict parse that refuses duplicate keys, NaN, lone surrogates, more than 262,144
values or more than 127 levels.  The stdlib scanner is used because it alone shows duplicate keys;
msgspec then checks the shapes.  Counting and measuring happen only when the text suggests that a
limit could be near, and values are counted roughly before they are made: 16 MiB of brackets would
else become 900 MB and block the loop for half a minute.  Large payloads are taken out before
(``large_payload``).

Writing: msgspec encodes small answers; output is put together from parts, so that its base64 is
never copied into another string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast, get_args

import msgspec
import pybase64

from handrail.errors import RemoteProtocolError, RpcError
from handrail.protocol import large_payload
from handrail.protocol.envelope import INVALID_PARAMS, Message, RequestId, classify
from handrail.protocol.struct_base import U64_MAX, Unsigned

MAX_VALUES = 262_144
MAX_DEPTH = 127

T = TypeVar("T")

encode = msgspec.json.Encoder().encode
_quick = msgspec.json.Decoder().decode
#: Up to this many bytes a message is read quickly, if it is written as ours are.
_QUICK_BYTES = 4096


def decode(data: str | bytes | bytearray) -> Message:
    """Read one message; raises RemoteProtocolError when it is malformed."""
    if len(data) <= _QUICK_BYTES:
        value = _canonical(data)
        if value is not None:
            return classify(value)
    if not isinstance(data, str):
        if len(data) >= large_payload.LARGE:
            taken = large_payload.take_out(data)
            if taken is not None:
                value = _value(taken[0])
                if large_payload.put_in(value, taken[1]):
                    return classify(value)
        try:
            data = str(data, "utf-8")
        except UnicodeDecodeError:
            raise RemoteProtocolError("the message is not UTF-8") from None
    return classify(_value(data))


def _canonical(data: str | bytes | bytearray) -> Any:
    """The value of a short message that is written exactly as ``encode`` writes it, else None.

    What is written anew from objects in which no key is twice, and has no escaped surrogate, no NaN
    and no white space, is itself without them: so the strict parse, three times slower, would find
    nothing.  Depth is the one limit that so short a text can exceed.
    """
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if text.count(b"{") + text.count(b"[") > MAX_DEPTH:
        return None
    try:
        value = _quick(text)
    except (ValueError, RecursionError):
        return None  # the strict parse says why
    return value if encode(value) == text else None


def _value(data: str) -> Any:
    size = len(data)
    may_be_deep = size > MAX_DEPTH and _any_has(data, "[{", MAX_DEPTH // 2)
    may_be_many = size > MAX_VALUES // 3 and _any_has(data, "[{,", MAX_VALUES // 3)
    if may_be_many and _has_too_many(data):
        raise RemoteProtocolError(f"the message holds more than {MAX_VALUES} values")
    try:
        value = _parse(data)
    except _Refused as refused:
        raise RemoteProtocolError(str(refused)) from None
    except RecursionError:
        raise RemoteProtocolError("the message is nested too deeply") from None
    except ValueError as error:
        raise RemoteProtocolError(f"the message is not JSON: {error}"[:200]) from None
    if may_be_deep and _depth(value) > MAX_DEPTH:
        raise RemoteProtocolError(f"the message is nested deeper than {MAX_DEPTH} levels")
    if may_be_many and _count(value) > MAX_VALUES:
        raise RemoteProtocolError(f"the message holds more than {MAX_VALUES} values")
    # The single character first: that search is thirty times faster in a large message.
    if "\\" in data and "\\u" in data and _has_lone_surrogate(value):
        raise RemoteProtocolError("the message holds half of a surrogate pair")
    return value


def _any_has(text: str, characters: str, number: int) -> bool:
    """Whether one of the characters occurs that often.

    Uses ``find``, which is a memchr: ``count`` took 10 ms each for a message of 11 MB.
    """
    for character in characters:
        at = -1
        for _ in range(number):
            at = text.find(character, at + 1)
            if at < 0:
                break
        else:
            return True
    return False


class _Refused(Exception):
    """A value that the scanner accepts and the wire does not."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused("an object of the message names a key twice")
    return value


def _constant(name: str) -> Any:
    raise _Refused(f"{name} is not a JSON value")


# A number beyond a double's range is read as infinite: it is JSON, and the peer (0.169.0) refuses
# it only where a shape asks for another type.
_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_scan = _decoder.scan_once  # type: ignore[attr-defined]  # public by name, missing in the stubs


def _parse(text: str) -> Any:
    # Straight to the scanner; the decoder's own entry looks for white space around the value with
    # two regular expressions, which a message of this wire hardly ever has.
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else _decoder.decode(text)


_STRING = re.compile(r'"[^"]*"?')


def _has_too_many(text: str) -> bool:
    """Whether a message surely holds more than MAX_VALUES; else at most twice as many are left.

    Every container is a value and every comma separates two.  A text that is not JSON may be
    counted wrongly, and is refused all the same.
    """
    text = text.replace("\\\\", "").replace('\\"', "")  # now each quote begins or ends a string
    if text.count('"') > 4 * MAX_VALUES:  # a key and a string for each value
        return True
    bare = _STRING.sub("", text)
    return bare.count("[") + bare.count("{") > MAX_VALUES or bare.count(",") >= MAX_VALUES


_CONTAINERS = (dict, list)


def _depth(value: Any) -> int:
    depth = 0
    level = [value] if type(value) in _CONTAINERS else []
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            inner
            for item in level
            for inner in (item.values() if type(item) is dict else item)
            if type(inner) in _CONTAINERS
        ]
    return depth


def _count(value: Any) -> int:
    total = 0
    todo = [value]
    while todo:
        item = todo.pop()
        total += 1
        if type(item) is dict:
            todo.extend(item.values())
        elif type(item) is list:
            todo.extend(item)
    return total


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


# --- params ----------------------------------------------------------------------------------


def convert(params: Any, shape: type[T]) -> T:
    """Check params against a shape; raises RpcError -32602 that names the field."""
    try:
        found = msgspec.convert(params, shape)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"invalid params: {error}") from None
    _check_bounds(found, shape, "$")
    return found


def _check_bounds(value: Any, shape: type[Any], place: str) -> None:
    """Refuse an ``Unsigned`` above 64 bits, in the shape and in shapes that are its members."""
    for name, wire_name, inner in _unsigned_members(cast("Hashable", shape)):
        member = getattr(value, name)
        if inner is not None:
            if isinstance(member, inner):  # one of several, or absent
                _check_bounds(member, inner, f"{place}.{wire_name}")
        elif isinstance(member, int) and member > U64_MAX:
            where = f"{place}.{wire_name}"
            raise RpcError(INVALID_PARAMS, f"invalid params: {where} does not fit 64 bits")


@cache
def _unsigned_members(shape: Hashable) -> tuple[tuple[str, str, type[Any] | None], ...]:
    """The members to check: name, name on the wire, and the shape of one that is an object."""
    found: list[tuple[str, str, type[Any] | None]] = []
    for member in msgspec.structs.fields(cast("type[msgspec.Struct]", shape)):
        kinds = (member.type, *get_args(member.type))
        if Unsigned in kinds:
            found.append((member.name, member.encode_name, None))
        for kind in kinds:
            is_shape = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            if is_shape and _unsigned_members(cast("Hashable", kind)):
                found.append((member.name, member.encode_name, kind))
    return tuple(found)


def decode_base64(text: str, field: str) -> bytes:
    """Strict standard base64: padded, no white space, no stray bits; else RpcError -32602."""
    if isinstance(text, large_payload.Decoded):
        return text.data
    try:
        data = pybase64.b64decode(text, validate=True)
    except (ValueError, UnicodeEncodeError):
        raise RpcError(INVALID_PARAMS, f"`{field}` is not valid base64") from None
    if text.endswith("=") and large_payload.has_stray_bits(data, text[-4:].encode()):
        raise RpcError(INVALID_PARAMS, f"`{field}` is not valid base64: it has stray bits")
    return data


encode_base64 = pybase64.b64encode


# --- messages we send ----------------------------------------------------------------------------


def result_message(request_id: RequestId, result: Any) -> bytes:
    """The answer to a request."""
    return b'{"id":%b,"result":%b}' % (encode(request_id), encode(result))


def error_message(request_id: RequestId, code: int, message: str, data: Any = None) -> bytes:
    """The refusal of a request.

    Bytes of a file or program name in the sentence that are not UTF-8 become U+FFFD.
    """
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    try:
        body = encode(error)
    except UnicodeEncodeError:
        body = encode(_legible(msgspec.to_builtins(error)))
    return b'{"error":%b,"id":%b}' % (body, encode(request_id))


def _legible(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_legible(key): _legible(member) for key, member in value.items()}
    return [_legible(one) for one in value] if isinstance(value, list) else value


def request_message(request_id: RequestId, method: str, params: Any) -> bytes:
    """Encode a request."""
    return b'{"id":%b,"method":%b,"params":%b}' % (
        encode(request_id),
        encode(method),
        encode(params),
    )


def notification_message(method: str, params: Any) -> bytes:
    """Encode a notification."""
    return b'{"method":%b,"params":%b}' % (encode(method), encode(params))
