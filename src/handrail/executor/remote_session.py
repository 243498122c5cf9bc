"""One process of another machine: events put in order, gaps filled, calls made.

Notifications carry the output; ``process/read`` fills in what a lost connection or a lost
notification left out.  Input carries ids, so that what is sent again is written once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from handrail.errors import (
    ConnectionLost,
    ExecutorTransportFailed,
    HandrailError,
    RemoteProtocolError,
    ResizeFailed,
    RpcError,
    TerminateFailed,
    TransportError,
    UsageError,
    WriteFailed,
)
from handrail.executor.argument_checks import check_grace, check_size
from handrail.executor.base import Denied, OutputKind, WaitOutcome
from handrail.executor.client.rpc import CallTimedOut, RpcConnection
from handrail.executor.client.session import ExecServerClient
from handrail.executor.output.buffered_session import BufferedSession, UnfinishedLine
from handrail.executor.output.reorder import Closed, Event, EventOrder, Exited, Output
from handrail.executor.remote_wait import wait_far
from handrail.executor.wait_for import Looking, Patience
from handrail.process.exit_status import ExitInfo, ExitKind, Usage
from handrail.process.signal_names import signal_number
from handrail.protocol import codec
from handrail.protocol.envelope import INVALID_PARAMS
from handrail.protocol.network import PolicyDecisionNotification
from handrail.protocol.process import (
    LIMITS,
    ClosedNotification,
    ExitedNotification,
    OutputNotification,
    ReadResult,
)

if TYPE_CHECKING:
    from handrail.network.managed.start import NetworkAnswer, NetworkRequest

#: How long a gap in the sequence numbers may last before it is filled by a read.
_GAP_SECONDS = 0.1
_READ_TIMEOUT = 10.0
_READ_TRIES = 8
#: How long ``terminate`` waits for the exit event after the KILL.
_KILL_SECONDS = 5.0
#: Input is sent in pieces of this size: a message has at most 16 MiB.
_WRITE_BYTES = 1024 * 1024
_STARTING_SECONDS = 0.02
#: The longest delay between two writes to a full stdin.
_FULL_SECONDS = 0.2
_ANSWER_SECONDS = 5.0
_LIMITS: dict[object, str] = {wire: name for name, wire in LIMITS.items()}
#: For servers that name the limit only where the kind leaves it open.
_LIMIT_OF_KIND = {"outOfMemory": "memory", "evicted": "output"}


class RemoteSession(BufferedSession):
    """One process of a server, as its caller sees it."""

    def __init__(
        self,
        client: ExecServerClient,
        process_id: str,
        *,
        tty: bool,
        timeout: float | None,
        detached: bool = False,
        network: NetworkRequest | None = None,
    ) -> None:
        super().__init__(process_id, self._hold)
        self._network = network
        #: Open questions about hosts, by host and port: asked again after a lost connection.
        self._questions: dict[tuple[str, int], asyncio.Task[NetworkAnswer]] = {}
        self._client = client
        self._tty = tty
        self._timeout = timeout
        self.detached = detached
        self._order = EventOrder()
        self._denied = Denied(likely=False)
        self._asked_to_end = False
        self._writes = 0
        self._line = UnfinishedLine()
        self._writing = asyncio.Lock()
        self._gap: asyncio.TimerHandle | None = None
        self._filling: asyncio.Task[None] | None = None
        #: Whether the server has confirmed the process; earlier events are kept.
        self.started = False
        #: It was left before: its server may have stored output that is not in its memory any more.
        self.has_past = False

    def subscribe_output(self, *, paced: bool = False) -> Any:
        if not self.has_past:
            return super().subscribe_output(paced=paced)
        from handrail.executor.stored.reader import PastReader

        return PastReader(self._history, self.find_stored, paced=paced)

    async def first_after(self, at: float) -> int:
        from handrail.executor.stored.reader import first_after

        stored = await self.find_stored()
        return 0 if stored is None else await first_after(stored, at)

    async def find_stored(self) -> Any:
        """The stored result of the process; None: there is none."""
        from handrail.executor.stored.source import find_result

        for session in (self._client.session_id or "", "")[: 2 if self.detached else 1]:
            found = await find_result(session, self.process_id, self._client, self._timeout)
            if found is not None:
                return found
        return None

    # --- Route: events of the server ------------------------------------------------------------

    def notified(self, method: str, params: Any) -> None:
        if method == "process/output":
            output = (
                params
                if isinstance(params, OutputNotification)
                else msgspec.convert(params, OutputNotification)
            )
            data = codec.decode_base64(output.chunk, "chunk")
            self._take(output.seq, Output(output.stream, data))
        elif method == "process/exited":
            gone = (
                params
                if isinstance(params, ExitedNotification)
                else msgspec.convert(params, ExitedNotification)
            )
            self._take(
                gone.seq,
                Exited(
                    gone.exit_code,
                    gone.sandbox_denied,
                    gone.exit or None,
                    gone.usage or None,
                    tuple(gone.denials or ()),
                ),
            )
        elif method == "process/closed":
            closed = (
                params
                if isinstance(params, ClosedNotification)
                else msgspec.convert(params, ClosedNotification)
            )
            self._take(closed.seq, Closed())
        elif self._network is not None and self._network.decided is not None:
            made = msgspec.convert(params, PolicyDecisionNotification)
            self._network.decided(made.decision, made.host, made.port)

    def asked(self, params: Any, respond: Callable[[Any], None]) -> None:
        from handrail.executor.network_question import asked, read, spoken

        question = read(params)
        key = question.host, question.port
        task = self._questions.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(asked(self._network, question))
            self._questions[key] = task
            task.add_done_callback(lambda _: self._questions.pop(key, None))

        def answered(done: asyncio.Task[NetworkAnswer]) -> None:
            if not done.cancelled():
                respond(spoken(done.result()))

        task.add_done_callback(answered)

    async def begin(self, *, caught_up: bool) -> None:
        """The server has confirmed the process; its first events may be missing."""
        self.started = True
        rpc = self._client.connection
        if rpc is not None and not caught_up:
            await self.catch_up(rpc)
        elif self._order.gap:
            self._fill()

    def _take(self, seq: int, event: Event) -> None:
        for number, ready in self._order.offer(seq, event):
            self._publish(number, ready)
        if not self._order.gap or self._history.failure is not None:
            return
        if self._order.overflows:
            self._fill()
        elif self._gap is None:
            self._gap = asyncio.get_running_loop().call_later(_GAP_SECONDS, self._fill)

    def _fill(self) -> None:
        """Fill a gap in the sequence numbers by a read."""
        if self._gap is not None:
            self._gap.cancel()
            self._gap = None
        rpc = self._client.connection
        if rpc is None or not self._order.gap or not self.started:
            return  # the resume or the start reads
        if self._filling is None or self._filling.done():
            self._filling = asyncio.get_running_loop().create_task(self.catch_up(rpc))

    async def catch_up(self, rpc: RpcConnection) -> None:
        if not self.started:
            return  # ``begin`` does it
        try:
            await self._read_missing(rpc)
        except ConnectionLost:
            pass  # it catches up after the next resume
        except CallTimedOut as error:
            rpc.drop(str(error))
        except (RpcError, RemoteProtocolError) as error:
            self._give_up(rpc, error)

    async def _read_missing(self, rpc: RpcConnection) -> None:
        for _ in range(_READ_TRIES):
            asked = self._order.last
            params = {"processId": self.process_id, "afterSeq": asked, "waitMs": 0}
            raw = await self._read(rpc, params)
            try:
                result = msgspec.convert(raw, ReadResult)
            except msgspec.ValidationError as error:
                raise RemoteProtocolError(f"a process/read that does not read: {error}") from None
            chunks = [
                (chunk.seq, Output(chunk.stream, codec.decode_base64(chunk.chunk, "chunk")))
                for chunk in result.chunks
            ]
            lost = result.omitted.bytes if result.omitted else 0
            for number, event in self._order.merge(result, chunks, asked, lost):
                self._publish(number, event)
            if self._order.last >= result.next_seq - 1 or self._history.ended:
                return
        raise RemoteProtocolError("what is missing of a process cannot be read")

    async def _read(self, rpc: RpcConnection, params: dict[str, Any]) -> Any:
        deadline = time.monotonic() + _READ_TIMEOUT
        while True:
            try:
                return await rpc.call("process/read", params, timeout=_READ_TIMEOUT)
            except RpcError as error:
                # A start that was cut may still be running on the server.
                if not error.message.endswith(" is starting") or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_STARTING_SECONDS)

    def _give_up(self, rpc: RpcConnection, error: Exception) -> None:
        """End this process, because it cannot be followed any more; others continue."""
        self.failed(ExecutorTransportFailed(f"process {self.process_id} is lost: {error}"))
        self._client.unfollow(self.process_id, self)
        params = {"processId": self.process_id}

        async def end() -> None:
            try:
                await rpc.call("process/terminate", params, timeout=_READ_TIMEOUT, reserved=True)
            except HandrailError:
                pass  # it ends with the session

        self._filling = asyncio.get_running_loop().create_task(end())

    def _publish(self, seq: int, event: Event) -> None:
        if isinstance(event, Output):
            kind = OutputKind.STDERR if event.stream == "stderr" else OutputKind.STDOUT
            self._history.add(kind, event.data, seq, event.omitted)
        elif isinstance(event, Exited):
            self._exit = self._exit_info(event)
            evidence = tuple(msgspec.to_builtins(denial) for denial in event.denials)
            self._denied = Denied(event.denied, evidence)
            for question in list(self._questions.values()):
                question.cancel()
            self._history.wake()
        else:
            self._history.end()
            self._client.unfollow(self.process_id, self)

    def _exit_info(self, event: Exited) -> ExitInfo:
        usage = None
        if event.usage is not None:
            used = event.usage
            usage = Usage(used.wall_ms, used.user_ms, used.system_ms, used.max_rss_bytes)
        if event.exit is not None:
            told = event.exit
            limit = _LIMITS.get(told.limit) or _LIMIT_OF_KIND.get(told.kind)
            try:
                kind = ExitKind.LIMIT_EXCEEDED if limit is not None else ExitKind(told.kind)
            except ValueError:
                kind = ExitKind.EXITED if told.code is not None else ExitKind.LOST
            return ExitInfo(kind, told.code, told.signal, told.core_dumped, usage, limit)
        if event.code is None or event.code < 0:
            return ExitInfo(ExitKind.LOST, None, usage=usage)
        kind = ExitKind.TERMINATED if self._asked_to_end else ExitKind.EXITED
        return ExitInfo(kind, event.code, usage=usage)

    def failed(self, error: HandrailError) -> None:
        self._history.fail(error)

    # --- called by the caller ------------------------------------------------------------------

    def _hold(self, back: bool) -> None:
        if back:
            self._client.hold(self)
        else:
            self._client.let_go(self)

    async def write(self, data: bytes, timeout: float | None = None) -> None:
        if self._exit is not None:
            raise WriteFailed(f"process {self.process_id} has exited; nothing was written")
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        view, at = memoryview(data), 0
        try:
            async with asyncio.timeout_at(deadline):
                await self._writing.acquire()
            try:
                for at in range(0, len(view) or 1, _WRITE_BYTES):
                    await self._write(bytes(view[at : at + _WRITE_BYTES]), deadline)
                self._line.typed(data)
            finally:
                self._writing.release()
        except TimeoutError:
            raise WriteFailed(
                f"the process has not read its input for {timeout:g} s; {at} of {len(view)} bytes"
                " were written"
            ) from None

    async def _write(self, data: bytes, deadline: float | None) -> None:
        """Make one write; raises TimeoutError when it was not made in time, and never will be."""
        loop = asyncio.get_running_loop()
        self._writes += 1
        params = {
            "processId": self.process_id,
            "chunk": codec.encode_base64(data).decode(),
            # The nonce keeps it apart from the write ids of an earlier client.
            "writeId": f"{self._client.nonce}-{self._writes}",
        }
        slack, pause, prompt = 0.0, _STARTING_SECONDS, False
        if deadline is not None and "writeBusy" in self._client.extensions:
            params["onFull"] = "busy"
            # The answer comes at once, so a late one is not given up.
            slack = (
                _ANSWER_SECONDS if self._timeout is None else min(_ANSWER_SECONDS, self._timeout)
            )
            prompt = True
        while True:
            left = None if deadline is None else max(0.0, deadline - loop.time()) + slack
            try:
                result = await self._client.call(
                    "process/write", params, repeat=True, timeout=left, prompt=prompt
                )
            except CallTimedOut as error:
                raise WriteFailed(f"{error}; whether it was written is not known") from error
            except (RpcError, TransportError, ExecutorTransportFailed) as error:
                raise WriteFailed(error.detail) from error
            status = result.get("status") if isinstance(result, dict) else None
            if status == "accepted":
                return
            if status not in ("starting", "busy"):
                raise WriteFailed(_REFUSED.get(str(status), f"the server said {status!r}"))
            if deadline is not None and loop.time() >= deadline:
                raise TimeoutError
            await asyncio.sleep(pause)
            pause = min(2 * pause, _FULL_SECONDS)

    async def close_stdin(self) -> None:
        if self._exit is not None:
            return
        if "processCloseStdin" in self._client.extensions:
            params = {"processId": self.process_id}
            async with self._writing:
                try:
                    for _ in range(self._line.ends() if self._tty else 1):
                        # The end-of-file key must not be typed more often than intended.
                        await self._call("process/closeStdin", params, repeat=not self._tty)
                except (RpcError, TransportError) as error:
                    raise WriteFailed(error.detail) from error
        elif self._tty:
            await self.write(b"\x04" * self._line.ends())
        else:
            raise WriteFailed("this server cannot end the input of a process; use a terminal")

    async def resize(self, rows: int, cols: int) -> None:
        check_size(rows, cols)
        if "processResize" not in self._client.extensions:
            raise ResizeFailed("resize is not supported by exec-server sessions")
        if not self._tty:
            raise ResizeFailed(
                f"process {self.process_id} has no terminal; start it with tty to resize it"
            )
        params = {"processId": self.process_id, "rows": rows, "cols": cols}
        try:
            await self._call("process/resize", params, repeat=True)
        except (RpcError, TransportError) as error:
            raise ResizeFailed(error.detail) from error

    async def signal(self, name: str) -> None:
        if signal_number(name) is None:
            raise UsageError(f"there is no signal {name!r}; use interrupt, or a name such as term")
        if self._exit is not None:
            return
        if name != "interrupt" and "processSignals" not in self._client.extensions:
            raise UsageError(f"this server passes on `interrupt` and no other signal, not {name!r}")
        params = {"processId": self.process_id, "signal": name}
        try:
            await self._call("process/signal", params)
        except RpcError as error:
            if error.code != INVALID_PARAMS:  # it has exited meanwhile
                raise ExecutorTransportFailed(str(error)) from error
        except TransportError as error:
            raise ExecutorTransportFailed(str(error)) from error

    async def terminate(self, grace: float = 0.0) -> None:
        check_grace(grace)
        self._history.release()  # the answer and the exit come after the output
        graceful = "terminateGrace" in self._client.extensions
        deadline = time.monotonic() + grace + _KILL_SECONDS
        self._asked_to_end = self._exit is None
        params: dict[str, Any] = {"processId": self.process_id}
        if graceful:
            params |= {"tree": True, "graceMs": int(grace * 1000)}
        elif grace > 0 and self._exit is None:
            # The only polite request to end that this server offers.
            await self.signal("interrupt")
            await self._exited_by(time.monotonic() + grace)
        try:
            await self._call("process/terminate", params, repeat=True, reserved=True)
        except CallTimedOut as error:
            self.end_later()  # it may be lost with its connection
            raise TerminateFailed(error.detail) from error
        except (RpcError, TransportError, ExecutorTransportFailed) as error:
            raise TerminateFailed(error.detail) from error
        if not await self._exited_by(deadline):
            raise TerminateFailed(
                f"process {self.process_id} was killed and nothing was heard of its end"
            )

    @property
    def out_of_reach(self) -> bool:
        """Whether ending it would have to wait for a working connection."""
        return self._client.out_of_reach

    def end_later(self) -> None:
        """End it on the next working connection, if there is one before the session ends."""
        self._history.release()
        self._client.clean_up(self.process_id)

    async def _follow(self, looking: Looking, patience: Patience) -> WaitOutcome:
        return await wait_far(self._client, self.process_id, looking, patience)

    async def refused_hosts(self) -> tuple[Mapping[str, object], ...]:
        if self._network is None or "networkUpdate" not in self._client.extensions:
            return ()
        params = {"processId": self.process_id, "maxBytes": 0}
        try:
            found = await self._call("process/read", params, repeat=True)
        except RpcError:
            return ()  # its id is free again
        except TransportError as error:
            raise ExecutorTransportFailed(str(error)) from error
        return tuple(found.get("denials") or ())

    async def update_network(self, network: NetworkRequest) -> None:
        if "networkUpdate" not in self._client.extensions or self._exit is not None:
            return
        lists = network.start(enforced=True).fields("")
        names = ("rules", "approved", "denied")
        params = {"processId": self.process_id, **{name: lists.get(name, []) for name in names}}
        try:
            await self._call("network/update", params, repeat=True)
        except RpcError:
            pass  # it has ended
        except TransportError as error:
            raise ExecutorTransportFailed(str(error)) from error

    async def denied(self) -> Denied:
        await self.wait()
        return self._denied

    async def _call(
        self, method: str, params: Any, *, repeat: bool = False, reserved: bool = False
    ) -> Any:
        return await self._client.call(
            method, params, timeout=self._timeout, repeat=repeat, reserved=reserved
        )


_REFUSED = {
    "stdinClosed": "stdin of this process is closed; nothing was written",
    "unknownProcess": "the server does not know this process any more",
}
