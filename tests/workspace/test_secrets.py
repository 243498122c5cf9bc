"""Secrets: commands get them, and no text shows them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import (
    AgentShell,
    CommandFailed,
    ExecutorSpawnFailed,
    Exited,
    Output,
    UsageError,
    Workspace,
    run,
)
from handrail.secret_masks import LEAST_BYTES, Masker, Secrets, StreamMasker
from handrail.unified_exec.settings import Settings
from handrail.workspace.sessions import shell
from tests.cli.user import HANDRAIL
from tests.support.eventually import eventually

VALUE = "npm_4f9Qz-x1"
MARK = "[secret NPM_TOKEN]"
SECRETS = {"NPM_TOKEN": VALUE}
#: The value in two pieces, which no reader gets together: the second follows an answer.
HALVES = f"printf '%s' {VALUE[:5]}; read x; echo {VALUE[5:]}; printf npm"


@pytest.fixture(autouse=True)
def _records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))


# --- the masker -------------------------------------------------------------------------------


@given(st.data())
def test_pieces_are_masked_as_the_whole_is(data: st.DataObject) -> None:
    letters = st.text("ab", min_size=LEAST_BYTES, max_size=9)
    values = data.draw(st.lists(letters, min_size=1, max_size=3, unique=True))
    secrets = Secrets({f"S{number}": value for number, value in enumerate(values)})
    text = data.draw(st.text("abc", max_size=60)).encode()
    pieces, masker, shown = [], Masker(secrets), b""
    while text:
        size = data.draw(st.integers(1, len(text)))
        pieces.append(text[:size])
        text = text[size:]
    for piece in pieces:
        shown += masker.feed(piece)
        assert len(masker._kept) < max(map(len, values))
    shown += masker.finish()
    assert shown == secrets.masked(b"".join(pieces))
    assert not any(value.encode() in shown for value in values)


def parts(text: str | bytes, value: str = VALUE) -> set[str]:
    """The parts of a value in a text, as long as one that is masked."""
    text = text if isinstance(text, str) else text.decode()
    found = (value[at : at + LEAST_BYTES] for at in range(len(value) - LEAST_BYTES + 1))
    return {part for part in found if part in text}


@pytest.mark.parametrize("size", [1, 3, 100])
def test_parts_on_both_sides_of_missing_bytes_are_masked(size: int) -> None:
    """Wherever the stream is cut, and in pieces of whatever size it comes."""
    whole = f"before {VALUE} between {VALUE}{VALUE} after".encode()
    for first in range(len(whole)):
        for last in range(first, len(whole) + 1):
            masker, shown = Masker(Secrets(SECRETS)), b""
            for part in (whole[:first], whole[last:]):
                for at in range(0, len(part), size):
                    shown += masker.feed(part[at : at + size])
                if part is not whole[last:]:
                    masker.cut()
            shown += masker.finish()
            assert not parts(shown.replace(MARK.encode(), b"")), (first, last, shown)


def test_what_is_no_part_of_a_value_is_shown_behind_missing_bytes() -> None:
    masker = StreamMasker[str](Secrets(SECRETS))
    assert masker.feed("out", b"plain\n", omitted=9) == b"plain\n"
    assert masker.feed("err", b"Qz-x1, not yet ") == f"{MARK}, not yet ".encode()
    assert masker.feed("out", b"np") == b""
    assert masker.feed("out", b"x1", omitted=9) == b"npx1"
    assert masker.feed("out", b"4f", omitted=9) == b""  # its rest may follow
    assert list(masker.finish()) == [("out", b"4f")]


def test_no_part_is_shown_to_a_reader_that_comes_late(tmp_path: Path) -> None:
    """Only the end of the output is kept, and it begins in the middle of a value."""
    script = "yes \"$NPM_TOKEN\" | head -n 9000 | tr -d '\\n'"
    with Workspace(tmp_path, secrets=SECRETS, sandbox="off", keep_output=10_001) as ws:
        for read in ("follow", "lines", "result"):
            process = ws.start(["sh", "-c", script])
            process.wait()
            if read == "result":
                text = process.result().stdout
            else:
                text = "".join(getattr(one, "text", "") for one in getattr(process, read)())
            assert 0 < text.count(MARK) < 9000, read
            assert not parts(text.replace(MARK, "")), read


def test_no_part_is_shown_of_what_a_shell_wrote_between_two_calls(tmp_path: Path) -> None:
    """More than is kept of a background job: the cut goes through values."""
    count = 2 * shell._BETWEEN // len(VALUE)
    flood = f"yes \"$NPM_TOKEN\" | head -n {count} | tr -d '\\n'; : > flooded"
    with Workspace(tmp_path, secrets=SECRETS, sandbox="off") as ws, ws.shell() as session:
        session.run(f"({flood}) & :")
        eventually((tmp_path / "flooded").exists)
        heard: list[str] = []
        result = session.run("echo now", on_output=lambda output: heard.append(output.text))
        while "now" not in result.stdout:
            result = session.run("echo now")
        assert result.omitted
        assert not parts(result.stdout.replace(MARK, ""))
        assert not parts("".join(heard).replace(MARK, ""))


def test_the_longer_of_two_that_begin_alike() -> None:
    masker = Masker(Secrets({"SHORT": "abcd", "LONG": "abcdefgh"}))
    assert masker.feed(b"x abcd") == b"x "
    assert masker.feed(b"efgh abcd") == b"[secret LONG] "
    assert masker.feed(b"!") == b"[secret SHORT]!"
    assert masker.finish() == b""


def test_a_value_of_several_lines_in_a_terminal() -> None:
    secrets = Secrets({"PEM": "-----BEGIN\nabc\n-----END\n"})
    assert secrets.masked(b"-----BEGIN\r\nabc\r\n-----END\r\n") == b"[secret PEM]\r\n"


def test_values_of_json() -> None:
    secrets = Secrets(SECRETS)
    value = {"a": [f"<{VALUE}>", 1, None, b"npm_4f9Qz-x1"], VALUE: {"b": VALUE}}
    masked = {"a": [f"<{MARK}>", 1, None, b"npm_4f9Qz-x1"], MARK: {"b": MARK}}
    assert secrets.masked_value(value) == masked
    assert secrets.masked_text(f"\ud800{VALUE}\udcff") == f"\ud800{MARK}\udcff"


@pytest.mark.parametrize("bad", ["", "abc", " ab\n", "pa\0ss word", b"\xff\xfe\xfd\xfc", 17654321])
def test_a_refusal_does_not_show_it(bad: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the secret PIN ") as info:
        Workspace(tmp_path, secrets={"PIN": bad})
    assert not bad or str(bad) not in str(info.value)
    with pytest.raises(UsageError, match="named 'A=B'"):
        Workspace(tmp_path, secrets={"A=B": VALUE})


# --- commands ---------------------------------------------------------------------------------


def test_in_text_and_not_in_bytes(at: str | None, tmp_path: Path) -> None:
    with Workspace(tmp_path, at=at, sandbox="off", secrets=SECRETS) as ws:
        script = 'echo "is $NPM_TOKEN"; echo "$NPM_TOKEN" >&2; exit 3'
        result = ws.run(script)
        assert (result.stdout, result.stderr) == (f"is {MARK}\n", f"{MARK}\n")
        raw = ws.run(script, text=False)
        assert raw.stdout == f"is {VALUE}\n".encode()
        for text in (True, False):
            with pytest.raises(CommandFailed, match="last line of its output") as info:
                ws.run(f"{script} # {VALUE}", text=text, check=True)  # type: ignore[call-overload]
            assert VALUE not in str(info.value)
        heard: list[Output] = []
        ws.run("echo $NPM_TOKEN", on_output=heard.append)
        assert "".join(one.text for one in heard) == f"{MARK}\n"
        assert ws.run("echo ${NPM_TOKEN-none}", env={"NPM_TOKEN": None}).stdout == "none\n"
        for shown in (ws, ws.variables, result, heard):
            assert VALUE not in repr(shown)


def test_across_pieces(at: str | None, tmp_path: Path) -> None:
    with Workspace(tmp_path, at=at, sandbox="off", secrets=SECRETS) as ws:
        process = ws.start(HALVES)
        text = ""
        answered = False
        for event in process:
            if isinstance(event, Exited):
                break
            text += event.text
            if not answered:
                assert text == ""
                process.send("\n")
                answered = True
        assert text == f"{MARK}\nnpm"
        assert process.result().stdout == f"{MARK}\nnpm"
        shown = ws.start("echo $NPM_TOKEN; read x").wait_for(r"npm_\S+", timeout=20)
        assert shown.match == MARK


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_not_in_the_list_of_processes(sandbox: str, tmp_path: Path) -> None:
    value = "npm_listed-7Qk2"  # in no command of another test
    secrets = {"NPM_TOKEN": value}
    with Workspace(tmp_path, sandbox=sandbox, secrets=secrets) as ws:  # type: ignore[arg-type]
        with ws.start('test "$NPM_TOKEN" && echo has; read x') as process:
            process.wait_for("has", timeout=20)
            assert value.encode() not in b"".join(_command_lines())


def _command_lines() -> Iterator[bytes]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                yield Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                pass


def test_no_record_has_them(url: str, tmp_path: Path) -> None:
    with Workspace(tmp_path, at=url, sandbox="off", detach_ttl=60, secrets=SECRETS) as ws:
        ws.start(f"echo $NPM_TOKEN; read x # {VALUE}").wait_for("npm_", timeout=20)
        left = ws.detach()
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(left.encode() in one for one in written)
    assert not any(VALUE.encode() in one for one in written)
    with Workspace.attach(left, secrets=SECRETS) as back:
        (process,) = back.processes
        process.send("\n")
        assert process.result().stdout == f"{MARK}\n"
        assert back.run("echo $NPM_TOKEN").stdout == f"{MARK}\n"


def test_one_command_of_its_own(tmp_path: Path) -> None:
    result = run("echo $NPM_TOKEN", cwd=tmp_path, secrets=SECRETS)
    assert result.stdout == f"{MARK}\n"


# --- agents -----------------------------------------------------------------------------------


def test_no_answer_to_a_model_has_them(tmp_path: Path) -> None:
    told: list[object] = []

    async def main() -> list[str]:
        where = Workspace(tmp_path, secrets=SECRETS)
        async with AgentShell(
            where, policy="never", on_event=told.append, on_audit=told.append
        ) as shell:
            command = {"cmd": "test ${#NPM_TOKEN} = 12 && echo same $NPM_TOKEN", "tty": True}
            once = await shell.call("exec_command", command)
            ran = await shell.run("echo $NPM_TOKEN; printf npm")
            waits = await shell.exec_command(f"stty -echo; {HALVES}", tty=True, yield_time_ms=250)
            rest = await shell.write_stdin(waits.process_id or 0, "\n", yield_time_ms=5000)
            return [once.text, ran.stdout.decode(), waits.text + rest.text]

    texts = asyncio.run(main())
    assert f"same {MARK}" in texts[0]
    assert texts[1] == f"{MARK}\nnpm"
    assert MARK in texts[2]
    assert not any(VALUE in text for text in texts)
    assert told
    assert not any(VALUE in repr(one) for one in told)


def test_a_secret_that_a_model_writes_itself_is_in_no_answer_event_or_record(
    tmp_path: Path,
) -> None:
    """Its commands, directories and patches are texts of its own; logs keep them."""
    heard: list[object] = []

    async def talk() -> None:
        async with AgentShell(
            Workspace(tmp_path, secrets=SECRETS),
            policy="untrusted",
            approver=lambda question: VALUE in f"{question.argv} {question.cwd}",
            on_event=heard.append,
            on_audit=heard.append,
        ) as shell:
            for name, arguments in (
                ("exec_command", {"cmd": f"echo {VALUE}"}),
                ("exec_command", {"cmd": "true", "workdir": f"/nowhere/{VALUE}"}),
                ("apply_patch", {"patch": f"*** Begin Patch\n*** Delete File: {VALUE}\n"}),
                (VALUE, {}),
            ):
                answer = await shell.call(name, arguments)
                heard.extend((answer, answer.text))

    asyncio.run(talk())
    told = repr(heard)
    assert VALUE not in told
    assert told.count(MARK) > 6
    assert "exit_code=0" in told  # the approver has seen the command as it is


def test_settings_of_the_caller_do_not_take_them_away(tmp_path: Path) -> None:
    async def main() -> bytes:
        where = Workspace(tmp_path, env={"A": "1", "B": "2"}, secrets=SECRETS)
        mine = Settings(str(tmp_path), env={"B": "3"})
        async with AgentShell(where, policy="never", exec_settings=mine) as shell:
            return (await shell.run("echo $A $B $NPM_TOKEN")).stdout

    assert asyncio.run(main()) == f"1 3 {MARK}\n".encode()


# --- the command line -------------------------------------------------------------------------


def handrail(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*HANDRAIL, *words],
        check=False,
        cwd=cwd,
        env={**os.environ, **SECRETS},
        input="",
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == code, done
    return done


def test_from_the_command_line(tmp_path: Path) -> None:
    script = "echo $NPM_TOKEN; echo $NPM_TOKEN >&2; printf npm_; exit 2"
    words = ("run", "--secret", "NPM_TOKEN", "--", "sh", "-c", script)
    done = handrail(*words, cwd=tmp_path, code=2)
    assert (done.stdout, done.stderr) == (f"{MARK}\nnpm_", f"{MARK}\n")
    done = handrail(words[0], "--json", *words[1:], cwd=tmp_path, code=2)
    assert json.loads(done.stdout)["stdout"] == f"{MARK}\nnpm_"
    file = tmp_path / "file"
    file.write_text(f"{VALUE}\n")
    file.chmod(0o600)
    words = ("run", "--secret", "OTHER=@file", "--", "sh", "-c", "echo $OTHER $NPM_TOKEN")
    assert handrail(*words, cwd=tmp_path).stdout == "[secret OTHER]\n"


def test_a_value_in_the_command_line_is_refused(tmp_path: Path) -> None:
    for wrong in (f"NPM_TOKEN={VALUE}", "=@file", "NOT_THERE", "A=@missing"):
        done = handrail("run", "--secret", wrong, "--", "true", cwd=tmp_path, code=2)
        assert "secret" in done.stderr
        assert VALUE not in done.stderr


def test_what_was_left_running(url: str, tmp_path: Path) -> None:
    script = "echo $NPM_TOKEN; read x"
    words = ("--at", url, "--sandbox", "off", "--detach", "--secret", "NPM_TOKEN")
    name = handrail("run", *words, "--", "sh", "-c", script, cwd=tmp_path).stdout.strip()
    refused = handrail("logs", name, cwd=tmp_path, code=125)
    assert "mask them by --secret NPM_TOKEN" in refused.stderr
    assert handrail("logs", "--secret", "NPM_TOKEN", name, cwd=tmp_path).stdout == f"{MARK}\n"
    done = handrail("attach", "--secret", "NPM_TOKEN", name, cwd=tmp_path, code=1)
    assert done.stdout == f"{MARK}\n"
    name = handrail("run", *words, "--", "sh", "-c", script, cwd=tmp_path).stdout.strip()
    assert VALUE not in handrail("kill", name, cwd=tmp_path).stdout  # shows nothing


def test_not_in_the_context_of_an_error_and_not_in_the_name_of_a_directory(tmp_path: Path) -> None:
    with Workspace(tmp_path, secrets=SECRETS) as ws:
        with pytest.raises(ExecutorSpawnFailed) as failed:
            ws.run([f"/nowhere/{VALUE}"])
        error: BaseException | None = failed.value
        while error is not None:
            assert VALUE not in str(error)
            error = error.__context__
        with ws.shell() as session:
            session.run("mkdir $NPM_TOKEN; cd $NPM_TOKEN")
            assert VALUE not in repr(session)
            assert session.cwd.endswith(VALUE)  # a path to be used


def test_a_flood_is_masked_in_bounded_time(tmp_path: Path) -> None:
    write = f"import sys; sys.stdout.write('{VALUE[:-1]}' * 500_000 + '{VALUE}')"
    result = run([sys.executable, "-c", write], cwd=tmp_path, sandbox="off", secrets=SECRETS)
    assert result.stdout.endswith(MARK)
    assert len(result.stdout) == 500_000 * (len(VALUE) - 1) + len(MARK) or result.omitted


def test_refused_starts_and_denials_are_masked(tmp_path: Path) -> None:
    value = "sk-in-a-path-1"
    with Workspace(tmp_path, secrets={"TOK": value}) as ws:
        with pytest.raises(ExecutorSpawnFailed, match=r"\[secret TOK\]") as refused:
            ws.run([f"/missing/{value}"])
        assert value not in str(refused.value)
        assert refused.value.errno == errno.ENOENT
        for call in (ws.files.read, ws.files.stat, ws.files.list):
            with pytest.raises(FileNotFoundError, match=r"\[secret TOK\]") as missing:
                call(f"in/{value}")
            assert value not in "".join(traceback.format_exception(missing.value))
            assert value not in f"{missing.value!r}{missing.value.filename}{vars(missing.value)}"
        with pytest.raises(PermissionError, match=r"\[secret TOK\] cannot be written") as outside:
            ws.files.write(f"/etc/{value}", "x")
        assert value not in "".join(traceback.format_exception(outside.value))
        result = ws.run('touch "/etc/$TOK"', watch_denials=True)
        assert [denial.path for denial in result.denials] == ["/etc/[secret TOK]"]
        assert value not in repr(result)
