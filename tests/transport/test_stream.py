"""What all connections share, on a transport that is moved by hand."""

from __future__ import annotations

import asyncio

import pytest

from handrail.transport.line_framing import LineConnection
from tests.transport.transport_kit import Recorder


class HandTransport(asyncio.Transport):
    """Takes nothing by itself; ``size`` is what it says is unsent."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self.aborted = asyncio.Event()
        self.reading = True
        self.written = b""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def get_write_buffer_size(self) -> int:
        return self.size

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: object) -> None:
        self.write(b"".join(list_of_data))  # type: ignore[arg-type]

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted.set()


def opened(receiver: Recorder, close_timeout: float = 60.0) -> tuple[LineConnection, HandTransport]:
    transport = HandTransport()
    line = LineConnection(receiver, "hand", limit=1000, close_timeout=close_timeout)
    line.connection_made(transport)
    return line, transport


async def test_closing_is_granted_more_time_only_while_it_progresses() -> None:
    line, transport = opened(Recorder())
    transport.size = 300
    line.close()
    for transport.size in (200, 100, 0):
        line._check_closing()
        assert not transport.aborted.is_set()
    line._check_closing()
    assert transport.aborted.is_set()
    line.connection_lost(None)
    line.connection_lost(None)


async def test_closing_ends_at_its_total_even_with_progress() -> None:
    line, transport = opened(Recorder())
    transport.size = 300
    line.close()
    line._close_before = asyncio.get_running_loop().time()
    transport.size = 200
    line._check_closing()
    assert transport.aborted.is_set()
    line.connection_lost(None)


@pytest.mark.parametrize("call", ["pause_writing", "resume_writing"])
async def test_a_receiver_that_fails_in_any_callback_is_closed(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Recorder):
        def pause_writing(self) -> None:
            raise ValueError("mine")

        resume_writing = pause_writing

    receiver = Failing()
    line, _ = opened(receiver)
    getattr(line, call)()
    getattr(line, call)()  # not told any more: it is closing
    line.connection_lost(None)
    assert "1011" in await receiver.until_lost()

    assert caplog.text.count("ValueError: mine") == 1


async def test_the_socket_is_stopped_only_when_something_is_left_over() -> None:
    receiver = Recorder(lambda self, _: self.transport.pause_reading())
    line, transport = opened(receiver)
    line.data_received(b"1\n")
    assert transport.reading
    line.resume_reading()
    line.data_received(b"2\n3\n")
    assert not transport.reading
    line.resume_reading()
    await receiver.until_messages(3)
    assert not transport.reading  # the decoder has not been asked yet whether it is dry
    line.resume_reading()
    await asyncio.sleep(0)
    assert transport.reading
    line.abort()
    line.connection_lost(None)
    assert await receiver.until_lost() == "dropped by this side"


async def test_an_error_of_the_line_is_told() -> None:
    receiver = Recorder()
    line, transport = opened(receiver)
    line.send(b"a", b"b")
    assert transport.written == b"ab\n"
    line.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
    assert "reset" in await receiver.until_lost()
    assert line.buffered == 0


class CountingTransport(HandTransport):
    """Counts the calls that write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))


def counted(receiver: Recorder) -> tuple[LineConnection, CountingTransport]:
    transport = CountingTransport()
    line = LineConnection(receiver, "hand", limit=1_000_000)
    line.connection_made(transport)
    return line, transport


async def test_what_is_gathered_is_written_in_one_piece() -> None:
    line, transport = counted(Recorder())
    line.gather()
    line.send(b"1")
    line.send(b"2")
    assert (transport.writes, line.buffered) == ([], 4)
    line.write_gathered()
    line.send(b"3")
    assert (transport.writes, line.buffered) == ([b"1\n2\n", b"3\n"], 0)
    line.connection_lost(None)


async def test_what_is_gathered_is_written_when_the_turn_ends() -> None:
    line, transport = counted(Recorder())
    line.gather()
    line.send(b"1")
    await asyncio.sleep(0)
    assert transport.writes == [b"1\n"]
    line.connection_lost(None)


async def test_what_is_gathered_for_a_while_is_written_then_or_before() -> None:
    line, transport = counted(Recorder())
    for early in (True, False):
        transport.writes.clear()
        line.gather(0.01)
        line.send(b"1")
        line.gather()  # within the time: it goes on
        line.send(b"2")
        await asyncio.sleep(0)
        assert transport.writes == []
        if early:
            line.write_gathered()
        else:
            await asyncio.sleep(0.05)
        assert transport.writes == [b"1\n2\n"]
        line.send(b"3")
        assert transport.writes == [b"1\n2\n", b"3\n"]
    line.gather(0.01)
    line.send(b"4")
    line.connection_lost(None)
    await asyncio.sleep(0.05)
    assert len(transport.writes) == 2


async def test_what_is_gathered_is_written_before_the_end() -> None:
    line, transport = counted(Recorder())
    line.gather()
    line.send(b"1")
    line.close()
    assert transport.writes == [b"1\n"]
    line.connection_lost(None)
    await asyncio.sleep(0)
    assert transport.writes == [b"1\n"]


async def test_answers_to_messages_that_came_together_are_written_together() -> None:
    receiver = Recorder(lambda self, data: self.transport.send(bytes(data, "utf-8") * 10))
    line, transport = counted(receiver)
    line.data_received(b"a\n")
    assert transport.writes == [b"a" * 10 + b"\n"]
    line.data_received(b"b\nc\nd\n")
    assert transport.writes[1:] == [b"b" * 10 + b"\n", b"c" * 10 + b"\n" + b"d" * 10 + b"\n"]
    line.data_received(b"e" * 2000 + b"\n" + b"f" * 2000 + b"\n" + b"g\n")
    assert len(transport.writes) == 6  # more than a few KiB are not held back
    line.connection_lost(None)
