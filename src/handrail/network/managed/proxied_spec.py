"""The spec of a process with a managed network, near and far alike: variables, and its network."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING

from handrail.network import variables
from handrail.process.spec import ProcessSpec

if TYPE_CHECKING:
    from handrail.network.managed.porter_life import PorterLife
    from handrail.network.managed.process import ManagedProcess
    from handrail.network.managed.start import ManagedStart

_LOOK_SECONDS = 10.0


def begin(
    life: PorterLife, start: ManagedStart, spec: ProcessSpec
) -> tuple[ProcessSpec, ManagedProcess]:
    """The spec with the variables that lead to its proxy, and its network; raises OSError."""
    network = life.start(start)
    env = variables.proxied(
        spec.env,
        socks=start.config.enable_socks5,
        local_binding=start.config.allow_local_binding,
        java=_has_java(spec.env.get(b"PATH", b""), monotonic() // _LOOK_SECONDS),
        port=variables.INNER_PORT if start.enforced else network.port,
    )
    return replace(spec, env=env, network=network), network


@lru_cache(16)
def _has_java(path: bytes, _when: float) -> bool:
    """Whether a JVM is there, as of a while ago: each start asks."""
    return any(place and os.access(place + b"/java", os.X_OK) for place in path.split(b":"))
