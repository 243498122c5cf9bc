"""The server's end of the link to the keeper: requests, answers, and the send queue.

Questions carry a serial number and are answered by futures.  A keeper that does not keep up
never blocks the server: what it does not take at once is queued, with copies of the descriptors.
What it only has to know sooner or later (streams that ended, children to forget) is gathered and
sent together.  ``spawn_children.py`` reads the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Sized

from handrail.errors import KeeperLost
from handrail.futures import set_done
from handrail.keeper import messages
from handrail.process.keeper_client.start_keeper import KeeperHandle

#: How long housekeeping messages are gathered.
_GATHER_SECONDS = 0.05
_GATHER_MOST = 256
#: Starts that are sent together; with more of them the keeper would be idle meanwhile.
_STARTS_MOST = 4
#: First and longest pause between two looks whether the keeper has ended.
_REAP_SECONDS = 0.01
_REAP_SECONDS_MOST = 2.0


class KeeperLink:
    """The link to the current keeper, on one event loop.

    ``heard`` is called with every message, ``closed`` when there is no keeper any more for what
    waits to be asked; ``watched`` are the children whose exit is waited for.
    """

    def __init__(
        self,
        handle: KeeperHandle,
        loop: asyncio.AbstractEventLoop,
        heard: Callable[[messages.Message], None],
        closed: Callable[[], None],
        watched: Sized,
    ) -> None:
        self._heard = heard
        self._watched = watched
        self._closed = closed
        self._sock = handle.sock
        self._sock.setblocking(False)
        self._pid = 0 if handle.found else handle.pid  # 0: not our child, or already reaped
        self._loop = loop
        self._serial = 0
        self._questions: dict[int, asyncio.Future[messages.Message]] = {}
        self._unsent: deque[messages.Outgoing] = deque()
        #: Starts of this turn of the loop, which are sent together; their fds are ours.
        self._starts: list[messages.Outgoing] = []
        self._released: list[bytes] = []
        self._forgotten: list[bytes] = []
        self._gathering: asyncio.TimerHandle | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._goodbye: asyncio.Future[messages.Message] | None = None  # answered: the keeper ends
        self.alive = True
        self._knows = True  # the children there are
        #: Questions about them that wait for a keeper that knows them.
        self._held: list[tuple[int, list[bytes], asyncio.Future[messages.Message]]] = []
        #: Callers that wait until a keeper is there that knows our children.
        self._waiting: list[asyncio.Future[None]] = []
        #: Called once when the keeper is gone without having been asked to go.
        self.on_lost: Callable[[], None] | None = None
        loop.add_reader(self._sock.fileno(), self._readable)

    @property
    def ended(self) -> bool:
        """Whether the keeper has ended because this server asked it to."""
        said = self._goodbye
        return said is not None and said.done() and not said.cancelled() and not said.exception()

    @property
    def crowded(self) -> bool:
        """Whether the keeper has not received everything that was sent to it."""
        return bool(self._unsent)

    @property
    def bereft(self) -> bool:
        """Whether the keeper is gone without having been asked to go, and the next one does not
        know our children yet."""
        return self.on_lost is not None and not (self.alive and self._knows)

    def ask(
        self, op: int, fields: list[bytes], fds: list[int] | None = None
    ) -> asyncio.Future[messages.Message]:
        """Send a request; the future raises KeeperLost when there is no keeper."""
        serial, future = self.reserve()
        self.send_question(serial, future, op, fields, fds or [])
        return future

    def ask_of_children(self, op: int, fields: list[bytes]) -> asyncio.Future[messages.Message]:
        """Send a request when there is a keeper that knows the children."""
        if not self.bereft:
            return self.ask(op, fields)
        future: asyncio.Future[messages.Message] = self._loop.create_future()
        self._held.append((op, fields, future))
        return future

    def reserve(self) -> tuple[int, asyncio.Future[messages.Message]]:
        """A serial number for a request, and the future of its answer."""
        self._serial = self._serial % 0xFFFFFFFF + 1
        return self._serial, self._loop.create_future()

    def await_answer(self, serial: int, future: asyncio.Future[messages.Message]) -> None:
        """Register a request that is sent, or will be."""
        self._questions[serial] = future

    def answer(self, message: messages.Message) -> bool:
        """Pass an answer to its request; False when no caller waits for it any more."""
        future = self._questions.pop(message.serial, None)
        if future is None or future.done():
            return False
        future.set_result(message)
        return True

    def fail(self, serial: int, error: OSError) -> None:
        """Fail a request that could not be sent."""
        future = self._questions.pop(serial, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def send_question(
        self,
        serial: int,
        future: asyncio.Future[messages.Message],
        op: int,
        fields: list[bytes],
        fds: list[int],
    ) -> None:
        """Send a request that has its serial number."""
        if self.alive:
            self.tell(op, serial, fields, fds)
            self.await_answer(serial, future)
        else:
            future.set_exception(gone())

    def start_soon(
        self,
        serial: int,
        future: asyncio.Future[messages.Message],
        fields: list[bytes],
        own: list[int],
    ) -> None:
        """Ask for a start together with others of this turn; the fds are closed here."""
        self._starts.append((messages.SPAWN, serial, fields, own[:]))
        own.clear()
        self.await_answer(serial, future)
        if len(self._starts) >= _STARTS_MOST:
            self._send_starts()
        elif len(self._starts) == 1:
            self._loop.call_soon(self._send_starts)

    def _send_starts(self) -> None:
        starts, self._starts = self._starts, []
        sent = 0
        try:
            while sent < len(starts) and self.alive and not self._unsent:
                sent += messages.send_many(self._sock, starts[sent:])
        except (OSError, ValueError):
            pass  # said by the first of these, again
        for op, serial, fields, fds in starts[sent:]:
            try:
                self.tell(op, serial, fields, fds)
            except (OSError, ValueError) as error:
                number = error.errno if isinstance(error, OSError) else None
                failed = messages.Count(number or errno.EINVAL).pack()
                # As the keeper would say it: the next start may begin.
                self._heard(messages.Message(messages.FAILED, serial, failed, []))
        for *_, fds in starts:
            for fd in fds:
                os.close(fd)

    def tell(
        self, op: int, serial: int, fields: list[bytes], fds: list[int] | tuple[int, ...] = ()
    ) -> None:
        """Send now, or when the keeper reads again; raises OSError without an fd for that."""
        if not self.alive:
            return
        if self._starts:
            self._send_starts()
        if not self._unsent:
            try:
                messages.send(self._sock, op, serial, fields, fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._writable)
            except ConnectionError:
                return  # seen by the reader
        self._unsent.append((op, serial, fields, [os.dup(fd) for fd in fds]))

    def tell_at_once(self, op: int, fields: list[bytes], fds: list[int]) -> None:
        """Send now: the keeper has it when this returns.  Raises OSError when it is too busy."""
        if self.alive:
            if self._starts:
                self._send_starts()
            if self._unsent:
                raise BlockingIOError(errno.EAGAIN, "the keeper is busy")
            try:
                messages.send(self._sock, op, 0, fields, fds)
            except ConnectionError:
                pass  # seen by the reader

    def tell_soon(self, op: int, child: int) -> None:
        """Send RELEASE or FORGET for a child, together with others."""
        (self._released if op == messages.RELEASE else self._forgotten).append(b"%d" % child)
        if len(self._released) + len(self._forgotten) >= _GATHER_MOST:
            self._send_gathered()
        elif self._gathering is None:
            self._gathering = self._loop.call_later(_GATHER_SECONDS, self._send_gathered)

    async def stop(self) -> None:
        """Have the keeper end every child and itself; returns when it has."""
        if self.alive:
            self._send_gathered()
            self.on_lost = None
            self._stopped = self._loop.create_future()
            self._goodbye = self.ask(messages.STOP, [])
            with contextlib.suppress(KeeperLost):
                await self._goodbye
            if self.alive:
                await self._stopped

    def close(self) -> None:
        """Close the link.  An embedded keeper then ends its children and itself."""
        self._send_gathered()
        self.tell(messages.BYE, 0, [])
        self.on_lost = None
        self._lost()
        self.give_up()

    def _send_gathered(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._released:
            self.tell(messages.RELEASE, 0, self._released)
            self._released = []
        if self._forgotten:
            self.tell(messages.FORGET, 0, self._forgotten)
            self._forgotten = []

    def _writable(self) -> None:
        while self._unsent:
            op, serial, fields, fds = self._unsent[0]
            try:
                messages.send(self._sock, op, serial, fields, fds)
            except BlockingIOError:
                return
            except ConnectionError:
                break  # seen by the reader
            except OSError as error:  # no descriptor free for its body
                self.fail(serial, error)
            self._unsent.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        # A few at a time: a burst of exits must not hold up the streams.
        for _ in range(16):
            try:
                heard = messages.receive_all(self._sock)
            except BlockingIOError:
                return
            except OSError:
                heard = []
            if not heard:
                self._lost()
                return
            for message in heard:
                self._heard(message)
            if not self._questions and not self._watched:
                return  # hardly more than this one: another look would cost a failing call

    def _lost(self) -> None:
        if not self.alive:
            return
        self.alive = self._knows = False
        if self._gathering is not None:
            self._gathering.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for _, _, _, fds in (*self._unsent, *self._starts):
            for fd in fds:
                os.close(fd)
        self._unsent.clear()
        self._starts.clear()
        self._closed()
        for future in self._questions.values():
            if not future.done():
                future.set_exception(gone())
        self._questions.clear()
        self._reap_keeper(self._pid, _REAP_SECONDS)
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)
        if self.on_lost is not None:
            self.on_lost()

    def relink(self, handle: KeeperHandle) -> None:
        """Continue with another keeper; requests to the previous one have failed."""
        self._sock = handle.sock
        self._sock.setblocking(False)
        self._pid = 0 if handle.found else handle.pid
        self._released.clear()
        self._forgotten.clear()
        self._gathering = None
        self.alive = True
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def restored(self) -> None:
        """Note that the new keeper knows the children."""
        self._knows = True
        self._wake()
        held, self._held = self._held, []
        for op, fields, future in held:
            if not future.done():
                self.send_question(self.reserve()[0], future, op, fields, [])

    async def at_hand(self) -> None:
        """Wait until there is a keeper that knows the children, or there will be none."""
        while self.on_lost is not None:
            if self.bereft:
                future: asyncio.Future[None] = self._loop.create_future()
                self._waiting.append(future)
                await future
                continue
            try:
                await self.ask(messages.WHO, [])  # it may be dead, and we have not noticed
                return
            except KeeperLost:
                pass

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            set_done(future)

    def give_up(self) -> None:
        """Note that there will be no other keeper."""
        self.on_lost = None
        self._wake()
        held, self._held = self._held, []
        for _, _, future in held:
            if not future.done():
                future.set_exception(gone())

    def _reap_keeper(self, pid: int, pause: float) -> None:
        """Take the status of a keeper that is our child, now or when it has ended.

        After STOP it closes the link as its last act, so this does not take long; one that
        ends its children first, or dies, may still be on its way.
        """
        if not pid:
            return
        try:
            # Waiting is right only for a keeper that has confirmed its end by itself.
            wait = 0 if self.ended else os.WNOHANG
            ended, _ = os.waitpid(pid, wait)
        except ChildProcessError:
            ended = pid
        if ended:
            if self._pid == pid:
                self._pid = 0
        else:
            later = min(2 * pause, _REAP_SECONDS_MOST)
            self._loop.call_later(pause, self._reap_keeper, pid, later)


def gone() -> KeeperLost:
    """The error of a request for which there is no keeper."""
    return KeeperLost("the keeper is gone, so nothing can be started or signalled now; try again")
