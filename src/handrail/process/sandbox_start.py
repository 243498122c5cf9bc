"""From a child that the keeper has started to a sandbox that stands; and a child not wanted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from handrail.errors import SandboxUnavailable
from handrail.process.child import Child
from handrail.process.keeper_client.answers import Spawned
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.recovery import release
from handrail.process.spawning import settle, spawn
from handrail.process.spec import ProcessSpec


async def set_up(
    launcher: Launcher,
    loop: asyncio.AbstractEventLoop,
    key: str,
    spec: ProcessSpec,
    spawned: Spawned,
    note: Callable[[ProcessSpec], bytes],
    cancelled: Callable[[], bool],
) -> tuple[ProcessSpec, Spawned]:
    """Wait until a sandbox is set up; retried when the file system changed meanwhile.

    ``note``: what the next server has to know of it.  Lets go of everything when it raises.
    """
    while True:
        inside = spec.running_sandbox
        if inside is None:
            return spec, spawned
        try:
            if spawned.listener >= 0:
                keep = partial(launcher.keep, spawned.child, release.CALLS)
                way_out = None if spec.network is None else spec.network.way_out
                inside.attend(spawned.listener, loop, keep, way_out)
            stood = await inside.set_up(loop)
            stood = stood and await launcher.use(spec, spawned.child, note)
            if stood and await inside.set_up(loop):
                return spec, spawned
            said = _last_words(spawned)
        except BaseException:
            end(Child(key, spec, spawned, launcher, loop, None))
            raise
        network, failed = spec.network, replace(spec, network=None)
        await kill(Child(key, failed, spawned, launcher, loop, None))
        problem = SandboxUnavailable(said or "it was killed")
        try:
            if spec.again is None or cancelled():
                raise problem
            spec = replace(spec.again(problem), network=network)
        except BaseException:
            if network is not None:
                network.ended()
            raise
        try:
            spawned = await spawn(launcher, spec, note(spec))
        except BaseException:
            settle(spec, loop)
            raise
        if spec.network is not None:
            spec.network.begin(spawned.child)


def _last_words(spawned: Spawned) -> str:
    """The text that bwrap wrote to its stderr, or to the terminal."""
    try:
        return (
            os.read(spawned.fds[min(1, len(spawned.fds) - 1)], 4096)
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""


async def kill(child: Child) -> None:
    """Kill an unwanted child, and release it."""
    try:
        await child.ending.kill()
    except BaseException:
        end(child)
        raise
    child.discard()


def end(child: Child) -> None:
    """Version of `kill` that does not wait, with or without a keeper."""
    if child.launcher.link.alive:
        child.launcher.kill(child.number)
    else:
        release.kill(child)
    child.discard()
