"""Large payloads: read apart from their message, with nothing else than before coming of it."""

from __future__ import annotations

import base64
import json

import pytest

from handrail.errors import RemoteProtocolError, RpcError
from handrail.protocol import codec, large_payload
from handrail.protocol.envelope import Request
from handrail.protocol.filesystem import WriteFileParams

BYTES = bytes(range(256)) * 1025  # 262,400: its base64 is padded
TEXT = base64.b64encode(BYTES).decode()


def call(method: str, **params: object) -> bytes:
    return json.dumps({"id": 1, "method": method, "params": params}).encode()


def taken(message: bytes | bytearray) -> bytes | None:
    """What was decoded on the way, if anything was."""
    read = codec.decode(message)
    assert isinstance(read, Request)
    for value in read.params.values():
        if isinstance(value, large_payload.Decoded):
            return value.data
    return None


@pytest.mark.parametrize(("method", "field"), list(large_payload.FIELDS.items()))
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_payload_is_decoded_where_it_lies(method: str, field: str, kind: type) -> None:
    message = kind(call(method, **{"path": "file:///x", field: TEXT, "writeId": "7"}))
    assert taken(message) == BYTES
    read = codec.decode(message)
    assert isinstance(read, Request)
    assert (read.method, read.params["path"], read.params["writeId"]) == (method, "file:///x", "7")
    assert codec.decode_base64(read.params[field], field) == BYTES


def test_the_shape_takes_it_and_gives_it_on() -> None:
    message = call("fs/writeFile", path="file:///x", dataBase64=TEXT)
    read = codec.decode(message)
    assert isinstance(read, Request)
    params = codec.convert(read.params, WriteFileParams)
    assert codec.decode_base64(params.data_base64, "dataBase64") == BYTES


@pytest.mark.parametrize(
    "message",
    [
        call("fs/writeFile", path="file:///x", dataBase64=TEXT, note='a "quoted" word'),
        call("fs/writeFile", path="file:///ü", dataBase64=TEXT),
        json.dumps({"id": 1, "method": "fs/writeFile", "params": {"p": "ü", "dataBase64": TEXT}},
                   ensure_ascii=False).encode(),
        call("fs/writeFile", path=TEXT, dataBase64="QUJD"),
        call("process/start", argv=["echo", TEXT]),
        call("process/start", env={"chunk": TEXT}),
        call("process/write", deeper={"chunk": TEXT}, chunk="QUJD"),
        call("no/such", chunk=TEXT),
        call("fs/writeFile", path="file:///x", dataBase64=TEXT[:-1]),
        call("fs/writeFile", path="file:///x", dataBase64="!" + TEXT[1:]),
        call("fs/writeFile", path="file:///x", dataBase64=TEXT[:-2] + "B="),
        call("fs/writeFile", a=TEXT, dataBase64=TEXT),
    ],
)  # fmt: skip
def test_everything_else_is_read_as_a_whole(message: bytes) -> None:
    assert taken(message) is None
    assert codec.decode(message) == codec.decode(message.decode())


def test_many_strings_before_the_long_one() -> None:
    message = call("process/write", **{f"k{n}": "v" for n in range(60)}, chunk=TEXT)
    assert taken(message) is None
    assert codec.decode(message) == codec.decode(message.decode())


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (call("fs/writeFile", dataBase64=TEXT)[:-1], "not JSON"),
        (call("fs/writeFile", dataBase64=TEXT) + b"}", "not JSON"),
        (
            f'{{"id":1,"method":"fs/writeFile","params":{{"dataBase64":"a","dataBase64":"{TEXT}"}}}}'.encode(),
            "twice",
        ),
        (f'{{"id":1,"method":"fs/x","params":{{"dataBase64":"{TEXT}\n"}}}}'.encode(), "JSON"),
        (b'{"id":1,"params":{"chunk":"' + TEXT.encode(), "not JSON"),
    ],
)  # fmt: skip
def test_what_is_malformed_stays_so(message: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        codec.decode(message)
    with pytest.raises(RemoteProtocolError, match=reason):
        codec.decode(message.decode())


def test_bad_base64_is_refused_as_ever() -> None:
    read = codec.decode(call("process/write", chunk=TEXT[:-2] + "B="))
    assert isinstance(read, Request)
    with pytest.raises(RpcError, match="stray bits"):
        codec.decode_base64(read.params["chunk"], "chunk")
