"""Asks the keeper for a child, and releases the sandbox of one that is not started."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from handrail.process.keeper_client.answers import Spawned
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.spec import ProcessSpec


def spawn(launcher: Launcher, spec: ProcessSpec, note: bytes = b"") -> Coroutine[Any, Any, Spawned]:
    """Ask the keeper for a child, and close the descriptors of its sandbox.

    Raises SpawnFailed or KeeperLost, and the sandbox is given up then.
    """
    try:
        spawning = launcher.spawn(spec, note)
    except BaseException:
        abandon(spec)
        raise
    if spec.sent is not None:
        spec.sent()
    return spawning


def abandon(spec: ProcessSpec) -> None:
    """Release the sandbox of a child that is not started."""
    if spec.sent is not None:
        spec.sent()
    if spec.waiting is not None and spec.waiting.discard is not None:
        spec.waiting.discard()
    if spec.running_sandbox is not None:
        spec.running_sandbox.abandon()
    if spec.network is not None:
        spec.network.ended()


def settle(spec: ProcessSpec, loop: asyncio.AbstractEventLoop) -> None:
    """Release a sandbox that was not set up."""
    if spec.network is not None:
        spec.network.ended()
    if spec.running_sandbox is not None:
        spec.running_sandbox.settle(loop, _nothing)


def _nothing() -> None:
    """Do nothing: the process never began."""
