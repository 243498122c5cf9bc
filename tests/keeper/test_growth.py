"""Many children: what the keeper does for one of them does not depend on the others."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

from handrail.keeper import messages, spawn
from tests.keeper.peer import Peer, lodge, read_all, read_line
from tests.support.eventually import eventually
from tests.support.processes import descriptors, exists

#: Two descriptors each.
MANY = spawn.MANY // 2 + 8


def test_one_thread_and_one_descriptor_for_signals_serve_few(server: Peer) -> None:
    at_rest = server.held_open()
    # 0, 1 and 2, the link, a pidfd of the server, the signals, the list of orphans; and for root,
    # who owns it, the null device on a mount of its own.
    assert len(at_rest) == 7 + (os.geteuid() == 0)
    assert sum("[signalfd]" in place for place in at_rest.values()) == 1
    few = [server.spawn(["/bin/sleep", "600"]) for _ in range(20)]
    assert os.listdir(f"/proc/{server.keeper}/task") == [str(server.keeper)]
    for child in few:
        assert server.signal(child, signal.SIGKILL, messages.SCOPE_TREE) == 1
    assert all(server.exit(child).status == signal.SIGKILL for child in few)


def test_orphans_are_told_from_children_and_end_with_their_tree(server: Peer) -> None:
    child = server.sh("setsid sleep 600 >/dev/null 2>&1 & echo $!; sleep 600")
    orphan = server.sh("setsid sleep 600 >/dev/null 2>&1 & echo $!")
    below, pid = int(read_line(child.out)), int(read_line(orphan.out))
    server.exit(orphan)
    assert sorted(_of_main_thread(server.keeper)) == sorted([child.pid, pid])
    assert server.orphans() == {orphan.name: 1}
    assert server.signal(orphan, signal.SIGKILL, messages.SCOPE_TREE) == 1
    assert server.signal(child, signal.SIGKILL, messages.SCOPE_TREE) >= 2
    server.exit(child)
    for ended in (below, pid):
        eventually(lambda ended=ended: not exists(ended))
    assert _of_main_thread(server.keeper) == []


def test_orphan_of_a_leader_without_children_ends_with_it(server: Peer) -> None:
    """Whether the leader still runs when it is killed, or the kernel has begun to end it."""
    for _ in range(20):
        child = server.sh("(setsid sleep 600 >/dev/null 2>&1 & echo $!); exec sleep 600")
        orphan = int(read_line(child.out))
        eventually(lambda orphan=orphan: orphan in _of_main_thread(server.keeper))
        assert server.signal(child, signal.SIGKILL, messages.SCOPE_TREE) >= 1
        assert server.exit(child).status == signal.SIGKILL
        assert not exists(orphan)


def test_one_of_many_children_is_like_one_of_few(server: Peer) -> None:
    """With many it is started by a thread of few descriptors, with the same ones."""
    look = (
        "import os\n"
        "print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1], os.getcwd())\n"
        "print(os.getsid(0) == os.getpid(), os.readlink('/proc/self/fd/5'))\n"
    )
    passed = os.open("/etc/hostname", os.O_RDONLY)
    few = server.python(look, passed={5: passed}, cwd="/usr")
    said = read_all(few.out)
    server.exit(few)
    others = [server.spawn(["/bin/sleep", "600"]) for _ in range(MANY)]
    many = server.python(look, passed={5: passed}, cwd="/usr")
    assert read_all(many.out) == said
    assert server.exit(many).status == 0
    terminal = server.sh("test -t 0 && test -t 2 && exit 7", mode=messages.MODE_PTY)
    assert os.waitstatus_to_exitcode(server.exit(terminal).status) == 7
    os.close(passed)
    for child in others:
        assert server.signal(child, signal.SIGKILL, messages.SCOPE_TREE) == 1
    assert all(server.exit(child).status == signal.SIGKILL for child in others)


def test_few_children_cost_the_keeper_their_streams_and_no_pidfd(server: Peer) -> None:
    server.settle()
    before = len(descriptors(server.keeper))
    few = [server.spawn(["/bin/sleep", "600"]) for _ in range(20)]
    server.settle()
    assert len(descriptors(server.keeper)) == before + 2 * len(few)
    for child in few:
        assert server.signal(child, signal.SIGKILL, messages.SCOPE_TREE) == 1
    assert all(server.exit(child).status == signal.SIGKILL for child in few)


def test_exits_of_many_and_of_their_orphans_are_all_seen(server: Peer) -> None:
    """Of those of the keeper's own thread, of the other one, and of what they leave behind.

    Each exit comes alone, with nothing else that would have the keeper look.
    """
    first = server.sh("read x; exit 3", mode=messages.MODE_STDIN)
    others = [server.spawn(["/bin/sleep", "600"]) for _ in range(MANY)]
    leaves = "exec 3<&0; (read x <&3) >/dev/null 2>&1 & exit 4"
    orphan = server.sh(leaves, mode=messages.MODE_STDIN)
    children = {first.pid, *(child.pid for child in others)}
    assert os.waitstatus_to_exitcode(server.exit(orphan).status) == 4
    assert server.orphans() == {orphan.name: 1}
    os.write(orphan.inp, b"\n")
    eventually(lambda: children.issuperset(_of_main_thread(server.keeper)), "the orphan is reaped")
    for child in (first, server.sh("read x; exit 3", mode=messages.MODE_STDIN)):
        os.write(child.inp, b"\n")
        assert os.waitstatus_to_exitcode(server.exit(child).status) == 3
    for child in others[::-1]:
        os.kill(child.pid, signal.SIGKILL)
    assert all(server.exit(child).status == signal.SIGKILL for child in others)


def test_list_needs_no_descriptors_of_the_keeper(tmp_path: Path) -> None:
    """Copies for a server that does not read yet would be more than a keeper may have."""
    with lodge(tmp_path) as keeper:
        server = keeper.first.hello()
        names = [server.spawn(["/bin/true"]).name for _ in range(300)]
        server.let_go()
        server.settle()
        most = len(descriptors(keeper.keeper)) + 24
        resource.prlimit(keeper.keeper, resource.RLIMIT_NOFILE, (most, most))
        server.say(messages.LIST)
        visitor = keeper.connect()
        visitor.ask(messages.WHO)  # so the answer to the other has been begun
        visitor.close()
        found = []
        while (message := server.take()) and message.op == messages.CHILD:
            found.append(messages.ChildState.unpack(message.fields).child)
            server.let_go()
        assert found == names
        assert message is not None
        assert message.op == messages.DONE


def _of_main_thread(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
