"""Frames: what is taken, what is refused and with which code, however the input is cut."""

from __future__ import annotations

import itertools
import os
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.transport.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Close,
    Event,
    FrameDecoder,
    FrameError,
    Ping,
    Pong,
    close_payload,
    frame_header,
    masked_frame,
)
from handrail.transport.masking import apply_mask
from handrail.transport.message_limits import MESSAGE_LIMIT
from tests.support.raw_sockets import client_frame


def pull(decoder: FrameDecoder) -> list[Event]:
    events = []
    while (event := decoder.next_event()) is not None:
        events.append(event)
    return events


def decode(
    data: bytes, *, masked: bool = True, limit: int = 1000, cuts: tuple[int, ...] = ()
) -> list[object]:
    """All events of the input, fed in pieces; an error is the last entry, as its code."""
    decoder = FrameDecoder(masked=masked, limit=limit)
    events: list[object] = []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    try:
        for start, end in itertools.pairwise(edges):
            decoder.feed(data[start:end])
            while (event := decoder.next_event()) is not None:
                events.append(event)
    except FrameError as error:
        events.append(error.code)
    return events


def server_frame(opcode: int, payload: bytes, *, first: int | None = None) -> bytes:
    header = frame_header(opcode, len(payload))
    return (header if first is None else bytes((first,)) + header[1:]) + payload


def test_a_text_message_is_a_str_and_a_binary_one_is_bytes() -> None:
    data = client_frame(TEXT, "grüß".encode()) + client_frame(BINARY, b"\xff\x00")
    assert decode(data) == ["grüß", b"\xff\x00"]


def test_an_empty_message_is_a_message() -> None:
    assert decode(client_frame(TEXT, b"") + client_frame(BINARY, b"")) == ["", b""]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 70000])
@pytest.mark.parametrize("masked", [True, False])
def test_every_form_of_length_round_trips(size: int, masked: bool) -> None:
    payload = os.urandom(size)
    make = client_frame if masked else server_frame
    assert decode(make(BINARY, payload), masked=masked, limit=size) == [payload]


def test_fragments_make_one_message_with_control_frames_in_between() -> None:
    umlaut = "ü".encode()
    data = (
        client_frame(TEXT, b"a" + umlaut[:1], first=TEXT)
        + client_frame(PING, b"p")
        + client_frame(CONTINUATION, b"", first=CONTINUATION)
        + client_frame(PONG, b"q")
        + client_frame(CONTINUATION, umlaut[1:] + b"b")
        + client_frame(TEXT, b"next")
    )
    assert decode(data) == [Ping(b"p"), Pong(b"q"), "aüb", "next"]


def test_fragments_may_hold_more_than_one_frame() -> None:
    """As with the released server, where a frame has 16 MiB and a message 64."""
    stream = client_frame(BINARY, b"x" * 1000, first=BINARY)
    stream += client_frame(CONTINUATION, b"y" * 1000, first=CONTINUATION) * 2
    stream += client_frame(CONTINUATION, b"z" * 1000)
    assert [len(event) for event in decode(stream, masked=True, limit=1000)] == [4000]


def test_an_empty_last_fragment_ends_the_message() -> None:
    data = client_frame(BINARY, b"ab", first=BINARY) + client_frame(CONTINUATION, b"")
    assert decode(data) == [b"ab"]


REFUSED = {
    "reserved bit 1": (client_frame(TEXT, b"x", first=0xC1), 1002),
    "reserved bit 3": (client_frame(PING, b"", first=0x99), 1002),
    "reserved data opcode": (client_frame(3, b"x"), 1002),
    "reserved control opcode": (client_frame(11, b"x"), 1002),
    "no mask": (server_frame(TEXT, b"x"), 1002),
    "no mask on a control frame": (server_frame(PING, b"x"), 1002),
    "fragmented ping": (client_frame(PING, b"", first=PING), 1002),
    "control frame of 126 bytes": (client_frame(PING, b"x" * 126), 1002),
    "continuation first": (client_frame(CONTINUATION, b"x"), 1002),
    "text inside text": (client_frame(TEXT, b"a", first=TEXT) + client_frame(TEXT, b"b"), 1002),
    "length with its top bit": (b"\x81\xff" + b"\xff" * 12, 1002),
    "close of one byte": (client_frame(CLOSE, b"x"), 1002),
    "close code 999": (client_frame(CLOSE, b"\x03\xe7"), 1002),
    "close code 1005": (client_frame(CLOSE, (1005).to_bytes(2, "big")), 1002),
    "close code 1015": (client_frame(CLOSE, (1015).to_bytes(2, "big")), 1002),
    "close code 2999": (client_frame(CLOSE, (2999).to_bytes(2, "big")), 1002),
    "close code 5000": (client_frame(CLOSE, (5000).to_bytes(2, "big")), 1002),
    "close reason not UTF-8": (client_frame(CLOSE, b"\x03\xe8\xff"), 1002),
    "text not UTF-8": (client_frame(TEXT, b"\xff"), 1007),
    "text ends inside a character": (client_frame(TEXT, "ü".encode()[:1]), 1007),
    "a surrogate": (client_frame(TEXT, b"\xed\xa0\x80"), 1007),
    "fragmented text not UTF-8": (
        client_frame(TEXT, b"\xc3", first=TEXT) + client_frame(CONTINUATION, b"a"),
        1007,
    ),
    "over the limit": (client_frame(BINARY, b"x" * 1001), 1009),
    "a fragment over the limit": (
        client_frame(BINARY, b"x", first=BINARY) + client_frame(CONTINUATION, b"x" * 1001),
        1009,
    ),
    "fragments over four times the limit": (
        client_frame(BINARY, b"x" * 600, first=BINARY)
        + client_frame(CONTINUATION, b"x" * 900, first=CONTINUATION) * 3
        + client_frame(CONTINUATION, b"x" * 701),
        1009,
    ),
}


@pytest.mark.parametrize(("data", "code"), REFUSED.values(), ids=REFUSED)
def test_violations_get_their_code_however_they_are_cut(data: bytes, code: int) -> None:
    assert decode(data) == [code]
    assert decode(data, cuts=tuple(range(len(data)))) == [code]


def test_a_client_refuses_masked_frames() -> None:
    assert decode(client_frame(TEXT, b"x"), masked=False) == [1002]


@pytest.mark.parametrize("code", [1000, 1003, 1007, 1011, 1014, 3000, 4999])
def test_a_close_frame_carries_code_and_reason(code: int) -> None:
    assert decode(client_frame(CLOSE, close_payload(code, "adé"))) == [Close(code, "adé")]


def test_a_close_frame_may_be_empty_and_ends_everything() -> None:
    data = client_frame(CLOSE, b"") + client_frame(TEXT, b"late") + b"\xff\xff\xff"
    assert decode(data) == [Close(1005, "")]
    assert close_payload(1005, "never sent") == b""


@pytest.mark.parametrize("reason", ["x" * 200, "ü" * 100, "a" + "ü" * 100, "😀" * 40, "\ud800"])
def test_a_long_reason_is_cut_between_characters(reason: str) -> None:
    payload = close_payload(1000, reason)
    assert 2 < len(payload) <= 125
    payload[2:].decode()


def test_a_length_is_refused_as_soon_as_it_is_announced() -> None:
    decoder = FrameDecoder(masked=True)
    tracemalloc.start()
    try:
        decoder.feed(b"\x82\xff" + (2**62).to_bytes(8, "big"))
        with pytest.raises(FrameError) as caught:
            decoder.next_event()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert caught.value.code == 1009


@pytest.mark.parametrize(("size", "expected"), [(MESSAGE_LIMIT, True), (MESSAGE_LIMIT + 1, False)])
def test_the_limit_is_exact(size: int, expected: bool) -> None:
    decoder = FrameDecoder(masked=True)
    decoder.feed(b"\x82\xff" + size.to_bytes(8, "big") + b"mask")
    if expected:
        assert decoder.next_event() is None
    else:
        with pytest.raises(FrameError, match="16777216"):
            decoder.next_event()


def test_a_large_message_leaves_nothing_behind() -> None:
    payload = bytes(MESSAGE_LIMIT)
    frame = client_frame(BINARY, payload)
    decoder = FrameDecoder(masked=True)
    tracemalloc.start()
    try:
        for _ in range(2):
            for start in range(0, len(frame), 262144):
                decoder.feed(frame[start : start + 262144])
                events = pull(decoder)
            assert events == [payload]
            del events
            assert tracemalloc.get_traced_memory()[0] < 1_000_000
        # Neither does a read of which a few bytes are left over.
        decoder.feed(client_frame(BINARY, bytes(200_000)) + b"\x82")
        assert len(pull(decoder)) == 1
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_events_wait_until_they_are_pulled() -> None:
    decoder = FrameDecoder(masked=True)
    decoder.feed(client_frame(TEXT, b"1") + client_frame(TEXT, b"2"))
    assert decoder.next_event() == "1"
    decoder.feed(client_frame(TEXT, b"3"))
    assert pull(decoder) == ["2", "3"]


@settings(deadline=None)
@given(data=st.binary(max_size=200), mask=st.binary(min_size=4, max_size=4))
def test_masking_is_a_xor(data: bytes, mask: bytes) -> None:
    assert apply_mask(data, mask) == bytes(b ^ mask[i % 4] for i, b in enumerate(data))


@pytest.mark.parametrize("size", [16383, 16384, 16385, 32768, 50001])
def test_masking_large_data_is_the_same_xor(size: int) -> None:
    data, mask = os.urandom(size), os.urandom(4)
    assert apply_mask(data, mask) == bytes(b ^ mask[i % 4] for i, b in enumerate(data))


def test_a_masked_frame_hides_its_payload() -> None:
    head, body = masked_frame(TEXT, b"secret", b"\x01\x02\x03\x04")
    assert head == b"\x81\x86\x01\x02\x03\x04"
    assert body != b"secret"


PIECES = st.one_of(
    st.builds(client_frame, st.sampled_from([TEXT, BINARY]), st.binary(max_size=300)),
    st.builds(
        client_frame, st.sampled_from([CONTINUATION, PING, PONG, CLOSE]), st.binary(max_size=130)
    ),
    st.builds(
        lambda opcode, payload: client_frame(opcode, payload, first=opcode),
        st.sampled_from([TEXT, BINARY, CONTINUATION]),
        st.binary(max_size=300),
    ),
    st.text(max_size=300).map(lambda text: client_frame(TEXT, text.encode())),
    st.binary(max_size=6),
)


@settings(deadline=None)
@given(
    pieces=st.lists(PIECES, max_size=8),
    cuts=st.lists(st.integers(0, 1500), max_size=12),
    masked=st.booleans(),
)
def test_the_outcome_does_not_depend_on_the_cuts(
    pieces: list[bytes], cuts: list[int], masked: bool
) -> None:
    stream = b"".join(pieces)
    whole = decode(stream, masked=masked, limit=500)
    assert decode(stream, masked=masked, limit=500, cuts=tuple(cuts)) == whole


@settings(deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_no_input_raises_anything_else(data: bytes, masked: bool) -> None:
    decode(data, masked=masked, limit=100)


@settings(deadline=None)
@given(st.lists(st.one_of(st.text(max_size=200), st.binary(max_size=200)), max_size=10))
def test_what_is_sent_is_what_arrives(messages: list[str | bytes]) -> None:
    stream = b"".join(
        client_frame(TEXT, message.encode())
        if isinstance(message, str)
        else client_frame(BINARY, message)
        for message in messages
    )
    assert decode(stream) == messages
