"""The running sandboxes of one ``Sandbox``, and the filter programs it keeps for the next.

A program may have several, one for each executor, each used in its own thread.  So nothing is
shared: `close` waits for the processes of its own sandboxes only, and closes only its own fds.

Another thread may fork at any time, and a copy of bwrap's end of a socket would keep that socket
from closing.  ``lock`` is held while fds exist that no object records yet; a fork takes it
(``executor/local_sandbox.py``), and the child closes all recorded fds.
"""

from __future__ import annotations

import _thread  # threading itself takes a while to import
import os
import time

from handrail import memory_file, start_bundle
from handrail.sandbox.bwrap.arguments import APART_FD, JOIN_FD, NETWORK_FD, resolver_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable

    from handrail.sandbox.bwrap.instance import RunningSandbox


class Instances:
    """Belongs to one Sandbox; used in one thread."""

    def __init__(self) -> None:
        #: Sandboxes that were made and have not ended.
        self.insides: set[RunningSandbox] = set()
        self.lock = _thread.RLock()  # a signal handler may fork, too
        #: Called when one has ended that covered many missing names.
        self.uncovered: Callable[[], None] | None = None
        #: Filter programs, stubs that run before bwrap, and a file that is shown, by purpose.
        self._filters: dict[tuple[str, bool], int] = {}

    def filter(self, what: str, option: bool) -> int:
        """Open a program at its beginning: each reader needs a file position of its own."""
        fd = self._filters.get((what, option))
        if fd is None:
            fd = self._filters[what, option] = memory_file.of(
                "handrail-sandbox", _text(what, option)
            )
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)

    async def see_out(self, loop: AbstractEventLoop, seconds: float) -> None:
        """Wait for sandboxes that were told to end, and release what they hold."""
        from asyncio import wait  # there is a loop, so it is loaded
        from functools import partial

        from handrail.futures import set_done  # `handrail run` does without it

        ending: list[Future[None]] = []
        for inside in list(self.insides):
            gone: Future[None] = loop.create_future()
            inside.settle(loop, partial(set_done, gone))
            ending.append(gone)
        if ending:
            await wait(ending, timeout=seconds)

    def close(self, seconds: float) -> None:
        """Blocking version of `see_out`; then release everything."""
        until = time.monotonic() + seconds
        for inside in list(self.insides):
            inside.wait(max(0.0, until - time.monotonic()))
            inside.leave()
        while self._filters:
            os.close(self._filters.popitem()[1])

    def disown(self) -> None:
        """Close the fds in a child after a fork; the sandboxes belong to the parent."""
        while self.insides:
            self.insides.pop().disown()


def _text(what: str, option: bool) -> bytes:
    if what == "apart":
        ids = os.geteuid(), os.getegid()
        return start_bundle.computed((what, *ids), lambda: _apart(*ids))
    if what.startswith("join"):
        from handrail.sandbox.bwrap import network_stub  # if a network is shared

        return network_stub.joiner(NETWORK_FD, JOIN_FD, user=what == "join user", apart=option)
    if what == "resolver":
        return resolver_text("127.0.0.1")
    machine = os.uname().machine
    return start_bundle.computed(
        f"{what} {machine} {option}", lambda: _filter(what, machine, option)
    )


def _apart(uid: int, gid: int) -> bytes:
    from handrail.sandbox.bwrap import private_mounts_stub  # if mounts propagate

    return private_mounts_stub.elf(uid, gid, APART_FD)


def _filter(what: str, machine: str, option: bool) -> bytes:
    from handrail.sandbox.syscalls import seccomp_filter  # most starts have it made

    if what == "refuse":
        return seccomp_filter.program(machine, unix_sockets=option)
    return seccomp_filter.announcing(machine, watch=option)
