"""What every executor does, near and far: one suite over all of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from handrail.errors import (
    ExecutorSpawnFailed,
    FilesError,
    ProcessUnknown,
    ResizeFailed,
    UsageError,
    WriteFailed,
)
from handrail.executor.base import OutputKind, WaitReason
from handrail.process import child_end
from handrail.process.env_policy import EnvPolicy, Inherit
from handrail.process.exit_status import ExitKind
from handrail.sandbox.profile import Access, Entry, Intent, workspace_write
from tests.executor.places import Main, Room, collect, said
from tests.support.eventually import eventually_so

Everywhere = Callable[[Main], None]


def test_output_and_exit_code(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        assert await room.done("echo out; echo err >&2; exit 3") == (b"out\n", b"err\n", 3)
        session = await room.sh("exit 0")
        exit_info = await session.wait()
        assert (exit_info.kind, exit_info.code) == (ExitKind.EXITED, 0)
        assert session.try_exit_status() == exit_info

    everywhere(main)


def test_a_late_subscriber_sees_what_was_written_before(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("printf one; printf two >&2; cat")
        await said(session, b"one")
        await said(session, b"two")
        await session.terminate()
        await session.wait_closed()
        out, err = await collect(session)
        assert (out, err) == (b"one", b"two")
        assert (await collect(session)) == (out, err)

    everywhere(main)


def test_subscribers_are_independent(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); done")
        slow = session.subscribe_output()
        results = await asyncio.gather(*(collect(session) for _ in range(5)))
        expected = b"".join(b"line %d\n" % i for i in range(300))
        assert {out for out, _ in results} == {expected}
        assert b"".join([event.data async for event in slow]) == expected

    everywhere(main)


def test_a_paced_subscriber_misses_nothing(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        size = 8 * 1024 * 1024
        session = await room.sh(f"head -c {size} /dev/zero; echo end")
        paced = session.subscribe_output(paced=True)
        session.keep_output(1024 * 1024)
        await anext(paced)
        quick = session.subscribe_output()  # gets what there is, and no more than that
        seen = len((await anext(quick)).data)
        with contextlib.suppress(TimeoutError):
            while seen < size:
                async with asyncio.timeout(0.5):
                    seen += len((await anext(quick)).data)
        assert seen < size // 2
        rest = [event async for event in paced]
        assert sum(event.omitted for event in rest) == 0
        assert b"".join(event.data for event in rest).endswith(b"end\n")
        assert (await session.wait()).code == 0

    everywhere(main)


def test_ending_does_not_wait_for_a_paced_subscriber(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.start("yes")
        paced = session.subscribe_output(paced=True)
        session.keep_output(1024 * 1024)
        await anext(paced)
        await eventually_so(lambda: session._history._shut)  # type: ignore[attr-defined]
        await session.terminate()  # raises when nothing is heard of the end
        await session.wait_closed()
        assert b"y\n" in b"".join([event.data async for event in paced])

    everywhere(main)


def test_input_arrives_in_order(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("head -c 200000 | cksum")
        for at in range(0, 200_000, 20_000):
            await session.write(bytes([at // 20_000 + 65]) * 20_000)
        out, _ = await collect(session)
        same = await room.sh(
            "for c in A B C D E F G H I J; do head -c 20000 /dev/zero | tr '\\0' $c; done | cksum"
        )
        assert (out, b"") == await collect(same)

    everywhere(main)


def test_a_write_with_a_deadline_arrives_in_time_or_never(
    everywhere: Everywhere, tmp_path: Path
) -> None:
    async def main(room: Room) -> None:
        if not room.ours:
            return  # another server writes later what it was asked to write
        door = tmp_path / "door"
        door.unlink(missing_ok=True)
        os.mkfifo(door)
        session = await room.sh(f"read x < {door}; wc -c")
        piece, taken = bytes(1 << 20), 0
        with pytest.raises(WriteFailed, match="the process has not read its input"):
            while True:
                await session.write(piece, 0.05)
                taken += len(piece)
        assert taken >= 4 << 20
        await asyncio.to_thread(door.write_text, "open\n")
        await session.write(b"x", 60.0)  # there is room again, sooner or later
        await session.close_stdin()
        assert int((await collect(session))[0]) == taken + 1

    everywhere(main)


def test_the_end_of_input(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("cat; echo end")
        await session.write(b"words\n")
        if not room.ours:
            with pytest.raises(WriteFailed, match="cannot end the input"):
                await session.close_stdin()
            return
        await session.close_stdin()
        assert (await collect(session))[0] == b"words\nend\n"
        with pytest.raises(WriteFailed, match="failed to write to process: "):
            await session.write(b"more")

    everywhere(main)


@pytest.mark.parametrize("typed", [b"", b"words", b"words\n", b"two\nlines", b"word\x04s", b"w\r"])
def test_the_end_of_input_in_a_terminal(everywhere: Everywhere, typed: bytes) -> None:
    async def main(room: Room) -> None:
        # The second program would read a key that was typed once too often.
        script = "stty -echo; echo ready; cat >read; cat >again; echo end"
        session = await room.sh(script, tty=True)
        await said(session, b"ready")
        for part in (typed, b"next"):
            if part:
                await session.write(part)
            await session.close_stdin()
        await session.wait()
        assert (room.base / "read").read_bytes() == typed.replace(b"\x04", b"").replace(
            b"\r", b"\n"
        )
        assert (room.base / "again").read_bytes() == b"next"

    everywhere(main)


def test_no_input_at_all(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("cat; sleep 60", pipe_stdin=False)
        with pytest.raises(WriteFailed, match="failed to write to process: "):
            await session.write(b"x")
        await session.terminate()

    everywhere(main)


def test_a_terminal(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("stty size; test -t 0 && echo a tty; cat", tty=True, size=(33, 77))
        await said(session, b"a tty")
        await session.write(b"hello\n")
        await session.close_stdin()
        kinds = {event.kind async for event in session.subscribe_output()}
        assert kinds == {OutputKind.STDOUT}
        out, _ = await collect(session)
        assert (b"33 77" if room.ours else b"24 80") in out
        assert out.count(b"hello") == 2  # the echo of the terminal, and cat's
        assert (await session.wait()).code == 0

    everywhere(main)


def test_resizing_a_terminal(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("echo ready; read x; stty size", tty=True)
        await said(session, b"ready")
        if not room.ours:
            with pytest.raises(ResizeFailed, match="resize is not supported by exec-server"):
                await session.resize(50, 120)
            await session.terminate()
            return
        await session.resize(50, 120)
        await session.write(b"\n")
        assert b"50 120" in (await collect(session))[0]
        pipe = await room.sh("sleep 60")
        with pytest.raises(ResizeFailed, match=r"failed to resize process pty: .*no terminal"):
            await pipe.resize(10, 10)
        await pipe.terminate()

    everywhere(main)


def test_terminate_ends_the_whole_tree(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("(sleep 1000 & echo child $!; wait) & wait")
        await said(session, b"child")
        await session.terminate()
        exit_info = session.try_exit_status()
        assert exit_info is not None
        assert (exit_info.kind, exit_info.code) == (ExitKind.TERMINATED, 137)
        await session.wait_closed()
        await session.terminate()  # again: nothing to do, and no error

    everywhere(main)


def test_terminate_with_grace_asks_first(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        ask = "TERM" if room.ours else "INT"
        session = await room.sh(
            f"trap 'echo bye; exit 5' {ask}; echo ready; while :; do sleep 0.05; done"
        )
        await said(session, b"ready")
        await session.terminate(grace=10)
        exit_info = await session.wait()
        assert (exit_info.kind, exit_info.code) == (ExitKind.TERMINATED, 5)
        assert (await collect(session))[0] == b"ready\nbye\n"

    everywhere(main)


def test_signals(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done")
        await said(session, b"ready")
        await session.signal("interrupt")
        assert (await session.wait()).code == 9
        await session.signal("interrupt")  # it has exited: nobody minds
        with pytest.raises(UsageError, match="no signal"):
            await session.signal("nonsense")
        other = await room.sh("echo ready; exec sleep 60")
        await said(other, b"ready")
        if room.ours:
            await other.signal("usr1")
            exit_info = await other.wait()
            assert (exit_info.kind, exit_info.signal) == (ExitKind.SIGNALED, "SIGUSR1")
            assert exit_info.code == 128 + 10
        else:
            with pytest.raises(UsageError, match="interrupt"):
                await other.signal("usr1")
            await other.terminate()

    everywhere(main)


def test_output_of_descendants_after_the_exit(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("mkfifo gate; (read x <gate; echo late) & echo early; exit 4")
        assert (await session.wait()).code == 4
        await room.done("echo >gate")
        assert (await collect(session))[0] == b"early\nlate\n"

    everywhere(main)


def test_output_of_descendants_long_after_the_exit(
    everywhere: Everywhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Near: so that it is over before anything else happens.  Far it is the server's own.
    monkeypatch.setattr(child_end, "DRAIN_SECONDS", 0.0)

    async def main(room: Room) -> None:
        session = await room.sh("mkfifo gate; (read x <gate; echo late) & echo early; exit 4")
        assert (await session.wait()).code == 4
        await (await room.sh("exit 0")).wait_closed()  # timers of the first had their turn
        if room.kind == "websocket":  # there only time can tell that nothing happens
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.wait_closed(), 2.5)
        await room.done("echo >gate")
        assert (await collect(session))[0] == b"early\nlate\n"

    everywhere(main)


def test_environment_directory_and_arg0(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        (room.base / "here").mkdir()
        env = {"PATH": "/usr/bin:/bin", "NAME": "välue with = and spaces"}
        session = await room.start("env", cwd=str(room.base / "here"), env=env)
        words = (await collect(session))[0].decode().splitlines()
        assert "NAME=välue with = and spaces" in words
        assert len([w for w in words if w.partition("=")[0] not in ("PWD", "SHLVL", "_")]) == 2
        assert (await room.done("pwd", cwd=str(room.base / "here")))[0].endswith(b"/here\n")
        session = await room.start("/bin/sh", "-c", "echo $0", arg0="renamed")
        assert (await session.wait()).code == 0

    everywhere(main)


def test_words_that_are_no_text(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        where = os.fsdecode(os.fsencode(room.base) + b"/d\xff")
        os.mkdir(where)
        program = os.fsdecode(os.fsencode(where) + b"/p\xfe")
        os.symlink("/bin/sh", program)
        cwd = await room.sh("pwd", cwd=where)
        assert (await collect(cwd))[0] == os.fsencode(where) + b"\n"
        script = b"""printf '%s|' "$@" "$X" \xe9"""
        words = (program, "-c", script, "sh", b"100%41\xff", "\udc80", "na\u00efve")
        if not room.ours:
            with pytest.raises(UsageError, match="is not UTF-8"):
                await room.start(*words)
            return
        session = await room.start(*words, env={"X": "v\udcfd"})
        assert (await collect(session))[0] == b"100%41\xff|\x80|na\xc3\xafve|v\xfd|\xe9|"
        policy = EnvPolicy(Inherit.NONE, True, (), {"Y\udcfb": "s\udcfa"}, ())
        session = await room.start("/usr/bin/env", env={"\udcfc": "%"}, env_policy=policy)
        assert sorted((await collect(session))[0].split()) == [b"Y\xfb=s\xfa", b"\xfc=%"]
        named = await room.start("/bin/cat", "/proc/self/cmdline", arg0="a\udcff")
        assert (await collect(named))[0].startswith(b"a\xff\0")
        with pytest.raises(ExecutorSpawnFailed, match="cannot start"):
            await room.start(b"/no/\xff")

    everywhere(main)


def test_an_environment_policy(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        policy = EnvPolicy(Inherit.CORE, False, ("LANG*",), {"SET": "1"}, ())
        out, _, _ = await room.done("env", env={"OVER": "2"}, env_policy=policy)
        names = {line.partition("=")[0] for line in out.decode().splitlines()}
        assert {"PATH", "SET", "OVER"} <= names
        assert "LANG" not in names

    everywhere(main)


def test_what_cannot_be_started(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        prefix = "failed to spawn process: "
        with pytest.raises(ExecutorSpawnFailed, match=f"^{prefix}"):
            await room.start("/there/is/no/such/program")
        with pytest.raises(ExecutorSpawnFailed, match=f"^{prefix}"):
            await room.sh("true", cwd="/there/is/no/such/directory")
        with pytest.raises(ExecutorSpawnFailed, match=f"^{prefix}argv must not be empty"):
            await room.start()
        with pytest.raises(ExecutorSpawnFailed, match="not absolute"):
            await room.sh("true", cwd="relative")
        await room.sh("sleep 60", process_id="taken")
        with pytest.raises(ExecutorSpawnFailed, match="process taken already exists"):
            await room.sh("true", process_id="taken")
        assert await room.done("echo still") == (b"still\n", b"", 0)

    everywhere(main)


@pytest.mark.parametrize("kind", ["MacosSeatbelt", "WindowsRestrictedToken", {"permissions": {}}])
def test_a_sandbox_that_is_not_supported(near: Everywhere, kind: object) -> None:
    async def main(room: Room) -> None:
        text = re.escape(f"sandbox policy {kind} is not supported by this executor")
        with pytest.raises(ExecutorSpawnFailed, match=text):
            await room.sh("touch was-run", sandbox=kind)
        assert not (room.base / "was-run").exists()

    near(main)


def test_a_sandbox_kind_is_refused_far_away_too(far: Everywhere) -> None:
    async def main(room: Room) -> None:
        text = "sandbox policy LinuxSeccomp is not supported by this executor"
        with pytest.raises(ExecutorSpawnFailed, match=text):
            await room.sh("true", sandbox="LinuxSeccomp")
        text = "inherited file descriptors are not supported by exec-server executor"
        with pytest.raises(ExecutorSpawnFailed, match=text):
            await room.sh("true", inherited_fds=((3, 0),))

    far(main)


def test_waiting_for_a_pattern_or_idleness_or_the_end(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("read a; echo got $a; read b; echo then $b; read c; exit 6")
        found = await session.wait_for("never", timeout=0.05)
        assert found.reason is WaitReason.DEADLINE
        await session.write(b"one\n")
        found = await session.wait_for("nothing", r"got (\w+)\n", timeout=20)
        assert (found.reason, found.pattern, found.match) == (WaitReason.PATTERN, 1, b"got one\n")
        await session.write(b"two\n")
        again = await session.wait_for(r"\w+ \w+", timeout=20, start=found.position)
        assert again.match == b"then two"
        assert again.position == found.position + len("then two")
        quiet = await session.wait_for("never", idle=0.05, timeout=20, start=again.position)
        assert quiet.reason is WaitReason.IDLE
        await session.write(b"\n")
        over = await session.wait_for("never", timeout=20)
        assert over.reason is WaitReason.EXIT
        with pytest.raises(UsageError, match="does not compile"):
            await session.wait_for("(")

    everywhere(main)


def test_a_pattern_over_the_borders_of_chunks_and_characters(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        script = (
            r"printf 'na\303'; read a; printf '\257ve '; read a; printf '\303\251\303\251 x'; cat"
        )
        session = await room.sh(script)
        waiting = asyncio.ensure_future(session.wait_for("naïve", timeout=20))
        await said(session, b"na")
        await session.write(b"\n")
        found = await waiting
        assert (found.match.decode(), found.position) == ("naïve", 6)
        waiting = asyncio.ensure_future(session.wait_for("é+ ", timeout=20, start=found.position))
        await session.write(b"\n")
        found = await waiting
        assert (found.match.decode(), found.position) == ("éé ", 12)
        with pytest.raises(UsageError, match="class"):
            await session.wait_for("[äö]")

    everywhere(main)


@pytest.mark.parametrize(
    ("patterns", "index", "match"),
    [
        (("never", r"value: \d+$"), 1, b"value: 42"),
        ((r"\w+(?=: 42)",), 0, b"value"),  # no server looks around
        ((r"(?i)VALUE", "value"), 0, b"value"),
        ((r"(?i:VALUE): (4)2",), 0, b"value: 42"),
        ((r"^\w+$", "42"), 0, b"second"),
        ((b"\xff|lue",), 0, b"lue"),
        ((r"> \Z",), 0, b"> "),
        (("never",) * 40 + ("42",), 40, b"42"),
    ],
)
def test_what_a_pattern_matches(
    everywhere: Everywhere, patterns: tuple[str | bytes, ...], index: int, match: bytes
) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("read a; printf 'a value: 42\nsecond\n> '; cat")
        waiting = asyncio.ensure_future(session.wait_for(*patterns, timeout=20))
        await session.write(b"\n")
        found = await waiting
        assert (found.reason, found.pattern, found.match) == (WaitReason.PATTERN, index, match)

    everywhere(main)


def test_waiting_longer_than_the_process_or_for_its_descendants(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("exit 5")
        assert (await session.wait_for("never", timeout=20)).reason is WaitReason.EXIT
        assert (await session.wait_for(exit=False)).reason is WaitReason.EXIT
        status = session.try_exit_status()
        assert status is not None
        assert status.code == 5
        gate = room.base / "gate"
        os.mkfifo(gate)
        session = await room.sh(f"(read x <{gate}; echo late) & echo early")
        waiting = asyncio.ensure_future(session.wait_for("late", exit=False, timeout=20))
        await session.wait()
        await asyncio.to_thread(gate.write_text, "\n")
        assert (await waiting).match == b"late"

    everywhere(main)


def test_many_at_once(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        async def one(number: int) -> bool:
            out, err, code = await room.done(f"echo {number}; echo {number} >&2; exit {number}")
            return (out, err, code) == (b"%d\n" % number, b"%d\n" % number, number)

        assert all(await asyncio.gather(*(one(n) for n in range(30))))

    everywhere(main)


def test_a_stream_of_some_size(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("head -c 20000000 /dev/zero | tr '\\0' x")
        total = 0
        async for event in session.subscribe_output():
            assert event.omitted == 0  # who only iterates keeps up
            total += len(event.data)
        assert total == 20_000_000

    everywhere(main)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
def test_a_sandbox_intent_is_honoured(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        if not room.ours:
            pytest.skip("another server has a sandbox of its own")
        inside = room.base / "inside"
        inside.mkdir()
        root = Entry(Access.READ, special="root")
        path = Entry(Access.WRITE, path=os.fsencode(inside.resolve()))
        intent = Intent(entries=(root, path))
        script = "echo in >inside/file; echo out >outside"
        session = await room.sh(script, sandbox=intent)
        _, err = await collect(session)
        assert (await session.wait()).code != 0
        assert b"outside" in err
        assert (await session.denied()).likely
        assert (inside / "file").read_text() == "in\n"
        assert not (room.base / "outside").exists()

    everywhere(main)


def test_attaching_to_a_process(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("echo here; cat", process_id="mine")
        await said(session, b"here")
        same = await room.executor.attach("mine")
        await same.write(b"through\n")
        await said(session, b"through")
        await same.terminate()
        assert (await session.wait()).code == 137
        with pytest.raises(ProcessUnknown):
            await room.executor.attach("nobody")

    everywhere(main)


def test_the_place(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        place = await room.executor.place()
        assert place.shell.startswith("/")
        assert place.cwd.startswith("/")
        assert place.platform == "linux"

    everywhere(main)


def test_files(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        files, base = room.executor.files, str(room.base)
        await files.mkdir(f"{base}/a/b")
        await files.write(f"{base}/a/b/c d%.txt", b"content\0\xff")
        assert await files.read(f"{base}/a/b/c d%.txt") == b"content\0\xff"
        await files.copy(f"{base}/a", f"{base}/copy", recursive=True)
        assert [e.name for e in await files.list(f"{base}/copy/b")] == ["c d%.txt"]
        found = await files.metadata(f"{base}/copy/b/c d%.txt")
        assert (found.is_file, found.is_directory, found.size) == (True, False, 9)
        (room.base / "link").symlink_to(room.base / "a")
        assert await files.canonical(f"{base}/link/b") == str((room.base / "a/b").resolve())
        await files.remove(f"{base}/copy", recursive=True)
        with pytest.raises(FilesError) as caught:
            await files.read(f"{base}/copy/b/c d%.txt")
        assert caught.value.kind == "not_found"
        await files.remove(f"{base}/copy", force=True)
        with pytest.raises(FilesError):
            await files.remove(f"{base}/a")

    everywhere(main)


def test_large_files_and_their_progress(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        files, path = room.executor.files, str(room.base / "large")
        data = bytes(range(256)) * 40_000 + b"end"  # over 8 MiB, so in blocks
        seen: list[tuple[int, int]] = []
        await files.write(path, data, progress=lambda done, of: seen.append((done, of)))
        assert seen[-1] == (len(data), len(data))
        seen.clear()
        assert await files.read(path, progress=lambda done, of: seen.append((done, of))) == data
        assert seen[-1] == (len(data), len(data))

    everywhere(main)


def test_sandboxed_files(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        base, work = room.base, room.base / "work"
        (work / "hidden").mkdir(parents=True)
        (work / "hidden" / "key").write_text("secret")
        (work / "way").symlink_to(base)
        intent = workspace_write((os.fsencode(work),), slash_tmp=False, tmpdir=False)
        deny = Entry(Access.DENY, path=os.fsencode(work / "hidden"))
        files = room.executor.files.sandboxed(intent._replace(entries=(*intent.entries, deny)))

        async def kind(call: Awaitable[object]) -> str:
            with pytest.raises(FilesError) as caught:
                await call
            return caught.value.kind

        if not room.ours:  # its own helper does not start: refused, and nothing is done
            assert await kind(files.mkdir(f"{work}/a/b"))
            assert not (work / "a").exists()
            return
        await files.mkdir(f"{work}/a/b")
        await files.write(f"{work}/a/b/c", b"content")
        assert await files.read(f"{work}/way/work/a/b/c") == b"content"
        assert [entry.name for entry in await files.list(f"{work}/a")] == ["b"]
        assert (await files.metadata(f"{work}/a/b/c")).size == 7
        await files.copy(f"{work}/a", f"{work}/copy", recursive=True)
        await files.remove(f"{work}/a", recursive=True)
        assert await files.canonical(f"{work}/copy/b/c") == str((work / "copy/b/c").resolve())
        for path in (f"{base}/out", f"{work}/way/out", f"{work}/.git", f"{work}/way/work/.git"):
            assert await kind(files.write(path, b"")) == "read_only", path
            assert await kind(files.mkdir(path)) == "read_only", path
        assert await kind(files.read(f"{work}/hidden/key")) in ("permission_denied", "not_found")
        # Neither goes a tree that holds what is hidden, nor is that copied.
        assert await kind(files.remove(f"{work}/hidden", recursive=True)) != "none"
        assert await kind(files.copy(f"{work}/hidden", f"{work}/shown", recursive=True)) != "none"
        os.rmdir(work / "shown")
        assert (work / "hidden" / "key").read_text() == "secret"
        assert await kind(files.read("relative")) == "invalid_input"
        assert sorted(os.listdir(work)) == ["copy", "hidden", "way"]
        await files.close()
        assert await files.read(f"{work}/copy/b/c") == b"content"

    everywhere(main)


def test_closing_ends_what_runs(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        session = await room.sh("echo ready; sleep 1000")
        await said(session, b"ready")
        await room.executor.close()
        assert (await session.wait()).kind is ExitKind.TERMINATED
        with pytest.raises(ExecutorSpawnFailed):
            await room.sh("true")

    everywhere(main)


def test_a_cancelled_start_leaves_nothing(everywhere: Everywhere) -> None:
    async def main(room: Room) -> None:
        for _ in range(5):
            task = asyncio.ensure_future(room.sh("echo $$; sleep 1000"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await room.done("echo on") == (b"on\n", b"", 0)

    everywhere(main)
