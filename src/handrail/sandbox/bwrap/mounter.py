"""Whether the mounter works here, and what one start needs of it (``mounter_stub.py``)."""

from __future__ import annotations

import _socket  # socket itself takes a while to import
import os

from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox.bwrap import mounter_stub, premount
from handrail.sandbox.bwrap.arguments import (
    BEFORE_FD,
    MOUNTED_FD,
    MOUNTER_GO_FD,
    MOUNTER_TOLD_FD,
    MOUNTS_FD,
    waiting,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from handrail.sandbox.bwrap.premount import Place
    from handrail.sandbox.plan.plan import Plan

_ITSELF = b"/proc/self/fd/%d" % BEFORE_FD
#: By whether bwrap outlives its parent.
_stubs: dict[bool, mounter_stub.Stub] = {}
#: By bwrap's path: whether it works with one.
_working: dict[bytes, bool] = {}


def program(plan: Plan, masks: Iterable[Place], *, lasting: bool) -> bytes:
    """The program that mounts what a plan has beforehand, and these."""
    stub = _stub(lasting)
    known = plan.mounter_records.get(lasting)
    if known is None:
        alone = {place for place in plan.roots_beforehand if place[0] != premount.PIN}
        places = (one for one in premount.places(plan.beforehand) if one not in alone)
        roots = stub.records(plan.roots_beforehand, roots=True)
        known = roots + mounter_stub.END, stub.records(places)
        plan.mounter_records[lasting] = known
    return stub.elf(known[0], known[1] + stub.records(masks) + mounter_stub.END)


def lines() -> list[tuple[int, int]]:
    """The sockets between bwrap and the mounter, with their numbers.

    bwrap reads the byte in the first and closes it; the mounter takes that in the second and closes
    it.  A byte that is left is a reset, by which each sees that the other has failed.
    """
    told, tells = _socket.socketpair()
    told.send(b"\n")
    told.shutdown(_socket.SHUT_WR)
    waits, go = _socket.socketpair()
    waits.send(b"\n")
    ends = (tells, waits, told, go)
    numbers = (MOUNTS_FD, MOUNTED_FD, MOUNTER_TOLD_FD, MOUNTER_GO_FD)
    return [(which, end.detach()) for which, end in zip(numbers, ends, strict=True)]


def works(bwrap: bytes) -> bool:
    """Whether a mounter can mount in the namespace of this bwrap; tried once."""
    found = _working.get(bwrap)
    if found is None:
        found = _working[bwrap] = seccomp_spawn.startable() and _try(bwrap)
    return found


def runs() -> bool:
    """Whether this machine lets us make mount namespaces and start a mounter beside a program."""
    if not seccomp_spawn.startable():
        return False
    text = _stub(False).elf(mounter_stub.END, mounter_stub.END)
    return premount.runs(text, (_ITSELF, b"/bin/true"), lines())


def _stub(lasting: bool) -> mounter_stub.Stub:
    found = _stubs.get(lasting)
    if found is None:
        found = mounter_stub.Stub(os.geteuid(), os.getegid(), lasting=lasting)
        _stubs[lasting] = found
    return found


def _try(bwrap: bytes) -> bool:
    place = os.path.realpath(os.path.dirname(bwrap))
    status = os.stat(place)
    stub = _stub(False)
    place_itself = (premount.PIN, status.st_dev, status.st_ino, place)
    roots, places = stub.records([place_itself], roots=True), stub.records([place_itself])
    text = stub.elf(roots + mounter_stub.END, places + mounter_stub.END)
    words = (_ITSELF, bwrap, b"--unshare-user", b"--ro-bind", b"/", b"/", b"--dev", b"/dev")
    return premount.runs(text, (*words, *waiting(MOUNTS_FD, MOUNTED_FD), b"/bin/true"), lines())
