"""Reading and writing JSON: the limits of exec-server.md 2.1, and C3, C7 and C10 of the fault
matrix.  Each odd input has one defined answer."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.errors import RemoteProtocolError, RpcError
from handrail.protocol import codec
from handrail.protocol.envelope import (
    INVALID_PARAMS,
    ErrorResponse,
    Notification,
    Request,
    Response,
)
from handrail.protocol.environment import Empty, InitializeParams
from handrail.protocol.filesystem import (
    ReadBlockParams,
    WalkOptionsParams,
    WalkParams,
    WatchMissingParams,
    WriteBlockParams,
)
from handrail.protocol.process import (
    ReadParams,
    ResizeParams,
    StartParams,
    TerminateParams,
    WriteParams,
)
from handrail.protocol.sandbox import SandboxParams


def with_params(params: str) -> str:
    return f'{{"id":1,"method":"m","params":{params}}}'


def params_of(text: str | bytes) -> Any:
    message = codec.decode(text)
    assert isinstance(message, Request)
    return message.params


def refusal(text: str | bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(text)
    return str(caught.value)


# --- what is JSON ----------------------------------------------------------------------------

NOT_JSON = [
    '{"id":1,"method":"m"',
    '{"id":1,"method":"m"}}',
    '{"id":1,"method":"m"} {"id":2,"method":"m"}',
    '{"id":1,"method":"m",}',
    "{'id':1,'method':'m'}",
    '{id:1,"method":"m"}',
    '{"id":1 "method":"m"}',
    '\ufeff{"id":1,"method":"m"}',
    with_params("01"),
    with_params("+1"),
    with_params(".5"),
    with_params("1."),
    with_params("-"),
    with_params("0x10"),
    with_params("tru"),
    with_params("[1,]"),
    with_params('"\t"'),  # control characters have to be escaped
    with_params('"\x00"'),
    with_params('"\\x41"'),
    with_params('"\\u12"'),
    with_params('"open'),
    with_params("/* no */ 1"),
]


@pytest.mark.parametrize("text", NOT_JSON)
def test_what_is_not_json_is_refused(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("place", ["%s", "[%s]", '{"a":{"b":%s}}'])
def test_numbers_that_are_none_are_refused(word: str, place: str) -> None:
    assert word in refusal(with_params(place % word))


@pytest.mark.parametrize("number", ["1e400", "-1e400", "123456789e999999"])
def test_a_number_out_of_range_is_refused_only_where_another_type_is_asked_for(number: str) -> None:
    params = params_of(with_params(f'{{"processId":"p","unknown":{number}}}'))
    assert codec.convert(params, ReadParams).process_id == "p"
    params = params_of(with_params(f'{{"processId":"p","afterSeq":{number}}}'))
    with pytest.raises(RpcError, match="afterSeq") as refused:
        codec.convert(params, ReadParams)
    assert refused.value.code == INVALID_PARAMS


WALK = {
    "maxDepth": 1,
    "maxDirectories": 1,
    "maxEntries": 1,
    "followDirectorySymlinks": False,
}


@pytest.mark.parametrize(
    ("shape", "params", "member"),
    [
        (ReadParams, {"processId": "p", "waitMs": 0}, "waitMs"),
        (InitializeParams, {"clientName": "c", "detachTtlMs": 0}, "detachTtlMs"),
        (ReadBlockParams, {"handleId": "h", "offset": 0, "len": 1}, "offset"),
        (ReadBlockParams, {"handleId": "h", "offset": 0, "len": 1}, "len"),
        (WriteBlockParams, {"handleId": "h", "offset": 0, "chunk": ""}, "offset"),
        (WatchMissingParams, {"watchId": 0, "missing": []}, "watchId"),
        (WalkOptionsParams, WALK, "maxDepth"),
    ],
)
def test_a_number_above_64_bits_is_refused_by_its_member(
    shape: type[Any], params: dict[str, Any], member: str
) -> None:
    codec.convert(params | {member: 2**64 - 1}, shape)
    with pytest.raises(RpcError, match=rf"\.{member} does not fit 64 bits") as refused:
        codec.convert(params | {member: 2**64}, shape)
    assert refused.value.code == INVALID_PARAMS


def test_a_number_above_64_bits_is_refused_in_an_object_of_the_params() -> None:
    params = {"path": "file:///", "options": WALK | {"maxEntries": 2**64}}
    with pytest.raises(RpcError, match=r"\$\.options\.maxEntries does not fit 64 bits"):
        codec.convert(params, WalkParams)


@pytest.mark.parametrize("number", ["1e308", "-1e308", "1e-400", "0.1", "-0.0", "1E5"])
def test_other_fractions_are_read(number: str) -> None:
    assert params_of(with_params(number)) == float(number)


def test_an_integer_of_any_size_is_read_or_refused() -> None:
    assert params_of(with_params("9" * 400)) == 10**400 - 1
    refusal(with_params("9" * 5000))  # as long as that is more than Python converts


@pytest.mark.parametrize("data", [b"\xff", b'{"id":1,"method":"\xed\xa0\x80"}', b'"\xc0\xaf"'])
def test_bytes_that_are_not_utf8_are_refused(data: bytes) -> None:
    assert "UTF-8" in refusal(data)


def test_bytes_and_text_are_read_alike() -> None:
    text = with_params('{"ü\\u20ac":"\\ud83d\\ude00😀"}')
    assert params_of(text) == params_of(text.encode()) == {"ü€": "😀😀"}


@pytest.mark.parametrize(
    "text",
    [
        with_params('"\\ud800"'),
        with_params('"\\udc00"'),
        with_params('"\\ud800\\ud800"'),
        with_params('"\\udc00\\ud800"'),
        with_params('"\\ud800x"'),
        with_params('{"\\ud800":1}'),
        with_params('[[{"a":["\\udfff"]}]]'),
        '{"id":"\\ud800","method":"m"}',
        '{"id":1,"method":"\\ud800"}',
        '{"id":1,"method":"m","nobody":"\\ud800"}',
    ],
)
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    assert "surrogate" in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"id":1,"id":1,"method":"m"}',
        '{"id":1,"method":"m","method":"n"}',
        '{"id":1,"method":"m","x":1,"x":2}',
        with_params('{"a":1,"a":1}'),
        with_params('{"a":1,"b":2,"a":3}'),
        with_params('{"a":1,"\\u0061":2}'),
        with_params('{"/":1,"\\/":2}'),
        with_params('{"":1,"":2}'),
        with_params('[0,[{"b":{"a":1,"a":2}}]]'),
        with_params("[" * 100 + '{"a":1,"a":2}' + "]" * 100),
    ],
)
def test_a_key_named_twice_is_refused(text: str) -> None:
    assert "twice" in refusal(text)


def test_keys_that_only_look_alike_are_two() -> None:
    assert params_of(with_params('{"a":1,"A":2,"a ":3,"\\u00e1":4,"a\\u0301":5}')) == {
        "a": 1,
        "A": 2,
        "a ": 3,
        "á": 4,
        "a\u0301": 5,
    }


# --- limits ----------------------------------------------------------------------------------


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + closing * levels


@pytest.mark.parametrize(
    ("deepest", "too_deep"),
    [
        (nested(126), nested(127)),
        ('{"a":' * 126 + "1" + "}" * 126, '{"a":' * 127 + "1" + "}" * 127),
        (nested(126).replace("[]", "[1,2]"), "[1," + nested(126) + "]"),
    ],
)
def test_126_levels_of_params_are_read_and_127_are_not(deepest: str, too_deep: str) -> None:
    assert params_of(with_params(deepest)) == json.loads(deepest)
    assert "nested" in refusal(with_params(too_deep))


def test_brackets_in_strings_are_no_levels() -> None:
    assert params_of(with_params(json.dumps("[{" * 1000))) == "[{" * 1000


def test_values_are_counted_with_the_message_itself() -> None:
    # The message, its id, its method and the array are four of them.
    most = codec.MAX_VALUES - 4
    assert len(params_of(with_params("[" + ",".join(["0"] * most) + "]"))) == most
    assert "values" in refusal(with_params("[" + ",".join(["0"] * (most + 1)) + "]"))


@pytest.fixture
def no_collector() -> Iterator[None]:
    """It would look at a growing heap of lists again and again."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("one", "each"),
    [("[]", 1), ("{}", 1), ('"\\""', 1), ('"\\\\"', 1), ('{"a":[]}', 2), ('[","]', 2)],
)
def test_values_of_every_kind_are_counted(one: str, each: int) -> None:
    most = (codec.MAX_VALUES - 4) // each
    params_of(with_params("[" + ",".join([one] * most) + "]"))
    refusal(with_params("[" + ",".join([one] * (most + 1)) + "]"))


def test_commas_in_strings_are_no_values() -> None:
    text = ",[{" * codec.MAX_VALUES
    assert params_of(with_params(json.dumps(text))) == text
    text = '\\",' * codec.MAX_VALUES
    assert params_of(with_params(json.dumps(text))) == text


#: Some 16 MB each, made when they are needed.
HOSTILE: dict[str, tuple[str, str, int, str]] = {
    "brackets": ("", "[", 5_000_000, ""),
    "braces": ("", '{"a":', 2_000_000, ""),
    "brackets and their ends": ("[" * 5_000_000, "]", 5_000_000, ""),
    "empty arrays": ("[", "[],", 5_000_000, "[]]"),
    "empty objects": ("[", "{},", 5_000_000, "{}]"),
    "empty strings": ("[", '"",', 5_000_000, '""]'),
    "numbers": ("[", "1,", 8_000_000, "1]"),
    "deep bushes": ("[", nested(120) + ",", 69_000, "[]]"),
    "quotes that never end": ('"', '\\"', 8_000_000, ""),
    "strings, one open": ("[", '"a",', 4_000_000, '"'),
    "back slashes": ('"', "\\", 16_000_000, ""),
    "keys": ("{", '"a":1,', 2_500_000, '"b":1}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_message_made_to_hurt_is_refused_before_its_values_are_made(name: str) -> None:
    first, again, times, last = HOSTILE[name]
    text = with_params(first + again * times + last)
    tracemalloc.start()
    try:
        refusal(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Copies of the text, and no more: the values themselves would be twenty times that.
    assert peak < 4 * len(text) + 64 * 1024 * 1024


@given(st.text() | st.binary())
def test_any_input_is_a_message_or_refused(data: str | bytes) -> None:
    try:
        codec.decode(data)
    except RemoteProtocolError:
        pass


# --- params ----------------------------------------------------------------------------------

U64 = 2**64 - 1
START = {"processId": "p", "argv": ["x"], "cwd": "file:///", "env": {}, "tty": False}

GOOD_PARAMS: list[tuple[Any, Any]] = [
    ({"processId": "p"}, ReadParams),
    ({"processId": "p", "afterSeq": None, "maxBytes": None, "waitMs": None}, ReadParams),
    ({"processId": "p", "afterSeq": 0, "maxBytes": U64, "waitMs": U64}, ReadParams),
    ({"processId": "p", "unknown": [1]}, ReadParams),
    ({"processId": "", "rows": 1, "cols": 65_535}, ResizeParams),
    (START, StartParams),
    ({**START, "sandbox": None, "arg0": None, "envPolicy": None, "size": None}, StartParams),
    ({"clientName": ""}, InitializeParams),
    ({"clientName": "x", "resumeSecret": None, "resumeSessionId": None}, InitializeParams),
    ({}, Empty),
]

BAD_PARAMS: list[tuple[Any, Any, str]] = [
    ({}, ReadParams, "processId"),
    ([], ReadParams, ""),
    ("p", ReadParams, ""),
    ({"process_id": "p"}, ReadParams, "processId"),
    ({"processId": 1}, ReadParams, "processId"),
    ({"processId": None}, ReadParams, "processId"),
    ({"processId": "p", "afterSeq": -1}, ReadParams, "afterSeq"),
    ({"processId": "p", "afterSeq": 1.0}, ReadParams, "afterSeq"),
    ({"processId": "p", "afterSeq": 0.5}, ReadParams, "afterSeq"),
    ({"processId": "p", "afterSeq": "1"}, ReadParams, "afterSeq"),
    ({"processId": "p", "afterSeq": True}, ReadParams, "afterSeq"),
    ({"processId": "p", "afterSeq": []}, ReadParams, "afterSeq"),
    ({"processId": "p", "waitMs": -(10**30)}, ReadParams, "waitMs"),
    ({"processId": "p", "graceMs": -1}, TerminateParams, "graceMs"),
    ({"processId": "p", "tree": 1}, TerminateParams, "tree"),
    ({"processId": "p", "tree": None}, TerminateParams, "tree"),
    ({"processId": "p", "rows": 0, "cols": 1}, ResizeParams, "rows"),
    ({"processId": "p", "rows": 1, "cols": 65_536}, ResizeParams, "cols"),
    ({"processId": "p", "rows": 10**400, "cols": 1}, ResizeParams, "rows"),
    ({"processId": "p", "rows": 1.0, "cols": 1}, ResizeParams, "rows"),
    ({"processId": "p", "chunk": "", "writeId": 1}, WriteParams, "writeId"),
    ({**START, "argv": "x"}, StartParams, "argv"),
    ({**START, "argv": [1]}, StartParams, "argv"),
    ({**START, "argv": None}, StartParams, "argv"),
    ({**START, "env": {"A": 1}}, StartParams, "env"),
    ({**START, "env": {"A": None}}, StartParams, "env"),
    ({**START, "env": []}, StartParams, "env"),
    ({**START, "tty": 0}, StartParams, "tty"),
    ({**START, "tty": "true"}, StartParams, "tty"),
    ({**START, "pipeStdin": None}, StartParams, "pipeStdin"),
    ({**START, "envPolicy": {"inherit": "all"}}, StartParams, "envPolicy"),
    ({**START, "size": {"rows": 24}}, StartParams, "size"),
    ({**START, "managedNetwork": {"loopbackPorts": [65_536]}}, StartParams, "managedNetwork"),
    ({"clientName": "x", "detachTtlMs": -1}, InitializeParams, "detachTtlMs"),
    ({"clientName": "x", "detachTtlMs": 1.0}, InitializeParams, "detachTtlMs"),
    ({"clientName": None}, InitializeParams, "clientName"),
    ([], Empty, ""),
    ({"a": None}, Empty, "a"),
    ("", Empty, ""),
    (0, Empty, ""),
]


@pytest.mark.parametrize(("params", "shape"), GOOD_PARAMS)
def test_good_params_fit_their_shape(params: Any, shape: type[Any]) -> None:
    assert isinstance(codec.convert(params, shape), shape)


@pytest.mark.parametrize(("params", "shape", "field"), BAD_PARAMS)
def test_bad_params_are_refused_by_name(params: Any, shape: type[Any], field: str) -> None:
    with pytest.raises(RpcError) as caught:
        codec.convert(params, shape)
    assert caught.value.code == INVALID_PARAMS
    assert field in str(caught.value)


@pytest.mark.parametrize("field", START)
def test_a_missing_member_is_named(field: str) -> None:
    with pytest.raises(RpcError, match=f"`{field}`"):
        codec.convert({k: v for k, v in START.items() if k != field}, StartParams)


# --- messages we send ------------------------------------------------------------------------


@given(
    st.integers(-(2**63), 2**63 - 1) | st.text(), st.text(), st.lists(st.text() | st.integers(0))
)
def test_what_we_write_we_can_read(request_id: int | str, method: str, params: Any) -> None:
    params = [p for p in params if not isinstance(p, int) or p < 2**64]
    read = codec.decode
    assert read(codec.request_message(request_id, method, params)) == Request(
        request_id, method, params
    )
    assert read(codec.notification_message(method, params)) == Notification(method, params)
    assert read(codec.result_message(request_id, params)) == Response(request_id, params)
    assert read(codec.error_message(request_id, -32600, method)) == ErrorResponse(
        request_id, -32600, method
    )
    assert read(codec.error_message(request_id, -32600, method, params)) == ErrorResponse(
        request_id, -32600, method, params
    )


def test_nothing_we_write_names_a_version_or_breaks_a_line() -> None:
    message = codec.result_message(1, {"text": "a\nb"})
    assert b"jsonrpc" not in message
    assert b"\n" not in message
    assert message == b'{"id":1,"result":{"text":"a\\nb"}}'


def test_an_error_without_data_has_no_such_member() -> None:
    assert b"data" not in codec.error_message(1, -1, "no")
    assert msgspec.json.decode(codec.error_message("a", -1, "no", 0))["error"]["data"] == 0


# --- written as we write it ------------------------------------------------------------------


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_both_ways_to_read_a_message_agree(value: Any) -> None:
    """The quick one, and the strict one that everything takes which is written otherwise."""
    for text in (
        msgspec.json.encode({"id": 1, "method": "m", "params": value}),
        json.dumps({"id": 1, "method": "m", "params": value}).encode(),
        json.dumps({"id": 1, "method": "m", "params": value}, separators=(",", ":")).encode(),
    ):
        try:
            strict = codec._value(text.decode())
        except RemoteProtocolError:
            assert codec._canonical(text) is None
            continue
        quick = codec._canonical(text)
        assert quick is None or quick == strict
        assert quick is None or msgspec.json.encode(quick) == text


@pytest.mark.parametrize(
    "params",
    [
        '{"a":1,"a":1}',
        '{"a":1,"a":2}',
        "NaN",
        '"\\ud800"',
        "[" * 130 + "]" * 130,
    ],
)
def test_what_the_strict_way_refuses_the_quick_one_does_not_read(params: str) -> None:
    assert codec._canonical(with_params(params).encode()) is None
    refusal(with_params(params))


def test_our_own_messages_are_read_quickly() -> None:
    text = codec.request_message(7, "process/start", {"argv": ["ü", "\n"], "env": {}, "n": 1.5})
    assert codec._canonical(text) == json.loads(text)
    assert codec._canonical(text.decode()) == json.loads(text)


@pytest.mark.parametrize(
    "permissions", [{"type": "disabled"}, {"type": "external", "network": "restricted"}]
)
def test_a_member_may_be_one_of_several_shapes(permissions: dict[str, Any]) -> None:
    given = {"permissions": permissions, "cwd": "file:///", "windowsSandboxLevel": "disabled"}
    found = codec.convert(given, SandboxParams)
    assert type(found.permissions).__name__.lower() == permissions["type"]
