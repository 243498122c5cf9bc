"""The launcher against a real keeper: answers, exits, and a keeper that sleeps or dies."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from handrail.errors import KeeperLost, SpawnFailed
from handrail.keeper import messages
from handrail.process import fd_reserve
from handrail.process.keeper_client import spawn_children as launching
from handrail.process.keeper_client.answers import Spawned
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.keeper_client.start_keeper import KeeperHandle, start_keeper
from tests.keeper.peer import lodge
from tests.process.workshop import Workshop, sh, spec
from tests.support.coroutines import run
from tests.support.eventually import eventually, eventually_so
from tests.support.processes import alive, children, descriptors, exists, reaped


def _close(child: Spawned) -> None:
    for fd in (*child.fds, child.pidfd):
        os.close(fd)


async def _exit(launcher: Launcher, child: Spawned) -> int:
    """The wait status of a child nobody else watches."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    launcher.watch(child.child, lambda status, *_: done.set_result(status))
    async with asyncio.timeout(8):
        return await done


# --- starting ------------------------------------------------------------------------------------


@pytest.mark.both_loops
async def test_spawned_is_what_was_asked_for(shop: Workshop) -> None:
    for how, count in (({}, 2), ({"pipe_stdin": True}, 3), ({"tty": True}, 1)):
        child = await shop.launcher.spawn(sh("exit 5", **how))
        assert len(child.fds) == count
        assert all(not os.get_inheritable(fd) for fd in (*child.fds, child.pidfd))
        assert os.waitstatus_to_exitcode(await _exit(shop.launcher, child)) == 5
        _close(child)
        shop.launcher.forget(child.child)


async def test_starts_of_one_turn_are_answered_each(shop: Workshop) -> None:
    """They travel together: plain ones, one whose word no child can have, and large ones."""
    large = {b"LARGE": b"x" * 50_000}
    asked = [
        *[sh(f"exit {number}") for number in range(5)],
        spec("/bin/true", "a\0b"),
        *[sh(f"exit {number}", env=large) for number in range(5, 8)],
        spec("/no/such/program"),
        sh("exit 8"),
    ]
    shop.launcher.turns.open()
    before = descriptors(os.getpid())
    starts = [shop.launcher.spawn(one) for one in asked]
    results = await asyncio.gather(*starts, return_exceptions=True)
    failed = [one.errno for one in results if isinstance(one, SpawnFailed)]
    assert failed == [errno.EINVAL, errno.ENOENT]
    children = [one for one in results if isinstance(one, Spawned)]
    found = [os.waitstatus_to_exitcode(await _exit(shop.launcher, one)) for one in children]
    assert found == list(range(9))
    for child in children:
        _close(child)
        shop.launcher.forget(child.child)
    assert descriptors(os.getpid()).keys() <= before.keys()


async def test_starts_that_were_not_sent_fail_with_the_keeper(shop: Workshop) -> None:
    shop.launcher.turns.open()
    before = descriptors(os.getpid())
    os.kill(shop.keeper, signal.SIGSTOP)
    starts = [shop.launcher.spawn(sh("exit 0")) for _ in range(3)]
    os.kill(shop.keeper, signal.SIGKILL)  # two of them wait for the end of this turn
    results = await asyncio.gather(*starts, return_exceptions=True)
    assert all(isinstance(one, KeeperLost) for one in results)
    assert descriptors(os.getpid()).keys() <= before.keys()
    await shop.until(lambda: not exists(shop.keeper), "the keeper is reaped")


@pytest.mark.parametrize(
    ("what", "number"),
    [
        (spec("/no/such/path/program"), errno.ENOENT),
        (spec("no-such-program"), errno.ENOENT),
        (spec("/etc"), errno.EACCES),
        (spec("/bin/true", "x" * 200_000), errno.E2BIG),
        (spec("/bin/true", cwd="/no/such/path"), errno.ENOENT),
        (spec("/bin/true", cwd="/etc/passwd"), errno.ENOTDIR),
        (spec("/bin/true", arg0=b""), errno.EINVAL),
        (spec("/bin/true", "with\0nul"), errno.EINVAL),
        (spec("/bin/true", env={"A": "b\0LD_PRELOAD=c"}), errno.EINVAL),
        (spec("/bin/true", tty=True, rows=70_000), errno.EINVAL),
    ],
    ids=lambda value: "" if isinstance(value, int) else repr(value.argv)[:30] + repr(value.cwd),
)
async def test_failing_spawn(shop: Workshop, what: object, number: int) -> None:
    before, keeper = descriptors(), await shop.keeper_fds()
    with pytest.raises(SpawnFailed) as caught:
        await shop.launcher.spawn(what)  # type: ignore[arg-type]
    assert caught.value.errno == number
    assert f"(os error {number})" in str(caught.value)
    await shop.until(lambda: descriptors() == before, "ours are closed")
    assert await shop.keeper_fds() == keeper
    assert shop.launcher.link._questions == {}
    await shop.done(sh("true"))


async def test_arg0_is_seen_by_the_program_and_not_looked_up(shop: Workshop) -> None:
    what = spec("sh", "-c", 'echo "$0"', arg0=b"-login")
    _, sink = await shop.done(what)
    assert sink.out == b"-login\n"


async def test_passed_descriptors_have_their_numbers_and_nothing_else_is_open(
    shop: Workshop,
) -> None:
    one, one_in = os.pipe()
    two, two_in = os.pipe()
    os.write(one_in, b"one ")
    os.write(two_in, b"two ")
    os.close(one_in)
    os.close(two_in)
    for how in ({}, {"tty": True}):
        script = "echo $(ls /proc/self/fd | wc -l) $(cat <&3) $(cat <&9)"
        wanted = b"6 one two" if not how else b"6"  # 0, 1, 2, 3, 9 and the one of ls
        child = await shop.launcher.spawn(sh(script, passed=((9, two), (3, one)), **how))
        assert os.waitstatus_to_exitcode(await _exit(shop.launcher, child)) == 0
        assert os.read(child.fds[0], 100).strip() == wanted
        _close(child)
        shop.launcher.forget(child.child)
    os.close(one)
    os.close(two)


async def test_exit_that_is_known_before_anybody_watches(shop: Workshop) -> None:
    child = await shop.launcher.spawn(sh("exit 3"))
    await shop.until(lambda: child.child in shop.launcher._early, "the exit is here")
    assert os.waitstatus_to_exitcode(await _exit(shop.launcher, child)) == 3
    assert shop.launcher._early == {}
    _close(child)


@pytest.mark.parametrize("moment", ["before the answer", "with the answer"])
async def test_a_start_that_is_cancelled_leaves_no_child_and_no_descriptor(
    shop: Workshop, moment: str
) -> None:
    launcher = shop.launcher
    before = descriptors()
    os.kill(shop.keeper, signal.SIGSTOP)  # until we are ready for its answer
    task = asyncio.create_task(launcher.spawn(spec("/bin/sleep", "1000")))
    await asyncio.sleep(0)
    if moment == "before the answer":
        task.cancel()
    else:
        # In the same turn in which the answer came, before the task has gone on.
        def readable() -> None:
            launcher.link._readable()
            task.cancel()

        shop.loop.add_reader(launcher.link._sock.fileno(), readable)
    os.kill(shop.keeper, signal.SIGCONT)
    with pytest.raises(asyncio.CancelledError):
        await task
    shop.loop.add_reader(launcher.link._sock.fileno(), launcher.link._readable)
    await shop.until(lambda: not children(shop.keeper), "the child is gone")
    await shop.until(lambda: descriptors() == before, "ours are closed")
    await shop.until(lambda: not launcher._watchers and not launcher._early, "no memory of it")
    assert await shop.keeper_fds() < 16


async def test_exits_of_those_that_were_forgotten_are_not_kept(shop: Workshop) -> None:
    launcher = shop.launcher
    for _ in range(5):
        child = await shop.start(spec("/bin/sleep", "1000"))
        await child.ending.kill()
        child.discard()  # as end_all does: before the exit is known
    shop.table._entries.clear()
    await shop.until(lambda: not children(shop.keeper), "all are gone")
    await shop.settled()
    assert launcher._early == {}
    assert launcher._watchers == {}


async def test_no_descriptor_free_fails_the_start_and_nothing_else(shop: Workshop) -> None:
    old = await shop.start(spec("/bin/cat", pipe_stdin=True))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    failed = []
    # Room for the directory alone, then for some of the answer, then for all but one.
    for spare in range(6):
        top = max(descriptors()) + 1
        fillers = [os.dup(0) for _ in range(top - len(descriptors()))]
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + spare, hard))
        try:
            await shop.launcher.spawn(spec("/bin/sleep", "1000"))
        except SpawnFailed as error:
            failed.append(error.errno)
        else:
            pytest.fail("there was room")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in fillers:
                os.close(fd)
        if spare == 2:
            break
    assert failed == [errno.EMFILE] * 3
    assert shop.launcher.link.alive
    await shop.until(lambda: children(shop.keeper) == {old.pid}, "no child nobody knows")
    await shop.done(sh("true"))


async def test_big_spawn_without_a_descriptor_for_its_body(shop: Workshop) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(descriptors()) + 1
    fillers = [os.dup(0) for _ in range(top - len(descriptors()))]
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, hard))  # room for the directory
    try:
        with pytest.raises(SpawnFailed) as caught:
            async with asyncio.timeout(5):
                await shop.launcher.spawn(spec("/bin/true", "x" * 80_000))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)
    assert caught.value.errno == errno.EMFILE
    assert shop.launcher.link._questions == {}
    await shop.done(spec("/bin/true", "x" * 80_000))


async def test_no_descriptor_for_a_body_that_had_to_wait(shop: Workshop) -> None:
    launcher = shop.launcher
    os.kill(shop.keeper, signal.SIGSTOP)
    small = [asyncio.create_task(launcher.spawn(spec("/bin/true"))) for _ in range(400)]
    await shop.until(lambda: launcher._starts.waiting, "the socket is full")
    big = asyncio.create_task(launcher.spawn(spec("/bin/true", "x" * 80_000)))
    last = asyncio.create_task(launcher.spawn(spec("/bin/true")))
    await asyncio.sleep(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Nothing can be opened, whatever is closed meanwhile.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        os.kill(shop.keeper, signal.SIGCONT)
        answers = await asyncio.gather(*small, big, last, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # The second where an ordinary user may not even have that many on their way.
    wanted = {errno.EMFILE, errno.ETOOMANYREFS}
    assert {getattr(answer, "errno", answer) for answer in answers} <= wanted
    assert launcher.link.alive
    await shop.done(spec("/bin/true", "x" * 80_000))
    await shop.until(lambda: not launcher._starts.waiting, "everything was sent")
    await shop.until(lambda: not children(shop.keeper), "no child nobody knows")


# --- a keeper that sleeps or dies ----------------------------------------------------------------


@pytest.mark.both_loops
async def test_questions_to_a_stopped_keeper_wait_in_order(shop: Workshop) -> None:
    os.kill(shop.keeper, signal.SIGSTOP)
    # The whole socket buffer and more; some of it with bodies in memfds.
    tasks = [
        asyncio.create_task(shop.done(spec("/bin/echo", str(n), "x" * (n % 50 == 0) * 70_000)))
        for n in range(400)
    ]
    await shop.until(lambda: shop.launcher._starts.waiting > 10, "the socket is full")
    os.kill(shop.keeper, signal.SIGCONT)
    answers = await asyncio.gather(*tasks)
    first = answers[0][0].number
    for number, (child, sink) in enumerate(answers):
        assert sink.out.split()[0] == b"%d" % number
        assert child.number == first + number
    await shop.until(lambda: not shop.launcher._starts.waiting, "everything was sent")


@pytest.mark.both_loops
async def test_keeper_that_dies_is_told_to_everybody_who_waits(shop: Workshop) -> None:
    lost: list[bool] = []
    shop.launcher.link.on_lost = lambda: lost.append(True)
    child, sink = await shop.record(sh("echo $$; exec cat", pipe_stdin=True))
    await shop.said(child, sink, b"\n")
    os.kill(shop.keeper, signal.SIGSTOP)
    asking = [
        asyncio.ensure_future(shop.launcher.spawn(sh("true"))),
        asyncio.ensure_future(shop.launcher.signal(child.number, 9, messages.SCOPE_TREE)),
    ]
    await asyncio.sleep(0)
    os.kill(shop.keeper, signal.SIGKILL)
    for question in asking:
        with pytest.raises(KeeperLost):
            await question
    await shop.until(lambda: lost, "whoever wants to know is told")
    assert lost == [True]
    assert not shop.launcher.link.alive
    with pytest.raises(KeeperLost):
        await shop.launcher.spawn(sh("true"))
    # The child goes on, and so does what it says.
    child.stdin.write(b"still here\n", lambda: True)
    await shop.said(child, sink, b"still here")
    await shop.until(lambda: not exists(shop.keeper), "the keeper is reaped, not a zombie")
    pid = child.pid
    await child.ending.kill()  # by us, for there is nobody else
    await shop.until(lambda: reaped(pid), "it came to us")
    waits = shop.launcher.signal(child.number, 9, messages.SCOPE_TREE)  # for another keeper
    shop.launcher.close()
    with pytest.raises(KeeperLost):
        await waits


@pytest.mark.both_loops
async def test_stop_ends_everything_and_can_be_repeated(shop: Workshop) -> None:
    child = await shop.launcher.spawn(sh("sleep 1000 & setsid sleep 1000 & wait"))
    await shop.until(lambda: len(children(child.pid)) == 2, "its children are there")
    pids = [child.pid, *children(child.pid)]
    await shop.launcher.stop()
    assert not any(exists(pid) for pid in pids)
    assert not exists(shop.keeper)
    await shop.launcher.stop()
    shop.launcher.close()
    _close(child)


@pytest.mark.both_loops
async def test_close_ends_an_embedded_keeper_and_reaps_it(shop: Workshop) -> None:
    child = await shop.launcher.spawn(spec("/bin/sleep", "1000"))
    lost: list[bool] = []
    shop.launcher.link.on_lost = lambda: lost.append(True)
    shop.launcher.close()
    await shop.until(lambda: not exists(child.pid), "the child is gone")
    await shop.until(lambda: not exists(shop.keeper), "and the keeper is not left a zombie")
    assert lost == []  # we knew
    _close(child)


# --- a keeper that was there before --------------------------------------------------------------


async def test_second_launcher_is_refused_then_welcome(tmp_path: Path) -> None:
    path = str(tmp_path / "keeper.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        handle = start_keeper(listener=listener, orphan_ttl=20)

    def connect() -> KeeperHandle:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(path)
        return KeeperHandle(sock, handle.pid, found=True)

    loop = asyncio.get_running_loop()
    first = Launcher(handle, loop)
    await first.hello()
    child = await first.spawn(spec("/bin/sleep", "1000"))
    second = Launcher(connect(), loop)
    with pytest.raises(KeeperLost, match="in use by process"):
        await second.hello()
    second.close()
    first.close()
    assert alive(child.pid)

    third = Launcher(connect(), loop)
    while True:
        try:
            await third.hello()
            break
        except KeeperLost:
            await asyncio.sleep(0.005)
    assert alive(child.pid)
    await third.stop()
    await eventually_so(lambda: not exists(child.pid), "ended by the one that came later")
    _close(child)

    eventually(lambda: reaped(handle.pid), "the keeper is gone")


def test_what_was_forgotten_is_not_left_to_the_next_server(tmp_path: Path) -> None:
    with lodge(tmp_path) as keeper:

        async def main() -> None:
            loop = asyncio.get_running_loop()
            launcher = Launcher(KeeperHandle(keeper.connect().sock, keeper.keeper, True), loop)
            await launcher.hello()
            child = await launcher.spawn(sh("true"))
            await _exit(launcher, child)
            _close(child)
            launcher.forget(child.child)
            launcher.close()  # at once: what is gathered has to go out first

        run(main())
        second = keeper.connect().hello()
        assert second.listing() == {}
        second.close()


async def test_a_keeper_of_another_version_becomes_one_of_ours(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its children stay; a server that cannot talk to it would have to leave them."""

    child, sink = await shop.record(sh("echo $$; exec cat", pipe_stdin=True))
    await shop.said(child, sink, b"\n")
    asked = []
    replace = shop.launcher.replace_keeper

    async def replaced(python: str, program: str) -> None:
        asked.append(program)
        await replace(python, program)
        monkeypatch.setattr(messages, "VERSION", ours)

    ours = messages.VERSION
    monkeypatch.setattr(shop.launcher, "replace_keeper", replaced)
    monkeypatch.setattr(messages, "VERSION", ours + 1)  # as if the keeper were older
    with pytest.raises(KeeperLost):  # the test's keeper is ours, so the second try fails
        await shop.launcher.hello()
    assert len(asked) == 1
    await shop.launcher.hello()
    assert child.running


def test_a_start_without_room_for_its_descriptors_is_refused_before_it_runs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open("/dev/null") as held, ExitStack() as stack:
        # No number is free below the highest.
        while (fd := os.dup(held.fileno())) < max(map(int, os.listdir("/proc/self/fd"))) - 1:
            stack.callback(os.close, fd)
        stack.callback(os.close, fd)
        top = 1 + max(map(int, os.listdir("/proc/self/fd")))
        # With the last ones set aside, room for two children and not for three.
        most = next(n for n in range(top, 2 * top + 99) if n - min(24, n // 8) == top + 11)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            fd_reserve.check_room(held.fileno(), 2 * launching._EACH)
            with pytest.raises(OSError, match="Too many open files"):
                fd_reserve.check_room(held.fileno(), 3 * launching._EACH)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
