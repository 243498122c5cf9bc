"""A keeper and a server of two versions: the bytes of version 6 of the link are recorded here."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from pathlib import Path

from handrail.errors import KeeperLost
from handrail.keeper import messages
from handrail.process.keeper_client.answers import Found
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.keeper_client.start_keeper import PROGRAM, KeeperHandle
from tests.keeper.peer import Lodge, lodge, read_line
from tests.support.eventually import eventually
from tests.support.processes import alive, reaped

HELLO_6 = b"\x01\x07\x00\x00\x006\x00%d"
CLAIM_6 = b"\x01\x07\x00\x00\x006\x00%d\x00claim"
WHO_6 = b"\x0d\x08\x00\x00\x00"
REEXEC_6 = b"\x0c\x09\x00\x00\x00%b\x00%b"
REFUSED_6 = b"\x26\x07\x00\x00\x00the keeper speaks version %d of the link"
DONE_6 = b"\x24%b%d"

#: What a keeper of version 6 says and leaves behind, with the numbers of this run filled in: it has
#: one link, one child that runs and one that has ended.
KEEPER_6 = r"""
import os, socket, struct, sys
link = socket.socket(fileno=int(sys.argv[1]))
def told():
    data = link.recv(60000)
    return data[0], struct.unpack("<I", data[1:5])[0], data[5:].split(b"\0")
op, serial, fields = told()
assert (op, len(fields) >= 2) == (1, True), (op, fields)
link.send(b"\x26" + struct.pack("<I", serial) + b"the keeper speaks version 6 of the link")
op, serial, (python, program) = told()
assert op == 12
out, theirs = os.pipe()
read, inp = os.pipe()
actions = [(os.POSIX_SPAWN_DUP2, theirs, 1), (os.POSIX_SPAWN_DUP2, read, 0)]
pid = os.posix_spawn("/bin/cat", ["cat"], os.environ, file_actions=actions)
spool = os.memfd_create("spool")
def line(what, *fields):
    fields = [one if isinstance(one, bytes) else str(one).encode() for one in fields]
    return what + b" " + b"\0".join(fields).hex().encode()
mark = 0x1234 << 24
lines = [
    line(b"keeper", b"1", -1, b"600.0", mark + 2, 1024, 4096, -1, 0, -1, b"None",
         link.fileno(), serial),
    line(b"link", link.fileno(), 1),
    line(b"note", b"session/1", b"kept"),
    line(b"child", b"41", pid, mark + 1, b"-", 0, 0, 0, 0, 1, b'["note"]',
         b"stdout=%d" % out, b"stdin=%d" % inp, b"spool.stdout=%d" % spool),
    line(b"inside", b"41"),
    line(b"ending", b"41", b"asked", 9 << 40, 2000, -1, b"%d 15" % (9 << 40),
         b"%d 9" % ((9 << 40) + 2000)),
    line(b"child", b"42", 99999, mark + 2, 7 << 8, 11, 12, 13, 1, 0, b""),
    line(b"ended", b"42", 123456),
]
state = os.memfd_create("state", 0)
os.write(state, b"\n".join(lines))
for fd in (link.fileno(), out, inp, spool):
    os.set_inheritable(fd, True)
os.execv(python, [python, b"-s", b"-P", b"-S", program, b"--state", b"%d" % state])
"""


def start_old_keeper() -> KeeperHandle:
    ours, theirs = messages.pair()
    with theirs:
        theirs.set_inheritable(True)
        argv = [sys.executable, "-c", KEEPER_6, str(theirs.fileno())]
        pid = os.posix_spawn(sys.executable, argv, os.environ)
    return KeeperHandle(ours, pid)


async def test_an_old_keeper_becomes_one_of_ours_and_keeps_its_children() -> None:
    handle = start_old_keeper()

    launcher = Launcher(handle, asyncio.get_running_loop())
    await launcher.hello()
    assert launcher.keeper_pid == handle.pid
    notes, found = await launcher.found()
    assert notes == {b"session/1": b"kept"}
    runs, ended = sorted(found, key=lambda one: one.child)
    _check(runs, ended)
    os.write(runs.fds[b"stdin"], b"a word\n")
    assert read_line(runs.fds[b"stdout"]) == b"a word"
    answer = await launcher.signal(41, 9, messages.SCOPE_TREE)
    assert messages.Count.unpack(answer.fields).number == 1
    over = asyncio.get_running_loop().create_future()
    launcher.watch(41, lambda *known: over.set_result(known))
    async with asyncio.timeout(10):
        assert (await over)[0] == 9
    for fd in (*runs.fds.values(), *ended.fds.values()):
        os.close(fd)
    await launcher.stop()


def _check(runs: Found, ended: Found) -> None:
    assert runs.note == b'["note"]'
    assert set(runs.fds) == {b"stdout", b"stdin", b"spool.stdout", b"pidfd"}
    assert runs.exit is None
    assert runs.asked is not None
    assert (runs.asked.at, runs.asked.grace) == (9 << 40, 2000)
    assert alive(runs.pid)
    assert ended.exit == (7 << 8, 11, 12, 13)
    assert (ended.killed, ended.ended, ended.fds) == (True, 123.456, {})


def _raw(keeper: Lodge) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(10)
    sock.connect(keeper.path)
    return sock


def test_an_old_server_is_refused_with_a_sentence_and_may_bring_its_own_keeper(
    tmp_path: Path,
) -> None:
    with lodge(tmp_path) as keeper:
        first = keeper.first.hello()
        child = first.spawn(["/bin/sleep", "1000"])
        first.say(messages.BYE)
        first.close()
        with _raw(keeper) as old:
            for hello in (HELLO_6, CLAIM_6):
                old.send(hello % os.getpid())
                assert old.recv(9999) == REFUSED_6 % messages.VERSION
            old.send(WHO_6)
            assert old.recv(9999) == DONE_6 % (struct.pack("<I", 8), 0)
            old.send(REEXEC_6 % tuple(word.encode() for word in PROGRAM))
            assert old.recv(9999) == DONE_6 % (struct.pack("<I", 9), keeper.keeper)
            old.send(HELLO_6 % os.getpid())  # what it has become is no older
            assert old.recv(9999) == REFUSED_6 % messages.VERSION
        assert alive(child.pid)
        second = keeper.connect().hello()
        assert second.listing()[child.name][0] == child.pid
        second.close()


def test_a_keeper_that_stays_of_another_version_is_left_with_a_sentence() -> None:
    """As a server of version 6 sees ours: it is refused twice and does not try for ever."""
    script = (
        "import socket, sys\n"
        "link = socket.socket(fileno=int(sys.argv[1]))\n"
        "said = {1: b'\\x26%bthe keeper speaks version 99 of the link', 12: b'\\x24%b7'}\n"
        "while data := link.recv(60000):\n"
        "    link.send(said[data[0]] % data[1:5])\n"
    )
    ours, theirs = messages.pair()
    with theirs:
        theirs.set_inheritable(True)
        argv = [sys.executable, "-c", script, str(theirs.fileno())]
        pid = os.posix_spawn(sys.executable, argv, os.environ)

    async def main() -> str:
        launcher = Launcher(KeeperHandle(ours, pid, found=True), asyncio.get_running_loop())
        try:
            await launcher.hello()
        except KeeperLost as error:
            return str(error)
        finally:
            launcher.link._lost()
        return ""

    assert asyncio.run(main()) == "the keeper speaks version 99 of the link"
    eventually(lambda: reaped(pid), "it ends with its link")
