"""Shell sessions: state from one command to the next, and every way a command can end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail import (
    AsyncWorkspace,
    CommandFailed,
    ExecutorSpawnFailed,
    ExitKind,
    Output,
    Result,
    Shell,
    ShellEnded,
    UsageError,
    Workspace,
)
from tests.executor.places import Room, run_in
from tests.support.eventually import PATIENCE, eventually, eventually_so
from tests.support.processes import alive

IGNORES_INT = "bash -c 'trap : INT; echo begun; while :; do sleep 1; done'; echo not reached"
IGNORES_ALL = "bash -c 'trap \"\" INT TERM; echo begun; while :; do sleep 1; done'; echo no"


def ended_by_timeout(sh: Shell, command: str) -> Result[str]:
    """Run a command that prints first, with a timeout that lets it."""
    for seconds in PATIENCE:
        result = sh.run(command, timeout=seconds)
        assert result.timed_out
        if result.stdout:
            break
    return result


@pytest.fixture(params=["bash", "sh"])
def sh(request: pytest.FixtureRequest, ws: Workspace) -> Iterator[Shell]:
    with ws.shell(request.param) as shell:
        yield shell


@pytest.fixture
def bash(ws: Workspace) -> Iterator[Shell]:
    with ws.shell() as shell:
        yield shell


def test_state_is_kept(sh: Shell, tmp_path: Path) -> None:
    assert sh.cwd == str(tmp_path)
    first = sh.run("mkdir src; cd src; export A=1; b=2; f() { echo f $1; }; alias x=y; set -u")
    assert (first.stdout, first.stderr, first.exit_code) == ("", "", 0)
    assert sh.cwd == f"{tmp_path}/src"
    assert sh.run("f $b; sh -c 'echo $A'; pwd; umask 027").stdout == f"f 2\n1\n{tmp_path}/src\n"
    assert sh.run("umask; case $- in *u*) echo strict;; esac").stdout == "0027\nstrict\n"


def test_bash_keeps_what_is_declared(bash: Shell) -> None:
    bash.run("declare -A m; m[a]=5; declare -i n=3; shopt -s nullglob; set -- one two")
    assert bash.run("n+=4; echo ${m[a]} $n $2; shopt -q nullglob").stdout == "5 7 two\n"


def test_bash_keeps_the_functions_of_the_session(bash: Shell) -> None:
    assert bash.run("f() { :; }; unset -f $(compgen -A function)", timeout=20).timed_out is False
    assert bash.run("type f", timeout=20).exit_code == 1
    assert bash.run("echo on", timeout=20).stdout == "on\n"


def test_streams_and_status_are_apart(sh: Shell) -> None:
    result = sh.run("echo out; echo err >&2; (exit 4)")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 4)
    assert result.exit is not None
    assert result.exit.kind is ExitKind.EXITED
    assert sh.run("echo $?").stdout == "4\n"
    assert sh.run("! true").exit_code == 1
    with pytest.raises(CommandFailed, match="exited with 4"):
        sh.run("(exit 4)", check=True)


def test_set_e_ends_the_shell_at_a_failure(sh: Shell) -> None:
    assert sh.run("set -e; true").ok
    assert sh.run("echo on").stdout == "on\n"
    assert sh.run("echo a; false; echo not reached").stdout == "a\n"
    assert not sh.alive


def test_no_process_is_started_for_a_command(sh: Shell) -> None:
    pids = {sh.run("echo $$").stdout for _ in range(3)}
    assert len(pids) == 1


@pytest.mark.parametrize(
    "command",
    [
        "sleep 100; echo not reached",
        "while :; do :; done; echo not reached",
        "f() { while :; do :; done; }; g() { f; echo no; }; while :; do g; echo no; done; echo no",
        "x=$(sleep 100); echo not reached",
        "sleep 100 | cat; echo not reached",
        "(sleep 100; echo no); echo not reached",
        "sleep 100 & wait; echo not reached",
    ],
)
def test_a_timeout_interrupts_all_of_it_and_keeps_the_shell(sh: Shell, command: str) -> None:
    sh.run("kept=1")
    for _ in range(2):  # the second finds the shell as the first has left it
        result = ended_by_timeout(sh, f"echo begun; {command}")
        assert result.exit_code == 130
        assert result.stdout == "begun\n"
    assert sh.run("echo $kept").stdout == "1\n"


@pytest.mark.parametrize("command", [IGNORES_INT, IGNORES_ALL], ids=["int", "all"])
def test_what_ignores_the_interrupt_is_ended(sh: Shell, command: str) -> None:
    result = ended_by_timeout(sh, command)
    assert result.stdout == "begun\n"
    assert sh.alive
    assert sh.run("echo on").stdout == "on\n"


def test_a_shell_that_cannot_be_brought_back_is_ended(bash: Shell) -> None:
    result = bash.run("trap : INT; while :; do :; done", timeout=0.2)
    assert result.timed_out
    assert not bash.alive
    with pytest.raises(ShellEnded, match="restart"):
        bash.run("true")


def test_an_interrupt_from_within_ends_the_command_alone(bash: Shell) -> None:
    result = bash.run("echo a; kill -INT $$; echo not reached")
    assert (result.stdout, result.exit_code, result.timed_out) == ("a\n", 130, False)
    assert bash.run("f() { echo on; }; f").stdout == "on\n"


def test_interrupt_from_another_thread(bash: Shell) -> None:
    begun = threading.Event()
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(
            bash.run("sh -c 'echo begun; exec sleep 100'", on_output=lambda output: begun.set())
        )
    )
    thread.start()
    assert begun.wait(30)
    bash.interrupt()
    thread.join(30)
    assert found[0].exit_code == 130
    assert not found[0].timed_out
    bash.interrupt()  # nothing runs
    assert bash.run("echo on").stdout == "on\n"


def test_stdin_is_empty_or_given(sh: Shell) -> None:
    assert sh.run("cat; echo end").stdout == "end\n"
    text = "it's\n$x `y` \\n %s\n"
    assert sh.run("cat", input=text).stdout == text
    assert sh.run("read x; echo got $x", input="line\nmore\n").stdout == "got line\n"
    assert sh.run("true", input="not read\n" * 50_000).ok
    assert sh.run("echo on").stdout == "on\n"


def test_input_of_bash_is_any_bytes(bash: Shell) -> None:
    data = bytes(range(256)) * 3 + b"no newline"
    assert bash.run("cat", input=data, text=False).stdout == data


def test_input_that_sh_cannot_have_is_refused(ws: Workspace) -> None:
    with ws.shell("sh") as sh:
        for data in (b"a\0\n", b"no newline"):
            with pytest.raises(UsageError, match="bash"):
                sh.run("cat", input=data)


def test_a_command_that_exits_ends_the_shell(sh: Shell) -> None:
    result = sh.run("echo last; exit 7; echo not reached")
    assert (result.stdout, result.exit_code) == ("last\n", 7)
    assert not sh.alive
    assert sh.exit is not None
    assert sh.exit.code == 7
    with pytest.raises(ShellEnded, match="ended with 7"):
        sh.run("echo")
    sh.restart()
    assert sh.run("echo again").stdout == "again\n"


def test_a_command_that_replaces_the_shell(sh: Shell) -> None:
    result = sh.run("exec sh -c 'echo other; exit 5'")
    assert (result.stdout, result.exit_code) == ("other\n", 5)
    assert not sh.alive


def test_background_jobs_run_on_and_are_heard_later(sh: Shell, tmp_path: Path) -> None:
    result = sh.run("(while [ ! -e go ]; do sleep 0.02; done; echo late; touch said) & echo now")
    assert result.stdout == "now\n"
    assert result.stderr == ""
    (tmp_path / "go").touch()
    for _ in range(1000):
        if (tmp_path / "said").exists():
            break
        threading.Event().wait(0.02)
    assert sh.run("wait; echo next").stdout == "late\nnext\n"


def test_background_jobs_outlive_a_timeout_and_end_with_the_session(ws: Workspace) -> None:
    with ws.shell() as sh:
        pid = int(sh.run("sleep 1000 >/dev/null 2>&1 & echo $!").stdout)
        assert sh.run("sleep 100", timeout=0.3).timed_out
        assert alive(pid)

    async def gone() -> None:
        await eventually_so(lambda: not alive(pid))

    asyncio.run(gone())


def test_syntax_errors_are_results(sh: Shell) -> None:
    for wrong in ("if; then", "echo 'a", 'echo "$(', "f() {", "a )"):
        result = sh.run(wrong)
        assert result.exit_code != 0
        assert result.stderr
        assert sh.alive
    assert sh.run("echo on").stdout == "on\n"


def test_here_documents(sh: Shell) -> None:
    assert sh.run("cat <<X\none\ntwo\nX\necho end").stdout == "one\ntwo\nend\n"
    assert sh.run("cat <<X\nunfinished").stdout.strip() == "unfinished"
    assert sh.run("echo on").stdout == "on\n"


def test_output_is_exact(sh: Shell) -> None:
    assert sh.run("printf a; printf b >&2").stdout == "a"
    assert sh.run("printf 'x\\000\\377\\036y\\036'", text=False).stdout == b"x\0\xff\x1ey\x1e"
    assert sh.run("echo $1 # no newline at the end of this comment").stdout == "\n"


def test_a_lot_of_output(sh: Shell) -> None:
    size = 100_000_000
    command = f"head -c {size} /dev/zero | tr '\\0' x; echo end"
    result = sh.run(command, text=False, max_output=None)
    assert len(result.stdout) == size + 4
    assert result.stdout.endswith(b"xend\n")
    assert result.omitted == 0
    result = sh.run(f"echo start; {command}", max_output=1000, text=False)
    assert len(result.stdout) == 1000
    assert result.stdout.startswith(b"start\nxxx")
    assert result.stdout.endswith(b"xxxend\n")
    assert result.omitted == size + 10 - 1000


def test_redirections_for_good_lose_no_mark(sh: Shell, tmp_path: Path) -> None:
    assert sh.run("exec >log 2>&1; echo there").stdout == ""
    assert sh.run("echo more; false").exit_code == 1
    assert (tmp_path / "log").read_text() == "there\nmore\n"


def test_descriptors_of_commands_are_theirs(bash: Shell) -> None:
    bash.run("exec 9>lock 3>&1")
    assert bash.run("echo x >&3; echo y >&9; cat lock; ls /proc/self/fd | tr '\\n' ' '").stdout == (
        "x\ny\n0 1 2 3 4 9 "
    )


def test_verbose_and_traced_shells_lose_no_mark(sh: Shell) -> None:
    for options in ("set -x", "set -v", "set -xv"):
        assert sh.run(f"{options}; echo a").stdout == "a\n"
        assert sh.run("echo b; set +xv").stdout == "b\n"
    assert sh.run("set -x; echo a").stderr.splitlines()[1:] == []


def test_listeners_hear_the_output_without_marks(bash: Shell) -> None:
    heard: list[Output] = []
    bash.run("echo é; echo b >&2", on_output=heard.append)
    assert "".join(o.text for o in heard if o.stream == "stdout") == "é\n"
    assert b"".join(o.data for o in heard if o.stream == "stderr") == b"b\n"

    def wrong(output: Output) -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        bash.run("echo a", on_output=wrong)
    assert bash.run("echo on").stdout == "on\n"


def test_mistakes_are_usage_errors(ws: Workspace, bash: Shell) -> None:
    for wrong in (["ls"], None, "a\0b", "\ud800"):
        with pytest.raises(UsageError):
            bash.run(wrong)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="timeout"):
        bash.run("true", timeout=-1)
    with pytest.raises(UsageError, match="max_output"):
        bash.run("true", max_output=-1)
    with pytest.raises(UsageError, match="fish"):
        ws.shell("fish")
    assert bash.run("echo on").stdout == "on\n"


def test_a_shell_that_does_not_start_says_so(ws: Workspace) -> None:
    with pytest.raises(ExecutorSpawnFailed):
        ws.shell(env={"PATH": "/nowhere"})


def test_environment_and_directory_of_the_session(ws: Workspace, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    with ws.shell(cwd="below", env={"GIVEN": "1"}, name="mine") as sh:
        assert sh.run("echo $GIVEN; pwd").stdout == f"1\n{tmp_path}/below\n"
        assert repr(sh) == f"<Shell bash in '{tmp_path}/below': running>"


def test_sandboxed(tmp_path: Path) -> None:
    with Workspace(tmp_path) as ws:
        for program in ("bash", "sh"):
            with ws.shell(program) as sh:
                assert sh.run("echo x >inside; cat inside").stdout == "x\n"
                assert not sh.run("echo x >/usr/outside").ok
                assert sh.run("sleep 100", timeout=0.5).timed_out
                assert sh.run(IGNORES_ALL, timeout=0.5).timed_out
                assert sh.run("echo on").stdout == "on\n"


@pytest.mark.parametrize("kind", ["websocket", "ssh", "codex"])
def test_on_another_machine(kind: str, tmp_path: Path) -> None:
    async def main(room: Room) -> None:
        async with AsyncWorkspace(room.base, sandbox="off", executor=room.executor) as ws:
            async with await ws.shell() as sh:
                await sh.run("cd /usr; x=1")
                assert (await sh.run("echo $x; pwd")).stdout == "1\n/usr\n"
                assert sh.cwd == "/usr"
                assert (await sh.run("sleep 100; echo no", timeout=0.5)).timed_out
                if room.ours:
                    assert (await sh.run(IGNORES_ALL, timeout=0.5)).timed_out
                big = await sh.run("head -c 20000000 /dev/zero", text=False)
                assert len(big.stdout) == 20_000_000
                if not room.ours:  # no other signal than an interrupt is passed on there
                    assert (await sh.run(IGNORES_INT, timeout=0.5)).timed_out
                    assert not sh.alive
                    await sh.restart()
                assert (await sh.run("exit 3")).exit_code == 3
                assert not sh.alive

    run_in(kind, tmp_path, main)


async def test_a_cancelled_call_leaves_a_shell_that_works(tmp_path: Path) -> None:
    async with AsyncWorkspace(tmp_path, sandbox="off") as ws, await ws.shell() as sh:
        begun = asyncio.Event()
        task = asyncio.create_task(
            sh.run("x=1; echo begun; sleep 100", on_output=lambda output: begun.set())
        )
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sh.run("echo $x")).stdout == "1\n"


async def test_calls_run_one_after_the_other(tmp_path: Path) -> None:
    async with AsyncWorkspace(tmp_path, sandbox="off") as ws, await ws.shell() as sh:
        results = await asyncio.gather(*(sh.run(f"echo {n}; n=$((n+1))") for n in range(20)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(20)]
        assert (await sh.run("echo $n")).stdout == "20\n"


async def test_the_end_of_the_workspace_ends_a_call(tmp_path: Path) -> None:
    async with AsyncWorkspace(tmp_path, sandbox="off") as ws:
        sh = await ws.shell()
        begun = asyncio.Event()
        task = asyncio.create_task(
            sh.run("echo begun; sleep 100", on_output=lambda output: begun.set())
        )
        await begun.wait()
    result = await task
    assert not result.ok
    assert not sh.alive


def test_secrets_are_masked(tmp_path: Path) -> None:
    heard: list[Output] = []
    with Workspace(tmp_path, sandbox="off", secrets={"TOK": "s3cret-value"}) as ws:
        with ws.shell() as sh:
            result = sh.run("echo $TOK; echo $TOK >&2; printf s3cret-", on_output=heard.append)
            assert result.stdout == "[secret TOK]\ns3cret-"
            assert result.stderr == "[secret TOK]\n"
            text = "".join(output.text for output in heard if output.stream == "stdout")
            assert text == result.stdout
            data = b"".join(output.data for output in heard if output.stream == "stdout")
            assert data == b"s3cret-value\ns3cret-"
            assert sh.run("echo $TOK", text=False).stdout == b"s3cret-value\n"
            for text_wanted in (True, False):
                with pytest.raises(CommandFailed, match="TOK") as failed:
                    sh.run("echo $TOK; echo s3cret-value; (exit 3)", check=True, text=text_wanted)
                assert "s3cret-value" not in str(failed.value)
            heard.clear()
            assert sh.run("printf s3cret-; exit 2", on_output=heard.append).exit_code == 2
            assert "".join(output.text for output in heard) == "s3cret-"


FORGED = """printf '\\036%s:{said}:%s\\036' $m $m; printf '\\036%s::%s\\036' $m $m >&2"""
READ_MARK = (
    "while IFS= read -r line </proc/$$/fd/10; do"
    " case $line in *__handrail_end*) set -- $line; m=$3${4%;}; break;; esac; done; "
)


@pytest.mark.parametrize(("said", "status"), [("x /", 255), ("²", 255), ("9999 /", 255), ("7", 7)])
def test_a_forged_mark_harms_only_its_own_result(bash: Shell, said: str, status: int) -> None:
    # The waiting end line is in bash's script, its stdin, of which eval keeps a copy.
    script = READ_MARK + FORGED.format(said=said)
    result = bash.run(script, timeout=20)
    assert result.exit_code == status
    assert not result.timed_out


def test_a_directory_of_any_length_ends_a_command(bash: Shell) -> None:
    assert bash.run("PWD=$(printf %100000s x); (exit 3)", timeout=20).exit_code == 3


def test_a_closed_shell_runs_nothing(ws: Workspace) -> None:
    shell = ws.shell()
    shell.close()
    with pytest.raises(ShellEnded):
        shell.run("true")
    shell.restart()
    assert shell.run("echo on").stdout == "on\n"
    shell.close()


def test_a_listener_hears_what_background_jobs_wrote_before(bash: Shell, tmp_path: Path) -> None:
    bash.run("(until [ -e go ]; do sleep 0.05; done; echo late; echo x >written) &")
    (tmp_path / "go").touch()
    eventually((tmp_path / "written").exists)
    heard: list[Output] = []
    result = bash.run("echo on", on_output=heard.append)
    assert result.stdout == "".join(output.text for output in heard) == "late\non\n"
