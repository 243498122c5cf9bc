"""``Exposure``: blocking version of ``AsyncExposure``."""

from __future__ import annotations

from handrail.workspace.exposure import AsyncExposure
from handrail.workspace.synchronous.blocking import Blocking


class Exposure(Blocking[AsyncExposure]):
    """A listener of this machine that leads to a port of commands.  Made by ``Workspace.expose``.

    It ends with its workspace, or as a context manager.
    """

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
