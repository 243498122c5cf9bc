"""``Exposure``: blocking version of ``AsyncExposure``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self

from handrail.name_hints import NamesChecked
from handrail.workspace.exposure import AsyncExposure


class Exposure(NamesChecked):
    """A listener of this machine that leads to a port of commands.  Made by ``Workspace.expose``.

    It ends with its workspace, or as a context manager.
    """

    def __init__(
        self, twin: AsyncExposure, call: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._twin = twin
        self._call = call

    def __repr__(self) -> str:
        return repr(self._twin).replace("AsyncExposure", "Exposure", 1)

    @property
    def port(self) -> int:
        """The port of this machine."""
        return self._twin.port

    @property
    def inner_port(self) -> int:
        """The port that commands listen on."""
        return self._twin.inner_port

    @property
    def url(self) -> str:
        """Its address for a browser."""
        return self._twin.url

    def close(self) -> None:
        """Stop listening and break what is connected; can be repeated, raises nothing."""
        self._call(self._twin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
