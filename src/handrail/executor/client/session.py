"""A client of an exec-server: one session over as many connections as it takes.

When a connection is lost, a new one is dialed and the session resumed until the recovery window
ends; calls made meanwhile wait.  Calls that may be repeated are, with the same ids; the others
fail.  Each followed process catches up after a resume.  When recovery is not possible, all of
them get the reason, once.  The server's half is ``server/sessions.py``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from handrail.errors import (
    ConnectionLost,
    ExecutorTransportFailed,
    HandrailError,
    RemoteProtocolError,
    RpcError,
)
from handrail.executor.client.dial import Dialer, dialer_for, transport_failed
from handrail.executor.client.rpc import NEWS, CallTimedOut, RpcConnection
from handrail.protocol.envelope import ALREADY_ATTACHED
from handrail.transport.websocket_handshake import HandshakeError

log = logging.getLogger(__name__)

#: How long a server may take to be ready, and to answer, by default.
REQUEST_TIMEOUT = 30.0
#: One attempt among several to resume a session.
_ATTEMPT_TIMEOUT = 10.0
_CLOSE_TIMEOUT = 10.0
CLEAN_UP_TIMEOUT = 30.0
STATUS_TIMEOUT = 10.0
#: Shorter than the 30 s for which a server keeps a session without a connection.
RECOVERY_WINDOW = 25.0
_RETRY_SECONDS = 0.1
#: Consecutive connections on which a server may break the protocol.
_MOST_BROKEN = 5


class Route(Protocol):
    """The follower of one process."""

    def notified(self, method: str, params: Any) -> None:
        """Take a notification; raises RemoteProtocolError or RpcError when it is malformed."""

    async def catch_up(self, rpc: RpcConnection) -> None:
        """The session was resumed on this connection: read the notifications that may be missing.

        Returns also when the connection ends meanwhile, for then there will be another.
        """

    def failed(self, error: HandrailError) -> None:
        """No more events of the process will arrive."""

    def asked(self, params: Any, respond: Callable[[Any], None]) -> None:
        """Answer a question of the server about a host; raises ValidationError."""


class ExecServerClient:
    """One session of one server.

    Times are in seconds: ``request_timeout`` (None: no limit) is how long the server may take until
    it is connected to, from the first packet to the answer to ``initialize``; ``detach_ttl`` and
    ``recovery_window`` are for the time without a connection.  Nothing raises but ``connect``, and
    what makes a call: RpcError, CallTimedOut and ExecutorTransportFailed.
    """

    def __init__(
        self,
        dialer: Dialer,
        *,
        client_name: str = "handrail",
        session_id: str | None = None,
        resume_secret: str | None = None,
        detach_ttl: float | None = None,
        recovery_window: float = RECOVERY_WINDOW,
        request_timeout: float | None = REQUEST_TIMEOUT,
    ) -> None:
        self._dialer = dialer
        self._client_name = client_name
        self.detach_ttl = detach_ttl
        self._window = recovery_window
        self._timeout = request_timeout
        self._rpc: RpcConnection | None = None
        self._opening: RpcConnection | None = None
        self._routes: dict[str, Route] = {}
        self._up = asyncio.Event()
        self._recovering: asyncio.Task[None] | None = None
        self._closing = False
        self._failure: ExecutorTransportFailed | None = None
        self._cleaning: set[asyncio.Task[None]] = set()
        #: Part of the ids we make, so that they differ from another client's.
        self.nonce = secrets.token_hex(8)
        self.session_id = session_id
        self.resume_secret = resume_secret
        #: ``environmentInfo`` as the server sent it; {} from servers that do not.
        self.info: dict[str, Any] = {}
        #: Names of our extensions that the server offers.
        self.extensions: frozenset[str] = frozenset()
        #: Whether it can start processes with a managed network.
        self.carries_networks = False
        #: How often the session was resumed.
        self.resumed = 0
        self._broken = 0
        self._lagging: set[object] = set()

    @classmethod
    async def connect(
        cls,
        where: str | Sequence[str] | Dialer,
        *,
        client_name: str = "handrail",
        session_id: str | None = None,
        resume_secret: str | None = None,
        detach_ttl: float | None = None,
        recovery_window: float = RECOVERY_WINDOW,
        request_timeout: float | None = REQUEST_TIMEOUT,
        **how: Any,
    ) -> ExecServerClient:
        """Connect and create a session, or resume ``session_id``.

        ``how`` are the options of ``dialer_for`` (token, ssl, ssh, ssh_command).  Times are in
        seconds.  Raises ConnectionLost, also when it takes longer than ``request_timeout`` in all,
        HandshakeError, RpcError or UsageError.
        """
        dialer = dialer_for(where, **how) if isinstance(where, str | list | tuple) else where
        client = cls(
            dialer,  # type: ignore[arg-type]
            client_name=client_name,
            session_id=session_id,
            resume_secret=resume_secret,
            detach_ttl=detach_ttl,
            recovery_window=recovery_window,
            request_timeout=request_timeout,
        )
        try:
            await client._begin()
        except BaseException:
            await client.close(end=False)
            raise
        client._up.set()
        return client

    @property
    def where(self) -> str:
        """The address, for messages."""
        return self._dialer.where

    # --- calls -------------------------------------------------------------------------------

    async def call(
        self,
        method: str,
        params: Any,
        *,
        timeout: float | None = None,
        repeat: bool = False,
        reserved: bool = False,
        prompt: bool = True,
    ) -> Any:
        """Make one call.  With ``repeat`` it is made again after a resume that cut it.

        ``params`` may be a function that makes them anew each time.  ``timeout`` (seconds) includes
        the time without a connection.  A ``prompt`` call is answered at once: when it is not, and
        no other message arrives either, the connection is dropped and the session resumed on
        another.  Raises RpcError, CallTimedOut, or ExecutorTransportFailed when the connection is
        lost for good, or was cut and the call must not be repeated.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            rpc = self._rpc
            if rpc is None or rpc.gone is not None or self._failure or not self._up.is_set():
                rpc = await self._connection(method, deadline)
            left = None if deadline is None else max(0.0, deadline - loop.time())
            given = params() if callable(params) else params
            # The time left after a reconnect may be too short to call a connection silent.
            judges = prompt and left is not None and timeout is not None and left > 0.9 * timeout
            try:
                return await rpc.call(method, given, timeout=left, reserved=reserved, prompt=judges)
            except CallTimedOut as late:
                if rpc.silent and self._dialer.reconnects:
                    rpc.drop(f"{late}, and nothing else was heard")
                raise
            except ConnectionLost as lost:
                if not repeat or not self._dialer.reconnects:
                    raise ExecutorTransportFailed(
                        f"{lost}; whether {method} was carried out is not known"
                    ) from lost

    def mention(self, method: str, params: Any) -> None:
        """Make a call and ignore its answer; nothing is sent while there is no connection."""
        if self._rpc is not None:
            self._rpc.mention(method, params)

    @property
    def out_of_reach(self) -> bool:
        """Whether there is no connection now on which an answer can be expected."""
        rpc = self._rpc
        return rpc is None or rpc.gone is not None or rpc.silent

    @property
    def crowded(self) -> bool:
        """Whether too many calls are open to make one that may last."""
        return self._rpc is not None and self._rpc.crowded

    async def _connection(self, method: str, deadline: float | None) -> RpcConnection:
        while True:
            if self._failure is not None:
                raise self._failure.again()
            rpc = self._rpc
            if rpc is not None and rpc.gone is None and self._up.is_set():
                return rpc
            self._up.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._up.wait()
            except TimeoutError:
                raise CallTimedOut(
                    f"no connection for {method} within its time: the last one was lost, and its"
                    " server has not answered since; is it still running?"
                ) from None

    async def status(self) -> str:
        """``ready`` when commands can be run; never causes a reconnect."""
        result = await self.call("environment/status", {}, timeout=STATUS_TIMEOUT)
        return str(result.get("status", ""))

    async def environment(self) -> dict[str, Any]:
        """The environment that the server describes."""
        if not self.info:
            self._informed(await self.call("environment/info", {}, timeout=self._timeout))
        return self.info

    # --- processes ---------------------------------------------------------------------------

    def follow(self, process_id: str, route: Route) -> None:
        """Register a follower before the start is sent: events may come before its answer."""
        self._routes[process_id] = route

    def unfollow(self, process_id: str, route: Route) -> None:
        """Remove a follower."""
        if self._routes.get(process_id) is route:
            del self._routes[process_id]

    def routes(self) -> list[Route]:
        """All followers of processes that have not closed."""
        return list(self._routes.values())

    def clean_up(self, process_id: str) -> None:
        """End an unwanted process, if it was started at all."""

        async def end() -> None:
            params: dict[str, Any] = {"processId": process_id}
            if "terminateGrace" in self.extensions:
                params["tree"] = True
            try:
                await self.call(
                    "process/terminate",
                    params,
                    timeout=CLEAN_UP_TIMEOUT,
                    repeat=True,
                    reserved=True,
                )
            except HandrailError:
                pass  # it ends with the session

        task = asyncio.get_running_loop().create_task(end())
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    def hold(self, reader: object) -> None:
        """Read nothing from the connection until ``reader`` has caught up."""
        self._lagging.add(reader)
        if self._rpc is not None:
            self._rpc.hold(True)

    def let_go(self, reader: object) -> None:
        """``reader`` has caught up, or has stopped reading."""
        self._lagging.discard(reader)
        if self._rpc is not None and not self._lagging:
            self._rpc.hold(False)

    @property
    def connection(self) -> RpcConnection | None:
        """The current connection, if there is one."""
        return self._rpc

    def followed(self, process_id: str) -> Route | None:
        """The follower of a process."""
        return self._routes.get(process_id)

    # --- the end -----------------------------------------------------------------------------

    async def close(self, *, end: bool = True) -> None:
        """Close the connection; with ``end`` the session and every process of it end now."""
        if self._closing:
            return
        rpc = self._rpc
        if rpc is not None:
            rpc.hold(False)
        most = _CLOSE_TIMEOUT if self._timeout is None else min(_CLOSE_TIMEOUT, self._timeout)
        if end and rpc is not None and not self.out_of_reach and "sessionClose" in self.extensions:
            try:
                await rpc.call("session/close", {}, timeout=most)
            except (HandrailError, OSError):
                log.info("the session at %s was not closed in order; it expires", self.where)
        self._closing = True
        if self._recovering is not None:
            self._recovering.cancel()
            await asyncio.gather(self._recovering, return_exceptions=True)
        self._fail(ExecutorTransportFailed("this client is closed"))
        if self._cleaning:
            for task in self._cleaning if self.out_of_reach else ():
                task.cancel()
            await asyncio.wait(self._cleaning)
        for open_ in (self._rpc, self._opening):
            if open_ is not None:
                if open_.silent:
                    open_.abort()
                else:
                    open_.close()
                await open_.ended()
        await self._dialer.close()

    # --- connections -------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Open the first connection; a stored secret may be outdated by now."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._open(self._timeout)
        except RpcError as error:
            if not self.resume_secret or error.code == ALREADY_ATTACHED:
                raise
            left = None if self._timeout is None else max(0.0, began + self._timeout - loop.time())
            await self._open(left, present=False)

    async def _open(self, timeout: float | None, *, present: bool = True) -> None:
        """Open one connection with its handshake; resumes the session if there is one.

        ``timeout`` (seconds) is for all of it.  ``present``: send the secret we have.  It may be
        outdated, if the answer with the next one was lost.
        """
        rpc = RpcConnection(self._notified, self._lost, self._asked)
        self._opening = rpc
        missing = "a connection"
        try:
            async with asyncio.timeout(timeout):
                await self._dialer.dial(rpc, timeout)
                missing = "an answer to initialize"
                self._began(await rpc.call("initialize", self._introduction(present)))
            rpc.notify("initialized", {})
            if rpc.gone is not None:
                raise ConnectionLost(f"the connection ended: {rpc.gone}")
        except TimeoutError:
            rpc.abort()
            raise ConnectionLost(
                f"{self.where} did not give {missing} within {timeout:g} s"
            ) from None
        except BaseException:
            rpc.abort()
            raise
        self._rpc, self._opening = rpc, None

    def _introduction(self, present: bool) -> dict[str, Any]:
        params: dict[str, Any] = {
            "clientName": self._client_name,
            "resumeSecret": self.resume_secret if present else None,
        }
        if self.session_id is not None:
            params["resumeSessionId"] = self.session_id
        if self.detach_ttl is not None:
            params["detachTtlMs"] = int(self.detach_ttl * 1000)
        return params

    def _began(self, result: Any) -> None:
        session_id = result.get("sessionId") if isinstance(result, dict) else None
        if not isinstance(session_id, str):
            raise RemoteProtocolError("the answer to initialize names no session")
        if self.session_id is not None and session_id != self.session_id:
            raise RemoteProtocolError("another session was resumed than the one asked for")
        self.session_id = session_id
        secret = result.get("resumeSecret")
        if isinstance(secret, str):
            self.resume_secret = secret
        info = result.get("environmentInfo")
        if isinstance(info, dict):
            self._informed(info)

    def _informed(self, info: dict[str, Any]) -> None:
        self.info = info
        capabilities = info.get("capabilities")
        ours = capabilities.get("handrail") if isinstance(capabilities, dict) else None
        known = capabilities if isinstance(capabilities, dict) else {}
        self.carries_networks = known.get("networkProxyLaunch") is True
        if isinstance(ours, dict):
            self.extensions = frozenset(name for name, offered in ours.items() if offered is True)

    def _notified(self, method: str, params: Any) -> None:
        if not method.startswith("process/") and method != "network/policyDecision":
            return  # we subscribe to no file or HTTP notifications
        if isinstance(params, NEWS):
            process_id: object = params.process_id
        else:
            process_id = params.get("processId") if isinstance(params, dict) else None
        route = self._routes.get(process_id) if isinstance(process_id, str) else None
        if route is not None:
            try:
                route.notified(method, params)
            except msgspec.ValidationError as error:
                raise RemoteProtocolError(f"a {method} that does not read: {error}") from None

    def _asked(self, params: Any, respond: Callable[[Any], None]) -> bool:
        process_id = params.get("processId") if isinstance(params, dict) else None
        route = self._routes.get(process_id) if isinstance(process_id, str) else None
        if route is not None:
            route.asked(params, respond)
        return route is not None

    def _lost(self, rpc: RpcConnection, why: str) -> None:
        if rpc is not self._rpc or self._closing:
            return
        self._rpc = None
        self._up.clear()
        self._broken = self._broken + 1 if rpc.broken else 0
        if not self._dialer.reconnects or self._broken >= _MOST_BROKEN:
            self._fail(ExecutorTransportFailed(f"the connection to {self.where} ended: {why}"))
        elif self._recovering is None or self._recovering.done():
            self._recovering = asyncio.get_running_loop().create_task(self._recover(why))

    async def _recover(self, why: str) -> None:
        """Resume the session, however often the connection breaks; all followers catch up."""
        while True:
            try:
                await self._redial()
            except (HandrailError, OSError) as error:
                self._fail(await self._unrecovered(why, error))
                return
            rpc = self._rpc
            if rpc is None:
                continue
            self.resumed += 1
            routes = list(self._routes.values())
            self._up.set()
            await asyncio.gather(*(route.catch_up(rpc) for route in routes))
            rpc.hold(bool(self._lagging))
            if self._rpc is not None or self._failure is not None:
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _unrecovered(self, why: str, error: Exception) -> ExecutorTransportFailed:
        """The error for followers and callers when the session could not be resumed."""
        text = f"the connection to {self.where} ended ({why}) and could not be taken up again"
        return transport_failed(text, error)

    async def _redial(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._window
        present = True
        most = _ATTEMPT_TIMEOUT if self._timeout is None else min(_ATTEMPT_TIMEOUT, self._timeout)
        while True:
            left = deadline - loop.time()
            try:
                await self._open(min(most, max(left, _RETRY_SECONDS)), present=present)
                return
            except (HandrailError, OSError) as error:
                late = loop.time() + _RETRY_SECONDS > deadline
                if present and self.resume_secret and isinstance(error, RpcError) and not late:
                    present = False  # the id alone is enough for a detached session
                    continue
                if late or not _passing(error):
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    def _fail(self, error: ExecutorTransportFailed) -> None:
        if self._failure is None:
            self._failure = error
        routes, self._routes = list(self._routes.values()), {}
        for route in routes:
            route.failed(self._failure)
        self._up.set()


def _passing(error: BaseException) -> bool:
    """Whether the same attempt may succeed a moment later."""
    if isinstance(error, RpcError):
        return error.code == ALREADY_ATTACHED
    if isinstance(error, HandshakeError):
        return error.status >= 500
    return isinstance(error, ConnectionLost | CallTimedOut | OSError)
