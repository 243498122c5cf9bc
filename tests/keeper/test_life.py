"""How long a keeper lives, whom it obeys, and what it keeps for the next server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from handrail.keeper import messages
from handrail.process.keeper_client.start_keeper import start_keeper
from tests.keeper.peer import (
    PYTHON,
    Lodge,
    Peer,
    Refused,
    embedded,
    held_by,
    lodge,
    read_all,
    read_line,
)
from tests.support.eventually import eventually
from tests.support.processes import alive, bearing, children, descriptors, exists, reaped

SLEEP = ["/bin/sleep", "1000"]
SPAWN_TRUE = messages.Spawn(
    b"1", messages.MODE_PIPES, 24, 80, b"/bin/true", b"", False, [b"true"], {}, [], {}
).pack()
ESCAPE = "setsid sh -c 'echo $$; exec sleep 1000' & echo $$; wait"


# --- who is obeyed -------------------------------------------------------------------------------


def test_nobody_is_obeyed_before_hello() -> None:
    with embedded(hello=False) as peer:
        for op in (messages.SPAWN, messages.SIGNAL, messages.LIST, messages.STOP, messages.ORPHANS):
            answer = peer.ask(op, b"1")
            assert (answer.op, answer.fields) == (messages.REFUSED, [b"say hello first"])
        peer.hello()
        peer.exit(peer.sh("true"))


def test_another_version_is_refused_and_may_try_again() -> None:
    with embedded(hello=False) as peer:
        with pytest.raises(Refused, match=f"version {messages.VERSION}"):
            peer.hello(version=messages.VERSION + 1)
        peer.hello()


def test_second_server_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:
        first = keeper.first.hello()
        child = first.spawn(SLEEP)
        second = keeper.connect()
        with pytest.raises(Refused, match=f"in use by process {os.getpid()}"):
            second.hello()
        for op in (messages.SPAWN, messages.SIGNAL, messages.STOP):
            assert second.ask(op, child.name, b"9", messages.SCOPE_TREE).op == messages.REFUSED
        first.settle()  # and the first one is still obeyed
        first.close()
        eventually(lambda: _welcome(second), "the lease is free")
        assert second.listing()[child.name][0] == child.pid
        second.close()


def _welcome(peer: Peer) -> bool:
    try:
        peer.hello()
    except Refused:
        return False
    return True


def test_a_visitor_that_leaves_disturbs_nobody(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:
        first = keeper.first.hello()
        before = descriptors(keeper.keeper)
        for _ in range(5):
            keeper.connect().close()
        visitor = keeper.connect()
        with pytest.raises(Refused):
            visitor.hello()
        visitor.close()
        first.exit(first.sh("true"))
        eventually(lambda: len(descriptors(keeper.keeper)) == len(before) + 2, "links are closed")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_not_let_in() -> None:
    place = Path(tempfile.mkdtemp(prefix="handrail-test-"))
    try:
        with lodge(place) as keeper:
            keeper.first.hello()
            place.chmod(0o755)
            os.chmod(keeper.path, 0o777)
            program = (
                "import socket,sys\n"
                "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
                "s.connect(sys.argv[1])\n"
                "print(s.recv(10))"
            )
            command = ["/usr/bin/env", "python3", "-c", program, keeper.path]
            try:
                answer = subprocess.run(
                    command, user=65534, group=65534, capture_output=True, check=True, timeout=8
                )
            except PermissionError:
                pytest.skip("this root cannot become somebody else")
            assert answer.stdout == b"b''\n"
            keeper.first.settle()
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    "packet",
    [
        b"\x01",  # no whole head
        b"\x82\0\0\0\0",  # a big body without its memfd
        b"\x01\0\0\0\0nonsense",  # HELLO without numbers
        b"\x01\0\0\0\0" + b"%d" % messages.VERSION,  # HELLO with too little
    ],
)
def test_nonsense_ends_the_link_it_came_on_and_nothing_else(tmp_path: Path, packet: bytes) -> None:
    with lodge(tmp_path) as keeper:
        first = keeper.first.hello()
        child = first.spawn(SLEEP)
        visitor = keeper.connect()
        visitor.sock.send(packet)
        assert visitor.take() is None
        visitor.close()
        assert first.listing()[child.name][0] == child.pid


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        (messages.SPAWN, (b"1",)),
        (
            messages.SPAWN,
            (*SPAWN_TRUE[:7], b"many", b"true"),
        ),
        (messages.SPAWN, (*SPAWN_TRUE,)),  # no cwd
        (messages.SPAWN, (*SPAWN_TRUE, b"one too many")),
        (messages.SIGNAL, (b"1", b"kill", messages.SCOPE_TREE)),
        (messages.SIGNAL, ()),
        (messages.KEEP, ()),
        (messages.HELLO, (b"%d" % messages.VERSION,)),
        (messages.DROP, (b"child",)),
    ],
)
def test_nonsense_of_the_holder_costs_it_the_lease_and_no_child(
    tmp_path: Path, op: int, fields: tuple[bytes, ...]
) -> None:
    with lodge(tmp_path) as keeper:
        first = keeper.first.hello()
        child = first.spawn(SLEEP, name=b"child")
        first.say(op, *fields)
        assert first.take() is None
        with_lease = keeper.connect().hello()
        assert with_lease.listing()[child.name][:2] == (child.pid, None)
        with_lease.close()


def test_what_means_nothing_does_nothing(server: Peer) -> None:
    child = server.spawn(SLEEP)
    before = server.held_open()
    null = os.open("/dev/null", os.O_RDONLY)
    server.say(99, b"unknown", fds=(null,))
    server.say(messages.KEEP, child.name, b"nothing")
    server.say(messages.KEEP, b"stranger", b"spool", fds=(null, null))
    server.say(messages.KEEP, child.name, b"one of two", fds=(null, null))
    server.say(messages.DROP, child.name, b"unknown")
    server.say(messages.DROP, child.name, b"one of two")
    server.say(messages.RELEASE, b"stranger")
    server.say(messages.FORGET, b"stranger")
    os.close(null)
    assert server.held_open() == before


# --- embedded ------------------------------------------------------------------------------------


def test_embedded_keeper_ends_with_its_link_and_takes_the_children_along() -> None:
    handle = start_keeper()
    peer = Peer(handle.sock, handle.pid).hello()
    escaped = peer.sh(ESCAPE)
    pids = [int(read_line(escaped.out)) for _ in range(2)]
    terminal = peer.spawn(SLEEP, mode=messages.MODE_PTY)
    peer.close()
    eventually(lambda: reaped(handle.pid), "the keeper ends")
    for pid in (*pids, terminal.pid):
        assert not exists(pid)


def test_embedded_keeper_ends_with_an_owner_that_never_spoke() -> None:
    handle = start_keeper()
    handle.sock.close()
    eventually(lambda: reaped(handle.pid), "the keeper ends")


OWNER = """
import os, signal, sys
sys.path[:0] = sys.argv[2].split(":")
from tests.keeper.peer import Peer, start_keeper, read_line
handle = start_keeper()
peer = Peer(handle.sock, handle.pid).hello()
child = peer.sh(sys.argv[1])
pids = [int(read_line(child.out)) for _ in range(2)]
print(handle.pid, *pids, flush=True)
signal.pause()
"""


def test_embedded_keeper_ends_with_an_owner_that_is_killed() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, ESCAPE, ":".join(filter(None, sys.path))],
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    with owner.stdout:
        keeper, *pids = map(int, owner.stdout.readline().split())
    assert all(alive(pid) for pid in pids)
    owner.kill()
    owner.wait()
    eventually(lambda: reaped(keeper), "the keeper ends")  # it came to us, its subreaper
    for pid in pids:
        assert not exists(pid)


# --- with a listener -----------------------------------------------------------------------------


def test_children_and_their_output_outlive_a_killed_server(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:
        # A server of its own process, so that it can be killed.
        server = subprocess.Popen(_command(_SERVER, keeper), stdout=subprocess.PIPE)
        keeper.first.close()
        assert server.stdout is not None
        with server.stdout:
            pids = dict(line.split() for line in server.stdout)
        server.kill()
        server.wait()
        eventually(lambda: not exists(int(pids[b"ends"])), "it exits while there is no server")

        second = keeper.connect().hello()
        found = second.listing()
        assert {name: pid for name, (pid, _, _) in found.items()} == {
            name: int(pid) for name, pid in pids.items()
        }
        assert found[b"ends"][1] == 7 << 8
        assert read_all(found[b"ends"][2][b"stdout"]) == b"last words\n"
        assert found[b"asks"][1] == found[b"terminal"][1] is None
        os.write(found[b"asks"][2][b"stdin"], b"a word\n")
        assert read_line(found[b"asks"][2][b"stdout"]) == b"a word"
        os.write(found[b"terminal"][2][b"pty"], b"typed\n")
        lines = {read_line(found[b"terminal"][2][b"pty"]) for _ in range(2)}
        assert lines == {b"typed"}
        held = os.pread(found[b"asks"][2][b"spool.stdout"], 100, 0)
        assert held == b"what the first server had taken"
        # The names of the first server are still taken; those of the second are its own.
        child = second.sh("true", name=b"new")
        second.exit(child)
        second.ask(messages.STOP)
        second.close()


def _command(program: str, keeper: Lodge) -> list[str]:
    path = ":".join(filter(None, sys.path))
    return [sys.executable, "-c", program, keeper.path, path, str(keeper.keeper)]


_SERVER = """
import os, signal, sys
sys.path[:0] = sys.argv[2].split(":")
import socket
from handrail.keeper import messages as link
from tests.keeper.peer import Peer, Refused
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
peer = Peer(sock, int(sys.argv[3]))
while True:
    try:
        peer.hello()
        break
    except Refused:
        pass
asks = peer.sh("cat", mode=link.MODE_STDIN, name=b"asks")
spool = os.memfd_create("spool")
os.write(spool, b"what the first server had taken")
peer.say(link.KEEP, b"asks", b"spool.stdout", fds=(spool,))
terminal = peer.sh("cat", mode=link.MODE_PTY, name=b"terminal")
ends = peer.sh("while kill -0 %d 2>/dev/null; do sleep 0.01; done; echo last words; exit 7"
    % os.getpid(), name=b"ends")
for child in (asks, terminal, ends):
    print(child.name.decode(), child.pid)
sys.stdout.flush()
os.close(1)
signal.pause()
"""


def test_keeper_waits_for_the_next_server_only_so_long(tmp_path: Path) -> None:
    with lodge(tmp_path, orphan_ttl=0.15) as keeper:
        first = keeper.first.hello()
        child = first.spawn(SLEEP)
        first.exit(first.sh("true"))  # nothing runs out while it is there
        first.close()
        eventually(lambda: reaped(keeper.keeper), "the keeper ends")
        assert not exists(child.pid)


def test_keeper_whose_server_never_spoke_does_not_wait_for_ever(tmp_path: Path) -> None:
    with lodge(tmp_path, orphan_ttl=0.1) as keeper:
        keeper.first.close()
        eventually(lambda: reaped(keeper.keeper), "the keeper ends")


def test_visitors_do_not_prolong_the_wait(tmp_path: Path) -> None:
    with lodge(tmp_path, orphan_ttl=0.3) as keeper:
        keeper.first.hello()
        keeper.first.close()

        def visited() -> bool:
            try:
                visitor = keeper.connect()
            except OSError:
                return True
            visitor.close()
            return False

        eventually(visited, "the keeper ends although somebody knocks all the time")
        eventually(lambda: reaped(keeper.keeper), "the keeper ends")


def test_a_new_server_ends_the_wait(tmp_path: Path) -> None:
    with lodge(tmp_path, orphan_ttl=0.4) as keeper:
        first = keeper.first.hello()
        child = first.spawn(SLEEP)
        first.close()
        second = keeper.connect().hello()
        # Past the time that was left: the helper of this test takes that long.
        second.exit(second.spawn(["/bin/sleep", "0.6"], name=b"second"))
        assert alive(child.pid)
        second.close()


# --- the end on request --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "sigterm"])
@pytest.mark.parametrize("with_listener", [False, True])
def test_everything_ends(tmp_path: Path, how: str, with_listener: bool) -> None:
    listener = None
    if with_listener:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
    handle = start_keeper(listener=listener)
    if listener is not None:
        listener.close()
    with held_by(handle) as peer:
        escaped = peer.sh(ESCAPE)
        pids = [int(read_line(escaped.out)) for _ in range(2)]
        many = [peer.spawn(SLEEP) for _ in range(40)]
        if how == "stop":
            assert peer.ask(messages.STOP).op == messages.DONE
        else:
            os.kill(handle.pid, signal.SIGTERM)
        while peer.take() is not None:
            pass
        for pid in (*pids, *(child.pid for child in many)):
            eventually(lambda pid=pid: not exists(pid), "ended with the keeper")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE])
def test_keeper_does_not_end_by_other_signals(server: Peer, number: int) -> None:
    os.kill(server.keeper, number)
    server.exit(server.sh("true"))


# --- a server that sleeps ------------------------------------------------------------------------


def test_nothing_is_lost_on_a_server_that_does_not_read(tmp_path: Path) -> None:
    count = 1200  # more than the socket holds, eight in a packet
    with lodge(tmp_path) as keeper:
        server = keeper.first.hello()
        before = descriptors(keeper.keeper)
        names = [server.say_spawn(["/bin/true"]) for _ in range(count)]
        eventually(lambda: len(descriptors(keeper.keeper)) > 3 * count, "all are started")
        eventually(lambda: not children(keeper.keeper), "all are reaped although nobody reads")
        visitor = keeper.connect()  # and the keeper still listens to others
        with pytest.raises(Refused):
            visitor.hello()
        visitor.close()
        held = [server.spawned() for _ in range(count)]
        assert [child.name for child in held] == names
        assert all(server.exit(child).status == 0 for child in held)
        for at in range(0, count, 100):
            server.say(messages.FORGET, *names[at : at + 100])
        server.let_go()
        server.settle()
        # The socket by which the thread that starts many gets their descriptors.
        eventually(lambda: len(descriptors(keeper.keeper)) <= len(before) + 1, "all are closed")


def test_a_server_that_is_gone_with_answers_unread_leaves_no_descriptor(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:
        first = keeper.first.hello()
        before = len(descriptors(keeper.keeper))
        for _ in range(1200):
            first.say_spawn(["/bin/true"])
        eventually(lambda: len(descriptors(keeper.keeper)) > 3600, "all are started")
        first.close()
        second = keeper.connect()
        eventually(lambda: _welcome(second), "the lease is free")
        names = list(second.listing())
        second.let_go()
        for at in range(0, len(names), 100):
            second.say(messages.FORGET, *names[at : at + 100])
        second.settle()
        eventually(lambda: len(descriptors(keeper.keeper)) <= before + 2, "all are closed")
        second.close()


def test_a_stopped_server_finds_everything_when_it_goes_on(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:
        sleeper = subprocess.Popen(_command(_SLEEPER, keeper), stdout=subprocess.PIPE)
        keeper.first.close()
        assert sleeper.stdout is not None
        with sleeper.stdout:
            assert sleeper.stdout.readline() == b"stopping\n"
            eventually(lambda: len(children(keeper.keeper)) == 0, "all children have exited")
            visitor = keeper.connect()
            with pytest.raises(Refused, match=f"process {sleeper.pid}"):
                visitor.hello()
            visitor.close()
            os.kill(sleeper.pid, signal.SIGCONT)
            assert sleeper.stdout.readline() == b"300 exits\n"
        assert sleeper.wait(8) == 0


_SLEEPER = """
import os, signal, sys
sys.path[:0] = sys.argv[2].split(":")
import socket
from tests.keeper.peer import Peer, Refused
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
peer = Peer(sock, int(sys.argv[3]))
while True:
    try:
        peer.hello()
        break
    except Refused:
        pass
for _ in range(300):
    peer.say_spawn(["/bin/true"])
os.write(1, b"stopping\\n")
os.kill(os.getpid(), signal.SIGSTOP)
held = [peer.spawned() for _ in range(300)]
for child in held:
    assert peer.exit(child).status == 0
os.write(1, b"%d exits\\n" % len(peer.exits))
"""


def test_keeper_runs_isolated() -> None:
    with embedded() as server:
        with open(f"/proc/{server.keeper}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        assert words[:4] == [os.fsencode(PYTHON), b"-s", b"-P", b"-S"]
        assert bearing("keeper/__main__.py") >= {server.keeper}
