"""What one ``Sandbox`` has to look after: the sandboxes it made, and what it keeps for the next.

There may be several in a program, one for each executor, each used in a thread of its own.  So none
of this is shared: whoever closes waits for those inside its own sandboxes, and nobody else's
descriptors go with it.

A fork in another thread may come at any time, and a copy of bwrap's end of a line would keep it
from ending.  ``lock`` is held while there are descriptors that nobody has written down;
whoever forks takes it (``executor/local_sandbox.py``), and the child closes what is written down.
"""

from __future__ import annotations

import _thread  # threading itself takes a while to import
import os
import time

from handrail import unnamed_file
from handrail.sandbox.bwrap.arguments import APART_FD
from handrail.sandbox.syscalls import seccomp_filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from handrail.sandbox.bwrap.instance import RunningSandbox


class Instances:
    """Of one Sandbox, used in one thread."""

    def __init__(self) -> None:
        #: Those that were made and whose end was not seen.
        self.insides: set[RunningSandbox] = set()
        self.lock = _thread.RLock()  # a signal handler may fork, too
        #: Filter programs, and the one before bwrap, by what they are for.
        self._filters: dict[tuple[str, bool], int] = {}

    def filter(self, what: str, option: bool) -> int:
        """A program, to be read from its beginning: each reader needs a position of its own."""
        fd = self._filters.get((what, option))
        if fd is None:
            machine = os.uname().machine
            if what == "apart":
                from handrail.sandbox.bwrap import private_mounts_stub  # where mounts spread

                text = private_mounts_stub.elf(os.geteuid(), os.getegid(), APART_FD)
            elif what == "refuse":
                text = seccomp_filter.program(machine, unix_sockets=option)
            else:
                text = seccomp_filter.announcing(machine, watch=option)
            fd = self._filters[what, option] = memory(text)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)

    async def see_out(self, loop: AbstractEventLoop, seconds: float) -> None:
        """Clear away what sandboxes leave that were told to end, when nobody is in them."""
        from asyncio import wait  # there is a loop, so it is there
        from functools import partial

        ending: list[Future[None]] = []
        for inside in list(self.insides):
            gone: Future[None] = loop.create_future()
            inside.settle(loop, partial(_tell, gone))
            ending.append(gone)
        if ending:
            await wait(ending, timeout=seconds)

    def close(self, seconds: float) -> None:
        """The same for whoever has nothing else to do; then let go of everything."""
        until = time.monotonic() + seconds
        for inside in list(self.insides):
            inside.wait(max(0.0, until - time.monotonic()))
            inside.leave()
        while self._filters:
            os.close(self._filters.popitem()[1])

    def disown(self) -> None:
        """In a child after a fork: all of it is the parent's."""
        while self.insides:
            self.insides.pop().disown()


def memory(text: bytes) -> int:
    """A descriptor to read this from."""
    fd = unnamed_file.create("handrail-sandbox")
    try:
        view = memoryview(text)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _tell(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)
