"""The managed networks of a local executor.  Imported with the first process that asks for one."""

from __future__ import annotations

import asyncio
import os

from handrail.network.managed import proxied_spec
from handrail.network.managed.porter_life import PorterLife
from handrail.network.managed.process import ManagedProcess
from handrail.network.managed.start import NetworkRequest
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.spec import ProcessSpec


class LocalNetwork:
    """The porter of one executor; it ends with the executor's keeper."""

    def __init__(self, launcher: Launcher, loop: asyncio.AbstractEventLoop) -> None:
        self._life = PorterLife(launcher, loop, os.environ)

    def begin(
        self, request: NetworkRequest, spec: ProcessSpec, *, enforced: bool
    ) -> tuple[ProcessSpec, ManagedProcess]:
        """The spec with the variables that lead to its proxy, and its network; raises OSError."""
        return proxied_spec.begin(self._life, request.start(enforced=enforced), spec)

    def close(self) -> None:
        """Release the porter's descriptors; the keeper ends the porter."""
        self._life.close()
