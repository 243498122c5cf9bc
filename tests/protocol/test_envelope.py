"""Telling messages apart: exec-server.md 2.1 and 2.4, by table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.errors import RemoteProtocolError
from handrail.protocol.codec import decode
from handrail.protocol.envelope import (
    ErrorResponse,
    Message,
    Notification,
    Request,
    Response,
    Trace,
    classify,
)

MAX = 2**63 - 1
MIN = -(2**63)

UNDERSTOOD: dict[str, Message] = {
    '{"id":1,"method":"m"}': Request(1, "m"),
    '{"id":1,"method":"m","params":null}': Request(1, "m"),
    '{"id":1,"method":"m","params":{"a":[1]}}': Request(1, "m", {"a": [1]}),
    '{"id":1,"method":"m","params":[1]}': Request(1, "m", [1]),
    '{"id":1,"method":"m","params":7}': Request(1, "m", 7),
    '{"id":"x","method":"m"}': Request("x", "m"),
    '{"id":"","method":"m"}': Request("", "m"),
    '{"id":-5,"method":"m"}': Request(-5, "m"),
    '{"id":0,"method":"m"}': Request(0, "m"),
    f'{{"id":{MAX},"method":"m"}}': Request(MAX, "m"),
    f'{{"id":{MIN},"method":"m"}}': Request(MIN, "m"),
    '{"id":1,"method":""}': Request(1, ""),
    # Members nobody knows, and the one other dialects send.
    '{"jsonrpc":"2.0","id":1,"method":"m","more":{}}': Request(1, "m"),
    '{"jsonrpc":"1.0","id":1,"method":"m"}': Request(1, "m"),
    # `method` wins over `result` and `error`, `result` over `error`.
    '{"id":1,"method":"m","result":1,"error":1}': Request(1, "m"),
    '{"id":1,"result":2,"error":1}': Response(1, 2),
    '{"method":"m"}': Notification("m"),
    '{"method":"m","params":{}}': Notification("m", {}),
    '{"id":1,"result":null}': Response(1, None),
    '{"id":"x","result":{"a":1}}': Response("x", {"a": 1}),
    '{"id":1,"error":{"code":-1,"message":"no"}}': ErrorResponse(1, -1, "no"),
    '{"id":1,"error":{"code":-1,"message":"no","data":[2]}}': ErrorResponse(1, -1, "no", [2]),
    # A notification has none, whatever stands there.
    '{"method":"m","trace":1}': Notification("m"),
    # Trace contexts; whether they parse is not looked at here.
    '{"id":1,"method":"m","trace":null}': Request(1, "m"),
    '{"id":1,"method":"m","trace":{}}': Request(1, "m", None, Trace()),
    '{"id":1,"method":"m","trace":{"traceparent":"rubbish"}}': Request(
        1, "m", None, Trace("rubbish")
    ),
    '{"id":1,"method":"m","trace":{"traceparent":null,"tracestate":"a=b","x":1}}': Request(
        1, "m", None, Trace(None, "a=b")
    ),
    ' \t\r\n{"id":1,"method":"m"}\n ': Request(1, "m"),
}

MALFORMED = [
    "",
    " ",
    "null",
    "true",
    "1",
    '"text"',
    "[]",
    '[{"id":1,"method":"m"}]',  # no batches
    "{}",
    '{"id":1}',
    '{"params":{}}',
    '{"result":1}',
    '{"error":{"code":1,"message":""}}',
    # ids
    '{"id":null,"method":"m"}',
    '{"id":true,"method":"m"}',
    '{"id":1.0,"method":"m"}',
    '{"id":1e0,"method":"m"}',
    '{"id":1.5,"method":"m"}',
    '{"id":[],"method":"m"}',
    '{"id":{},"method":"m"}',
    f'{{"id":{MAX + 1},"method":"m"}}',
    f'{{"id":{MIN - 1},"method":"m"}}',
    '{"id":' + "9" * 400 + ',"method":"m"}',
    '{"id":null,"result":1}',
    '{"id":1.0,"error":{"code":1,"message":""}}',
    # methods
    '{"id":1,"method":null}',
    '{"id":1,"method":1}',
    '{"id":1,"method":["m"]}',
    '{"method":{}}',
    # errors that are none
    '{"id":1,"error":null}',
    '{"id":1,"error":"no"}',
    '{"id":1,"error":[]}',
    '{"id":1,"error":{}}',
    '{"id":1,"error":{"code":1}}',
    '{"id":1,"error":{"message":"no"}}',
    '{"id":1,"error":{"code":"1","message":"no"}}',
    '{"id":1,"error":{"code":1.0,"message":"no"}}',
    '{"id":1,"error":{"code":true,"message":"no"}}',
    '{"id":1,"error":{"code":1,"message":null}}',
    f'{{"id":1,"error":{{"code":{MAX + 1},"message":"no"}}}}',
    f'{{"id":1,"error":{{"code":{MIN - 1},"message":"no"}}}}',
    # traces of a wrong type
    '{"id":1,"method":"m","trace":"00-1-2-03"}',
    '{"id":1,"method":"m","trace":[]}',
    '{"id":1,"method":"m","trace":{"traceparent":1}}',
    '{"id":1,"method":"m","trace":{"tracestate":{}}}',
]


@pytest.mark.parametrize("text", UNDERSTOOD)
def test_messages_are_told_apart_by_their_members(text: str) -> None:
    message = decode(text)
    assert type(message) is type(UNDERSTOOD[text])
    assert message == UNDERSTOOD[text]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_envelope_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(text)


@pytest.mark.parametrize("number", [1, -1, MAX, MIN])
def test_an_id_keeps_its_type(number: int) -> None:
    for given_id in (number, str(number)):
        message = classify({"id": given_id, "method": "m"})
        assert isinstance(message, Request)
        assert type(message.id) is type(given_id)
        assert message.id == given_id


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from(("id", "method", "params", "result", "error", "trace", "jsonrpc"))


@given(json_values | st.dictionaries(members, json_values))
def test_any_value_is_a_message_or_refused(value: Any) -> None:
    try:
        message = classify(value)
    except RemoteProtocolError:
        return
    assert isinstance(message, Request | Notification | Response | ErrorResponse)
    assert isinstance(message, Notification) or type(message.id) in (str, int)
