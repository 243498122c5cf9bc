"""Processes of another machine: the same as ``local``, on calls to an exec-server."""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from handrail.errors import (
    ExecutorSpawnFailed,
    ExecutorTransportFailed,
    ProcessUnknown,
    RpcError,
    SpawnUnenforceable,
    TransportError,
    UsageError,
)
from handrail.executor.argument_checks import check_sandbox, fits_terminal
from handrail.executor.base import (
    Executor,
    ExecutorFeatures,
    LoopbackStream,
    Place,
    SpawnRequest,
)
from handrail.executor.client.session import REQUEST_TIMEOUT, ExecServerClient
from handrail.executor.remote_files import RemoteFiles
from handrail.executor.remote_session import RemoteSession
from handrail.process.spec import NO_LIMITS
from handrail.protocol import path_uri, percent_words
from handrail.protocol.envelope import INVALID_REQUEST, SANDBOX_UNAVAILABLE
from handrail.protocol.process import LIMITS
from handrail.sandbox.intent import to_wire

if TYPE_CHECKING:
    from handrail.executor.stored.source import Result as StoredResult
    from handrail.network.managed.start import NetworkRequest

OnLag = Literal["auto", "block", "drop"]
#: How long ``close`` waits for the ends of what it ends.
_CLOSE_SECONDS = 10.0
#: A server keeps the id of a closed process for this long.
_ID_SECONDS = 60.0


class RemoteExecutor(Executor):
    """Starts processes where its client is connected to.

    ``request_timeout`` is in seconds.  Everything but ``close`` raises ExecutorTransportFailed when
    the line is gone for good, or an answer takes too long.
    """

    def __init__(
        self,
        client: ExecServerClient,
        *,
        request_timeout: float | None = REQUEST_TIMEOUT,
        on_lag: OnLag | None = "auto",
    ) -> None:
        """``request_timeout`` in seconds; ``on_lag`` for requests that do not say it.

        ``block`` loses nothing however the line breaks, where the server offers it; None lets a
        process go on while no client reads its output.  ``auto`` is None for a session that is to
        be left alone for long (its client asked for a ``detach_ttl``), else ``block``.
        """
        self.client = client
        self._timeout = request_timeout
        if on_lag == "auto":
            on_lag = "block" if client.detach_ttl is None else None
        self._on_lag = on_lag
        self._files = RemoteFiles(client, request_timeout)
        self._used: dict[str, float] = {}

    @classmethod
    async def connect(
        cls,
        where: Any,
        *,
        request_timeout: float | None = REQUEST_TIMEOUT,
        on_lag: OnLag | None = "auto",
        **how: Any,
    ) -> RemoteExecutor:
        """Connect a client of its own; see ``ExecServerClient.connect`` for ``how``.

        ``request_timeout`` (seconds) bounds the connecting too.
        """
        client = await ExecServerClient.connect(where, request_timeout=request_timeout, **how)
        return cls(client, request_timeout=request_timeout, on_lag=on_lag)

    @property
    def out_of_reach(self) -> bool:
        """Whether there is no line now on which an answer can be hoped for."""
        return self.client.out_of_reach

    @property
    def features(self) -> ExecutorFeatures:
        """What the server offers."""
        offered = self.client.extensions
        return ExecutorFeatures(
            remote=True,
            close_stdin="processCloseStdin" in offered,
            timeouts="timeout" in offered,
            limits=True,
            detach="detach" in offered,
            watch_denials="watchDenials" in offered,
            private_tmp={"sessionTemporary", "privateTmp"} <= offered,
            network=self.client.carries_networks,
            loopback="loopback" in offered,
        )

    @property
    def files(self) -> RemoteFiles:
        """The files of that machine."""
        return self._files

    async def spawn(self, request: SpawnRequest) -> RemoteSession:
        """Start one process; raises ExecutorSpawnFailed, and UsageError for what cannot be said.

        Words that are not UTF-8 go only to servers that offer ``percentWords``.

        A start that a lost connection has cut is sent again after the resume: the server knows
        the id if the first one had arrived.
        """
        params = self._params(request)
        key = request.process_id
        if self.client.followed(key) is not None:
            raise ExecutorSpawnFailed(f"process {key} already exists")
        reused = self._note(key)
        session = RemoteSession(
            self.client,
            key,
            tty=request.tty,
            timeout=self._timeout,
            detached=request.detach,
            network=request.network,
        )
        self.client.follow(key, session)
        resumed = self.client.resumed
        try:
            await self.client.call("process/start", params, timeout=self._timeout, repeat=True)
        except UsageError:  # nothing was sent
            self.client.unfollow(key, session)
            raise
        except RpcError as error:
            ours = self.client.resumed != resumed and not reused
            if not (ours and error.code == INVALID_REQUEST and "already exists" in error.message):
                self.client.unfollow(key, session)
                raise _spawn_failed(error) from error
        except (TransportError, ExecutorTransportFailed) as error:
            self.client.unfollow(key, session)
            self.client.clean_up(key)  # it may have been started all the same
            raise ExecutorSpawnFailed(error.detail, unsure=True) from error
        except BaseException:
            self.client.unfollow(key, session)
            self.client.clean_up(key)
            raise
        await session.begin(caught_up=self.client.resumed == resumed)
        return session

    async def attach(self, process_id: str) -> RemoteSession:
        """A process of this session; raises ProcessUnknown."""
        known = self.client.followed(process_id)
        if isinstance(known, RemoteSession):
            return known
        tty, detached = await self._look_up(process_id)
        session = RemoteSession(
            self.client, process_id, tty=tty, timeout=self._timeout, detached=detached
        )
        session.has_past = True
        self.client.follow(process_id, session)
        await session.begin(caught_up=False)
        return session

    async def stored_result(self, session: str, process_id: str) -> StoredResult | None:
        """What is stored of a process that was left, here or by the server."""
        from handrail.executor.stored.source import find_result

        return await find_result(session, process_id, self.client, self._timeout)

    async def processes(self) -> dict[str, dict[str, Any]]:
        """What the server says of the processes of this session, by their ids, as on the wire.

        With ``usage``, where it is offered.  Raises ExecutorTransportFailed.
        """
        if "processList" not in self.client.extensions:
            return {}
        params = {"usage": True} if "processUsage" in self.client.extensions else {}
        try:
            listed = await self.client.call(
                "process/list", params, timeout=self._timeout, repeat=True
            )
        except (RpcError, TransportError) as error:
            raise ExecutorTransportFailed(str(error)) from error
        return {entry["processId"]: entry for entry in listed["processes"]}

    async def _look_up(self, process_id: str) -> tuple[bool, bool]:
        """Whether it has a terminal, and whether it outlives its session."""
        try:
            if "processList" in self.client.extensions:
                listed = await self.client.call(
                    "process/list", {}, timeout=self._timeout, repeat=True
                )
                for process in listed["processes"]:
                    if process["processId"] == process_id:
                        return bool(process["tty"]), bool(process["detached"])
                raise ProcessUnknown(f"no process {process_id} in this session")
            params = {"processId": process_id, "maxBytes": 0}
            found = await self.client.call(
                "process/read", params, timeout=self._timeout, repeat=True
            )
        except RpcError as error:
            raise ProcessUnknown(error.message) from error
        except TransportError as error:
            raise ExecutorTransportFailed(str(error)) from error
        return any(chunk["stream"] == "pty" for chunk in found["chunks"]), False

    async def temporary(self) -> str | None:
        """A private directory of that machine that goes with the session; None: it has none."""
        if "sessionTemporary" not in self.client.extensions:
            return None
        try:
            made = await self.client.call(
                "session/temporary", {}, timeout=self._timeout, repeat=True
            )
        except RpcError as error:
            raise ExecutorSpawnFailed(error.message) from error
        except TransportError as error:
            raise ExecutorTransportFailed(str(error)) from error
        return _native(made["path"])

    async def connect_loopback(self, name: str, port: int) -> LoopbackStream:
        """Connect to what a process there listens on; raises ConnectionRefusedError."""
        if "loopback" not in self.client.extensions:
            raise UsageError(
                f"the server at {self.client.where} does not share a loopback among commands; use"
                " a handrail server of this version"
            )
        from handrail.executor.remote_loopback import connect

        return await connect(self.client, name, port, self._timeout)

    async def end_left(self, prefix: str) -> None:
        """End the descendants that exited processes with such ids have left; raises nothing."""
        if not {"processList", "terminateGrace"} <= self.client.extensions:
            return  # they end with the session
        try:
            listed = await self.client.call("process/list", {}, timeout=self._timeout, repeat=True)
            for process in listed["processes"]:
                key = process["processId"]
                if process["orphans"] and process["exit"] and key.startswith(prefix):
                    params = {"processId": key, "tree": True}
                    await self.client.call(
                        "process/terminate", params, timeout=self._timeout, repeat=True
                    )
        except (RpcError, TransportError, ExecutorTransportFailed):
            pass  # they end with the session

    async def place(self) -> Place:
        """The machine at the other end."""
        try:
            info = await self.client.environment()
        except (RpcError, TransportError) as error:
            raise ExecutorTransportFailed(str(error)) from error
        return Place(
            shell=info.get("shell", {}).get("path") or "/bin/sh",
            cwd=_native(info.get("cwd")) or "/",
            home=_native(info.get("userHomeDir")),
            temp_dir=_native(info.get("tempDir")) or "/tmp",  # noqa: S108 (the system's default)
            platform=info.get("platformOs") or "linux",
            version=info.get("executorVersion") or "",
            extensions=self.client.extensions,
        )

    async def leave(self, keep: float | None, wanted: Sequence[str] | None) -> None:
        """Have the server keep the session for so long, and store the results of ``wanted``."""
        if "sessionDetach" not in self.client.extensions:
            if keep is not None:
                raise UsageError(
                    f"the server at {self.client.where} cannot be told how long to keep processes;"
                    " leave keep out, or use a handrail server of this version"
                )
            return
        params: dict[str, Any] = {} if wanted is None else {"processes": list(wanted)}
        if keep is not None:
            params["keepMs"] = math.ceil(keep * 1000)
        try:
            await self.client.call("session/detach", params, timeout=self._timeout, repeat=True)
        except (RpcError, TransportError) as error:
            raise ExecutorTransportFailed(f"cannot leave its processes: {error}") from error

    async def detach(self) -> tuple[str, str | None]:
        """Disconnect and leave all processes running; the session's id and its resume secret."""
        await self.client.close(end=False)
        return self.client.session_id or "", self.client.resume_secret

    async def close(self) -> None:
        """End the session with all processes but those started with ``detach``, and disconnect."""
        routes = [route for route in self.client.routes() if isinstance(route, RemoteSession)]
        open_ = [session for session in routes if not session.detached]
        # One by one, and not only with the session: so that each session here learns of its end.
        if open_ and not self.client.out_of_reach:
            ending = [asyncio.ensure_future(session.terminate()) for session in open_]
            _, late = await asyncio.wait(ending, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
        await self.client.close(end=True)

    def _note(self, key: str) -> bool:
        """Whether this id was used a moment ago, so that the server may still hold it."""
        now = time.monotonic()
        if len(self._used) > 4096:
            self._used = {k: at for k, at in self._used.items() if at > now - _ID_SECONDS}
        reused = self._used.get(key, 0.0) > now - _ID_SECONDS
        self._used[key] = now
        return reused

    def _params(self, request: SpawnRequest) -> dict[str, Any]:
        check_sandbox(request.sandbox)
        if request.inherited_fds:
            raise ExecutorSpawnFailed(
                "inherited file descriptors are not supported by exec-server executor"
            )
        if not request.cwd.startswith("/"):
            raise ExecutorSpawnFailed(f"cwd {request.cwd!r} is not absolute; give the whole path")
        rows, cols = request.size
        if not fits_terminal(rows, cols):
            raise ExecutorSpawnFailed(
                f"a terminal has 1 to 65535 rows and columns, not {rows}x{cols}"
            )
        params = self._words(request)
        params |= {
            "processId": request.process_id,
            "cwd": _uri(request.cwd),
            "tty": request.tty,
            "pipeStdin": request.pipe_stdin and not request.tty,
        }
        if request.sandbox is not None:
            params["sandbox"] = to_wire(request.sandbox)
            if request.loopback is not None and "loopback" in self.client.extensions:
                params["loopback"] = request.loopback
        if request.network is not None:
            params["networkProxy"] = self._network_proxy(request.network)
            params["enforceManagedNetwork"] = request.sandbox is not None
        extensions = self.client.extensions
        if request.name is not None and "processName" in extensions:
            params["name"] = request.name
        if request.labels and "labels" in extensions:
            params["labels"] = dict(request.labels)
        if request.secret_env and "secretEnv" in extensions:
            params["secretEnv"] = list(request.secret_env)
        on_lag = request.on_lag or self._on_lag
        if on_lag is not None and "onLag" in extensions:
            params["onLag"] = on_lag
        if request.timeout is not None and "timeout" in extensions:
            params["timeoutMs"] = math.ceil(request.timeout * 1000)
        if request.limits is not NO_LIMITS and (limits := request.limits.given()):
            params["limits"] = _limits(limits, extensions)
        if request.gather and "startGather" in extensions:
            params["gather"] = True
        if request.detach:
            params["detach"] = True
        if request.watch_denials:
            params["watchDenials"] = True
        if request.tty and "processSize" in extensions:
            params["size"] = {"rows": rows, "cols": cols}
        return params

    def _network_proxy(self, network: NetworkRequest) -> dict[str, object]:
        """The wire form; raises ExecutorSpawnFailed for what the server would not honour."""
        if not self.client.carries_networks:
            raise ExecutorSpawnFailed(
                f"the server at {self.client.where} offers no managed network; leave it out, or"
                " run the command where it is offered"
            )
        wire = network.to_wire()
        if "handrail" in wire and "network" not in self.client.extensions:
            raise ExecutorSpawnFailed(
                f"the server at {self.client.where} knows no addresses, reasons, saved rules or"
                " `ask` of a managed network; leave them out"
            )
        return wire

    def _words(self, request: SpawnRequest) -> dict[str, Any]:
        """Encode argv and environment; raises UsageError if the server takes only text."""
        try:
            return _worded(request, _word, _texts)
        except UnicodeError as error:
            if "percentWords" not in self.client.extensions:
                raise UsageError(
                    f"{error.object!r} is not UTF-8, and the server at {self.client.where} takes"  # type: ignore[attr-defined]
                    " only text for arguments and variables; rename it, or put it into a file"
                ) from None
        return {**_worded(request, _percent, _percents), "words": "percent"}


def _spawn_failed(error: RpcError) -> ExecutorSpawnFailed:
    told = error.data if isinstance(error.data, dict) else {}
    unavailable = told.get("kind") == SANDBOX_UNAVAILABLE
    kind = SpawnUnenforceable if unavailable else ExecutorSpawnFailed
    return kind(error.message, errno=_errno(error))


def _errno(error: RpcError) -> int:
    """The kernel's reason for a refused start; other servers than ours have it in their text."""
    if isinstance(error.data, dict):
        return int(error.data.get("errno") or 0)
    found = re.search(r"\(os error (\d+)\)", error.message)
    return int(found[1]) if found else 0


def _limits(given: dict[str, int], offered: frozenset[str]) -> dict[str, int]:
    """Limits as sent; raises ExecutorSpawnFailed for one that the server does not offer."""
    for name in given:
        field = LIMITS[name]
        if f"limit{field[0].upper()}{field[1:]}" not in offered:
            raise ExecutorSpawnFailed(
                f"the limit {name} cannot be enforced by this server; leave it out, or run the"
                " command where it can (`handrail doctor` there says why)"
            )
    return {LIMITS[name]: value for name, value in given.items()}


def _worded(
    request: SpawnRequest,
    text: Callable[[str | bytes], str],
    texts: Callable[[tuple[str, ...]], list[str]],
) -> dict[str, Any]:
    params: dict[str, Any] = {
        "argv": [text(word) for word in request.argv],
        "env": {text(name): text(value) for name, value in request.env.items()},
    }
    if request.arg0 is not None:
        params["arg0"] = text(request.arg0)
    policy = request.env_policy
    if policy is not None:
        params["envPolicy"] = {
            "inherit": policy.inherit.value,
            "ignoreDefaultExcludes": policy.ignore_default_excludes,
            "exclude": texts(policy.exclude),
            "set": {text(name): text(value) for name, value in policy.set.items()},
            "includeOnly": texts(policy.include_only),
        }
    return params


def _word(word: str | bytes) -> str:
    """Text as it is, bytes as text; raises UnicodeError for what is none."""
    if isinstance(word, bytes):
        return word.decode()
    word.encode()
    return word


def _percent(word: str | bytes) -> str:
    return percent_words.encode(os.fsencode(word))


@lru_cache(maxsize=64)
def _uri(path: str) -> str:
    """The URI of a directory, in which most commands of a workspace start."""
    return path_uri.to_uri(os.fsencode(path))


@lru_cache(maxsize=64)
def _texts(words: tuple[str, ...]) -> list[str]:
    """The patterns of a policy, which are the same for nearly all commands."""
    return [_word(word) for word in words]


def _percents(words: tuple[str, ...]) -> list[str]:
    return [_percent(word) for word in words]


def _native(uri: object) -> str | None:
    if not isinstance(uri, str):
        return None
    try:
        return os.fsdecode(path_uri.to_path(uri))
    except (path_uri.BadUri, path_uri.NotNative):
        return None
