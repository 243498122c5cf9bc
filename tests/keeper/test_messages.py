"""Messages from one end of a link to the other."""

from __future__ import annotations

import array
import os
import resource
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.keeper import messages

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    here, there = messages.pair()
    with here, there:
        here.settimeout(5)
        there.settimeout(5)
        yield here, there


def _passed(ends: Ends, fields: list[bytes], fds: tuple[int, ...] = ()) -> messages.Message:
    here, there = ends
    messages.send(here, messages.SPAWN, 7, fields, fds)
    message = messages.receive(there)
    assert message is not None
    assert (message.op, message.serial) == (messages.SPAWN, 7)
    return message


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 0x7F),
    st.integers(0, 0xFFFFFFFF),
    st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\0", b"")), min_size=1),
)
def test_round_trip(op: int, serial: int, fields: list[bytes]) -> None:
    here, there = messages.pair()
    with here, there:
        messages.send(here, op, serial, fields)
        message = messages.receive(there)
    assert message is not None
    # One empty field is no field: nobody sends it.
    assert (message.op, message.serial) == (op, serial)
    assert message.fields == ([] if fields == [b""] else fields)
    assert message.fds == []


@pytest.mark.parametrize("size", [messages.PACKET_LIMIT - 1, messages.PACKET_LIMIT])
def test_largest_packet(ends: Ends, size: int) -> None:
    assert _passed(ends, [b"x" * size]).fields == [b"x" * size]


@pytest.mark.parametrize("size", [messages.PACKET_LIMIT + 1, 3_000_000])
def test_big_body_travels_in_a_memfd_that_nobody_keeps(ends: Ends, size: int) -> None:
    body = os.urandom(size).replace(b"\0", b"1")
    before = len(os.listdir("/proc/self/fd"))
    message = _passed(ends, [body[: size // 3], body[size // 3 :]])
    assert message.fields == [body[: size // 3], body[size // 3 :]]
    assert message.fds == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("size", [3, messages.PACKET_LIMIT + 1])
@pytest.mark.parametrize("count", [1, 5, 15])
def test_descriptors_keep_their_order_beside_any_body(ends: Ends, size: int, count: int) -> None:
    pipes = [os.pipe() for _ in range(count)]
    message = _passed(ends, [b"x" * size], tuple(write for _, write in pipes))
    assert len(message.fds) == count
    for at, fd in enumerate(message.fds):
        assert not os.get_inheritable(fd)
        os.write(fd, b"%d" % at)
        assert os.read(pipes[at][0], 9) == b"%d" % at
    message.close()
    assert message.fds == []
    for read, write in pipes:
        os.close(read)
        os.close(write)


def test_packets_are_kept_apart(ends: Ends) -> None:
    here, there = ends
    for number in range(50):
        messages.send(here, messages.SIGNAL, number, [b"%d" % number])
    got = [messages.receive(there) for _ in range(50)]
    assert [m.serial for m in got if m] == list(range(50))
    assert [m.fields for m in got if m] == [[b"%d" % n] for n in range(50)]


def test_messages_in_one_packet_come_apart_with_their_own_descriptors(ends: Ends) -> None:
    here, there = ends
    pipes = [os.pipe() for _ in range(2)]
    fds = [fd for pipe in pipes for fd in pipe]
    messages.send_many(
        here,
        [
            (messages.SPAWNED, 7, [b"a", b""], fds[:3]),
            (messages.EXITED, 0, [], []),
            (messages.SPAWNED, 8, [b"b"], fds[3:]),
        ],
    )
    first, second, third = messages.receive_all(there)
    assert (first.op, first.serial, first.fields) == (messages.SPAWNED, 7, [b"a", b""])
    assert (second.op, second.fields, second.fds) == (messages.EXITED, [], [])
    assert (third.serial, third.fields) == (8, [b"b"])
    came = [*first.fds, *third.fds]
    assert [os.fstat(fd).st_ino for fd in came] == [os.fstat(fd).st_ino for fd in fds]
    for fd in (*fds, *came):
        os.close(fd)


def test_one_message_of_several_is_sent_as_itself(ends: Ends) -> None:
    here, there = ends
    messages.send_many(here, [(messages.DONE, 3, [b"x"], [])])
    message = messages.receive(there)
    assert message is not None
    assert (message.op, message.serial, message.fields) == (messages.DONE, 3, [b"x"])


def test_a_field_with_a_nul_is_refused_among_several_messages(ends: Ends) -> None:
    here, there = ends
    parts: list[messages.Outgoing] = [
        (messages.DONE, 1, [], []),
        (messages.DONE, 2, [], []),
        (messages.DONE, 3, [b"a\0"], []),
    ]
    assert messages.send_many(here, parts) == 2
    with pytest.raises(ValueError, match="NUL"):
        messages.send_many(here, parts[2:])
    assert [message.serial for message in messages.receive_all(there)] == [1, 2]


@pytest.mark.parametrize(
    ("size", "fds", "most"), [(25_000, 0, 2), (59_000, 0, 1), (70_000, 0, 1), (10, 100, 2)]
)
def test_a_packet_takes_as_many_messages_as_fit(ends: Ends, size: int, fds: int, most: int) -> None:
    here, there = ends
    parts: list[messages.Outgoing] = [
        (messages.DONE, number, [b"x" * size], [2] * fds) for number in range(5)
    ]
    found: list[int] = []
    while parts:
        sent = messages.send_many(here, parts)
        heard = messages.receive_all(there)
        assert len(heard) == sent <= most
        del parts[:sent]
        for message in heard:
            assert (len(message.fields[0]), len(message.fds)) == (size, fds)
            found.append(message.serial)
            message.close()
    assert found == list(range(5))


@pytest.mark.parametrize(
    "parts",
    [
        b"",
        b"short",
        struct.pack("<BIIB", messages.DONE, 1, 9, 0) + b"too short",
        struct.pack("<BIIB", messages.DONE, 1, 10, 0) + b"too short",
        struct.pack("<BIIB", messages.DONE, 1, 0, 0),
    ],
    ids=["none", "half a head", "a descriptor of no message", "half a body", "the same, empty"],
)
def test_a_broken_packet_of_several_is_an_error_of_the_link(ends: Ends, parts: bytes) -> None:
    here, there = ends
    before = len(os.listdir("/proc/self/fd"))
    rights = array.array("i", [0])
    packet = struct.pack("<BI", messages.MANY, 0) + parts
    here.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    with pytest.raises(OSError, match="one version"):
        messages.receive_all(there)
    assert len(os.listdir("/proc/self/fd")) == before


def test_several_where_one_is_expected_are_an_error_of_the_link(ends: Ends) -> None:
    here, there = ends
    messages.send_many(here, [(messages.DONE, 1, [], [0]), (messages.DONE, 2, [], [])])
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="several"):
        messages.receive(there)
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_room_only_the_last_messages_of_a_packet_lack_descriptors(ends: Ends) -> None:
    here, there = ends
    before = sorted(map(int, os.listdir("/proc/self/fd")))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    messages.send_many(here, [(messages.SPAWNED, n, [b"%d" % n], [0, 1]) for n in range(3)])
    used = os.open("/dev/null", os.O_RDONLY)  # the lowest number that is free
    os.close(used)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, hard))
        first, second, third = messages.receive_all(there)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (first.cut, len(first.fds), first.fields) == (False, 2, [b"0"])
    assert (second.cut, second.fds, second.fields) == (True, [], [b"1"])
    assert (third.cut, third.fds, third.fields) == (True, [], [b"2"])
    first.close()
    assert sorted(map(int, os.listdir("/proc/self/fd"))) == before


def test_the_other_end_gone_is_none(ends: Ends) -> None:
    here, there = ends
    messages.send(here, messages.STOP)
    here.close()
    assert isinstance(messages.receive(there), messages.Message)  # what was sent before comes first
    assert messages.receive(there) is None


def test_idle_and_full_say_so(ends: Ends) -> None:
    here, there = ends
    here.setblocking(False)
    there.setblocking(False)
    with pytest.raises(BlockingIOError):
        messages.receive(there)
    with pytest.raises(BlockingIOError):
        for _ in range(100_000):
            messages.send(here, messages.SIGNAL, 1, [b"x" * 1000])


@pytest.mark.parametrize("packet", [b"\x01", b"\x01\0\0\0"])
def test_a_packet_without_a_whole_head_is_an_error_of_the_link(ends: Ends, packet: bytes) -> None:
    here, there = ends
    here.send(packet)
    with pytest.raises(OSError, match="one version"):
        messages.receive(there)


def test_a_big_body_without_its_memfd_is_an_error_of_the_link(ends: Ends) -> None:
    here, there = ends
    here.send(b"\x82\0\0\0\0")
    with pytest.raises(OSError, match="one version"):
        messages.receive(there)


def test_a_field_with_a_nul_is_refused_before_it_shifts_the_others(ends: Ends) -> None:
    here, there = ends
    with pytest.raises(ValueError, match="NUL"):
        messages.send(here, messages.SPAWN, 1, [b"a\0LD_PRELOAD=x", b"b"])
    there.setblocking(False)
    with pytest.raises(BlockingIOError):
        messages.receive(there)


@pytest.mark.parametrize("size", [3, messages.PACKET_LIMIT + 1])
def test_no_room_for_descriptors_is_told_and_closes_those_that_came(ends: Ends, size: int) -> None:
    here, there = ends
    read, write = os.pipe()
    messages.send(here, messages.SPAWN, 9, [b"x" * size], (read, write))
    used = max(map(int, os.listdir("/proc/self/fd")))
    spare = [os.dup(0) for _ in range(8)]
    used = max(spare)
    os.close(spare.pop())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, before[1]))
    try:
        message = messages.receive(there)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in (*spare, read, write):
            os.close(fd)
    assert message is not None
    assert message.cut
    assert (message.op, message.serial, message.fds) == (messages.SPAWN, 9, [])


# --- fields --------------------------------------------------------------------------------------

_WORD = st.binary(max_size=8).map(lambda word: word.replace(b"\0", b""))
_VALUES: dict[str, st.SearchStrategy[object]] = {
    "bytes": _WORD,
    "int": st.integers(),
    "bool": st.booleans(),
    "int | None": st.none() | st.integers(),
    "float | None": st.none() | st.floats(allow_nan=False),
    "list[bytes]": st.lists(_WORD),
    "list[int]": st.lists(st.integers()),
    "dict[bytes, bytes]": st.dictionaries(_WORD, _WORD),
    "dict[bytes, int]": st.dictionaries(_WORD, st.integers()),
    "float": st.floats(allow_nan=False),
    "tuple[bytes, ...]": st.lists(_WORD).map(tuple),
}


@pytest.mark.parametrize("kind", messages.Fields.__subclasses__(), ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_fields_come_as_they_were_sent(kind: type[messages.Fields], data: st.DataObject) -> None:
    kinds = kind.__annotations__
    values = {name: data.draw(_VALUES[of]) for name, of in kinds.items()}
    packed = kind(**values).pack()
    assert kind.unpack(packed) == kind(**values) == tuple(values.values())
    with pytest.raises(ValueError, match=kind.__name__):
        kind.unpack([])
    if not list(kinds.values())[-1].startswith("tuple"):
        with pytest.raises(ValueError, match=kind.__name__):
            kind.unpack(packed[:-1])
        with pytest.raises(ValueError, match=kind.__name__):
            kind.unpack([*packed, b"more"])


def test_a_word_with_a_nul_is_refused_before_it_shifts_the_others() -> None:
    with pytest.raises(ValueError, match="NUL"):
        messages.Signal(b"1\0kill", 9, messages.SCOPE_TREE).pack()


def test_words_and_numbers_are_packed_without_their_message() -> None:
    exited = (b"7", 256, 1, 2, 3, True)
    assert messages.Exited.packed(*exited) == messages.Exited(*exited).pack()
    with pytest.raises(ValueError, match="NUL"):
        messages.Spawned.packed(b"a\0b", 1, 2)
    with pytest.raises(TypeError):
        messages.Spawned.packed(b"a", 1)
