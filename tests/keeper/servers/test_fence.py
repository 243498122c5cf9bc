"""One server after another: who keeps the lease, who is ended, and what a new keeper knows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from handrail.keeper import messages
from handrail.keeper.restart import save as reexec_save
from handrail.process.keeper_client.start_keeper import PROGRAM, check_keeper
from tests.keeper.peer import Lodge, Peer, lodge, read_all
from tests.support.eventually import eventually
from tests.support.processes import alive, descriptors

#: A server of its own process: takes the lease, tells so, and answers questions or not.
_HOLDER = """
import os, socket, sys
sys.path[:0] = sys.argv[2].split(":")
from handrail.keeper import messages as link
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
link.send(sock, link.HELLO, 1, link.Hello(link.VERSION, os.getpid()).pack())
print(link.receive(sock).op, flush=True)
while True:
    message = link.receive(sock)
    if message is not None and message.op == link.ASKED and sys.argv[3] == "answers":
        link.send(sock, link.ALIVE)
"""


@contextmanager
def holder(keeper: Lodge, how: str) -> Iterator[subprocess.Popen[bytes]]:
    keeper.first.close()
    path = ":".join(filter(None, sys.path))
    argv = [sys.executable, "-c", _HOLDER, keeper.path, path, how]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert int(server.stdout.readline()) == messages.WELCOME
            yield server
        finally:
            server.kill()


def claim(keeper: Lodge) -> tuple[Peer, messages.Message]:
    peer = keeper.connect()
    return peer, peer.ask(
        messages.HELLO, *messages.Hello(messages.VERSION, os.getpid(), claim=True).pack()
    )


def test_a_holder_that_answers_keeps_it(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper, holder(keeper, "answers") as server:
        peer, answer = claim(keeper)
        assert answer.op == messages.REFUSED
        assert b"%d" % server.pid in answer.fields[0]
        assert peer.ask(messages.WHO).fields == [b"%d" % server.pid]
        assert server.poll() is None
        peer.close()


def test_a_holder_that_is_stopped_is_ended_first(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper, holder(keeper, "answers") as server:
        server.send_signal(signal.SIGSTOP)
        peer, answer = claim(keeper)
        assert answer.op == messages.WELCOME
        assert server.wait(10) == -signal.SIGKILL
        assert peer.ask(messages.WHO).fields == [b"%d" % os.getpid()]
        peer.close()


def test_a_holder_that_does_not_answer_is_ended_after_a_while(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper, holder(keeper, "is deaf") as server:
        peer, answer = claim(keeper)
        assert answer.op == messages.WELCOME
        assert server.wait(10) == -signal.SIGKILL
        peer.close()


def test_who_asks_and_leaves_disturbs_nobody(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper, holder(keeper, "answers") as server:
        for _ in range(3):
            peer = keeper.connect()
            peer.say(messages.HELLO, *messages.Hello(messages.VERSION, 1, claim=True).pack())
            peer.close()
        peer, answer = claim(keeper)
        assert answer.op == messages.REFUSED
        assert server.poll() is None
        peer.close()


def test_notes_are_kept_for_the_next(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:
        first = keeper.first.hello()
        for note in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"", False)):
            first.say(messages.NOTE, *messages.Note(*note).pack())
        first.close()
        second = keeper.connect()
        eventually(lambda: second.ask(messages.WHO).fields == [b"0"], "the lease is free")
        second.hello()
        second.say(messages.LIST)
        noted = second.take()
        assert noted is not None
        note = messages.Note.unpack(noted.fields)
        assert (noted.op, note.key, note.value) == (messages.NOTED, b"a", b"3")
        done = second.take()
        assert done is not None
        assert done.op == messages.DONE
        second.close()


# --- a keeper that becomes another ---------------------------------------------------------------


def test_the_check_before_a_handover() -> None:
    assert check_keeper() is None
    argv = [*PROGRAM[:1], "-I", "-S", PROGRAM[1], "--check", "another form"]
    assert subprocess.run(argv, check=False, timeout=20).returncode == 1


def test_a_keeper_becomes_another_and_loses_nothing(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:
        peer = keeper.first.hello()
        # The thread that has started it lives on in the new program, so it is not told of a death.
        follows = "exec setpriv --pdeathsig KILL cat"
        asks = peer.sh(follows, mode=messages.MODE_STDIN, name=b"asks")
        terminal = peer.sh("cat", mode=messages.MODE_PTY, name=b"terminal")
        ended = peer.sh("exit 7", name=b"ended")
        peer.exit(ended)
        peer.say(messages.NOTE, *messages.Note(b"session", b"note").pack())
        peer.settle()
        before = descriptors(keeper.keeper)
        visitor = keeper.connect()
        for _ in range(2):
            answer = peer.ask(messages.REEXEC, *(word.encode() for word in PROGRAM))
            assert (answer.op, answer.fields) == (messages.DONE, [b"%d" % keeper.keeper])
        command = Path(f"/proc/{keeper.keeper}/cmdline").read_bytes()
        assert b"--state" in command
        assert alive(asks.pid)
        peer.say(messages.LIST)
        noted = peer.take()
        assert noted is not None
        note = messages.Note.unpack(noted.fields)
        assert (note.key, note.value) == (b"session", b"note")
        found = {}
        while (message := peer.take()) and message.op == messages.CHILD:
            state = messages.ChildState.unpack(message.fields)
            found[state.child] = (state.pid, state.status, state.ended > 0)
            message.close()
        assert list(found) == [b"asks", b"terminal", b"ended"]
        assert found[b"ended"] == (ended.pid, 7 << 8, True)
        assert found[b"asks"] == (asks.pid, None, False)
        # It is still their parent, and nobody has inherited what is not his.
        assert terminal.pid in map(int, _children(keeper.keeper))
        new = peer.sh("exec ls /proc/self/fd", name=b"new")
        assert read_all(new.out).split() == [b"0", b"1", b"2", b"3"]  # the last is ls's own
        peer.exit(new)
        assert peer.signal(asks, 15, messages.SCOPE_LEADER) == 1
        peer.exit(asks)
        visitor.close()
        assert len(before) + 8 > len(descriptors(keeper.keeper))


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_program_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:
        peer = keeper.first.hello()
        answer = peer.ask(messages.REEXEC, b"/nonexistent/python", b"/nonexistent/program")
        assert answer.op == messages.REFUSED
        assert b"cannot be executed" in answer.fields[0]
        new = peer.sh("exec ls /proc/self/fd", name=b"new")
        assert read_all(new.out).split() == [b"0", b"1", b"2", b"3"]  # the last is ls's own
        peer.exit(new)


def test_who_has_not_the_lease_cannot_replace_the_keeper(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:
        keeper.first.hello()
        visitor = keeper.connect()
        answer = visitor.ask(messages.REEXEC, *(word.encode() for word in PROGRAM))
        assert answer.op == messages.REFUSED
        visitor.close()


def test_every_line_of_a_handover_is_read_as_it_was_written() -> None:
    state = os.memfd_create("test", os.MFD_CLOEXEC)
    lines = [reexec_save.line(b"note", [b"key\n", b""]), reexec_save.line(b"link", [b"7"])]
    os.write(state, b"\n".join(lines))
    assert reexec_save.read(state) == [(b"note", [b"key\n", b""]), (b"link", [b"7"])]
