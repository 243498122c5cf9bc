"""Read large messages that are mostly one base64 payload without copying it.  Pure.

A file of 8 MiB arrives as 11 MB of JSON, nearly all of it one string.  Making text of the bytes,
scanning the text and cutting the string out of it costs 25 ms; decoding the base64 in place costs 1
ms.  So the string is taken out first, the strict parser reads the rest, and the decoded bytes are
passed on under the field's name as ``Decoded``.

Only what is certainly the same message is read this way: ASCII, no backslash anywhere (so each
quote begins or ends a string), valid base64, and the string is a payload field at the top of the
params of a method that has one, or ``dataBase64`` of a result.  Everything else gives None and is
read as a whole.
"""

from __future__ import annotations

import pybase64

#: Messages below this size are read as a whole: it is as fast.
LARGE = 256 * 1024

#: Replaces the string while the rest is read: with no backslash in the message, nothing in it can
#: be a NUL.
PLACEHOLDER = "\0"
_PLACEHOLDER_JSON = b'"\\u0000"'

FIELDS = {
    "process/write": "chunk",
    "fs/writeFile": "dataBase64",
    "fs/writeBlock": "chunk",
    "fs/writeFiles": "dataBase64",
    "http/request": "bodyBase64",
}
_RESULT = "dataBase64"
#: Strings examined in search of the long one: keys and values of an ordinary call.
_MOST_STRINGS = 64


class Decoded(str):  # noqa: SLOT000 (it has an attribute)
    """A base64 text that was decoded while the message was read; the text itself is not kept."""

    data: bytes


def take_out(message: bytes | bytearray) -> tuple[str, Decoded] | None:
    """The message with a placeholder for its long string, and the decoded string."""
    if b"\\" in message or not message.isascii():
        return None
    begin = end = -1
    for _ in range(_MOST_STRINGS):
        begin = message.find(b'"', end + 1)
        end = message.find(b'"', begin + 1)
        if begin < 0 or end < 0:
            return None
        if end - begin > len(message) // 2:
            break
    else:
        return None
    view = memoryview(message)
    text = view[begin + 1 : end]
    try:
        decoded = Decoded()
        decoded.data = pybase64.b64decode(text, validate=True)
    except ValueError:
        return None
    if text[-1] == 0x3D and has_stray_bits(decoded.data, bytes(text[-4:])):
        return None
    rest = b"".join((view[:begin], _PLACEHOLDER_JSON, view[end + 1 :]))
    return rest.decode("ascii"), decoded


def put_in(value: object, decoded: Decoded) -> bool:
    """Replace the placeholder by the payload; False if it is no payload field."""
    if not isinstance(value, dict):
        return False
    params, method = value.get("params"), value.get("method")
    field = FIELDS.get(method) if isinstance(method, str) else None
    if method is None and params is None:
        params, field = value.get("result"), _RESULT
    if field is None or not isinstance(params, dict) or params.get(field) != PLACEHOLDER:
        return False
    params[field] = decoded
    return True


def has_stray_bits(data: bytes, last: bytes) -> bool:
    """Whether the last four characters of padded base64 hold more bits than the decoded bytes."""
    return pybase64.b64encode(data[-(len(data) % 3) :]) != last
