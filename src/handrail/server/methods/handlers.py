"""The table of handlers: which function answers which method, found by one look-up per request.

``protocol/methods.py`` has the shapes of each method; here they are joined with the handler and its
counters.  A handler answers at once with a shape, or is a coroutine when it has to wait.  Only this
package sees both the wire's shapes and the process layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from handrail.protocol.methods import INITIALIZE, METHODS, Lane
from handrail.server.methods import process_lookup
from handrail.server.methods.process_end import process_list, process_signal, process_terminate
from handrail.server.methods.process_read import process_read
from handrail.server.methods.process_start import process_start
from handrail.server.methods.process_wait import process_wait
from handrail.server.methods.process_write import process_close_stdin, process_resize, process_write
from handrail.server.methods.session import (
    environment_info,
    environment_status,
    initialize,
    server_status,
    session_close,
    session_detach,
    session_result,
    session_temporary,
)
from handrail.server.metrics import RequestMetrics, ServerMetrics

if TYPE_CHECKING:
    from handrail.server.connection import Connection

Handler = Callable[["Connection", Any], Any]


def _imported_later(family: str, module: str, table: str) -> dict[str, Handler]:
    """Handlers of a family whose module is imported with the first request for one of them.

    A client waits for the start of a server, and many use none of them.
    """

    @cache
    def handlers() -> dict[str, Handler]:
        found: dict[str, Handler] = getattr(import_module(f"{__package__}.{module}"), table)
        return found

    def later(name: str) -> Handler:
        def handler(conn: Connection, params: Any) -> Any:
            return handlers()[name](conn, params)

        return handler

    # One without params is of the wire, and not offered.
    return {
        name: later(name)
        for name, method in METHODS.items()
        if method.family == family and method.params is not None
    }


HANDLERS: dict[str, Handler] = {
    "initialize": initialize,
    "environment/info": environment_info,
    "environment/status": environment_status,
    "session/close": session_close,
    "session/temporary": session_temporary,
    "session/detach": session_detach,
    "session/result": session_result,
    "server/status": server_status,
    "process/start": process_start,
    "process/read": process_read,
    "process/write": process_write,
    "process/closeStdin": process_close_stdin,
    "process/resize": process_resize,
    "process/signal": process_signal,
    "process/terminate": process_terminate,
    "process/list": process_list,
    "process/wait": lambda conn, params: process_wait(
        conn, params, process_lookup.child(conn, params.process_id)
    ),
    **_imported_later("filesystem", "files_sandboxed", "FILE_HANDLERS"),
    **_imported_later("http", "http", "HTTP_HANDLERS"),
    **_imported_later("capability discovery", "capabilities", "CAPABILITY_HANDLERS"),
    **_imported_later("environment config", "config", "CONFIGURATION_HANDLERS"),
    **_imported_later("network", "process_network", "NETWORK_HANDLERS"),
    **_imported_later("loopback", "loopback", "LOOPBACK_HANDLERS"),
    **_imported_later("workspace", "workspace", "WORKSPACE_HANDLERS"),
}


class MethodRow:
    """Everything a request needs to know about its method."""

    __slots__ = ("_measures", "_resolve", "family", "handler", "known", "lane", "shape")

    def __init__(
        self,
        lane: Lane,
        family: str,
        shape: type[Any] | None,
        handler: Handler | None,
        resolve: Callable[[], RequestMetrics],
        *,
        known: bool,
    ) -> None:
        self.lane = lane
        self.family = family
        self.shape = shape
        self.handler = handler
        self._resolve = resolve
        self._measures: RequestMetrics | None = None
        self.known = known

    @property
    def measures(self) -> RequestMetrics:
        """The counters; made on first use, so that /metrics shows what was used."""
        if self._measures is None:
            self._measures = self._resolve()
        return self._measures


class MethodLookup:
    """All rows of one server; unknown methods share one."""

    def __init__(self, measures: ServerMetrics) -> None:
        self._rows = {
            name: MethodRow(
                method.lane,
                "" if name == INITIALIZE else method.family,
                method.params,
                HANDLERS.get(name),
                partial(measures.method, name),
                known=True,
            )
            for name, method in METHODS.items()
        }
        self._unknown = MethodRow(
            Lane.ORDINARY, "", None, None, partial(measures.method, ""), known=False
        )

    def find(self, method: str) -> MethodRow:
        return self._rows.get(method, self._unknown)
