from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.bash_syntax import SCRIPT_LIMIT
from handrail.policy.strict_script_reader import (
    ShellCall,
    literal_commands,
    plain_commands,
    shell_call,
    split,
)
from tests.policy import cases


@pytest.mark.parametrize("case", cases("shell_split.jsonl"))
def test_verified_case(case: dict[str, Any]) -> None:
    commands = plain_commands(case["script"])
    assert (commands is not None) == case["expect"]["splittable"]
    unknown = [list(c) for c in commands or () if c[0] not in case["allowed_first_words"]]
    assert (unknown[0] if unknown else None) == case["expect"]["first_unallowed_command"]


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("a && b || c; d | e\nf", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ('p " " "  x" "\n"', [["p", " ", "  x", "\n"]]),
        ("p \"a\"'b'c", [["p", "abc"]]),
        ("p '' \"\"", [["p", "", ""]]),
        ("p a \\\n  b \\\n c", [["p", "a", "b", "c"]]),
        ("p &&\\\nq", [["p"], ["q"]]),
        ("p é漢 \U0001f600", [["p", "é漢", "\U0001f600"]]),
        ("p漢 a && naïvę_1 b; x😀", [["p漢", "a"], ["naïvę_1", "b"], ["x😀"]]),
        ("p é=1 ę=2 漢=3; “p”=1 x", [["p", "é=1", "ę=2", "漢=3"], ["“p”=1", "x"]]),
        ("p a\u00a0b", [["p", "a\u00a0b"]]),
        ("p 'x; y && z > w $(v)'", [["p", "x; y && z > w $(v)"]]),
    ],
)
def test_plain_scripts_are_taken_apart(script: str, commands: list[list[str]]) -> None:
    found = plain_commands(script)
    assert found is not None
    assert [list(command) for command in found] == commands


@pytest.mark.parametrize(
    "script",
    [
        "p \\ b",  # the grammar drops the backslash, bash passes one word " b"
        "p a\rb",
        "p a\r\nq",
        "p a\x0bb",
        "p a\x0cb",
        "p a\\\nb",  # bash joins it to "ab"
        "git pu\\\nsh",
        'p "a"\\\n"b"',
        "p \\",
        "é=1 p",  # zsh assigns, bash runs a command of this name
        "p; x漢=1 p",
        "p ''''",  # the grammar's concatenation of nothing; the peer refuses it
        "p ''\"\"",
        "p\0a",
        "p 16#ff",
        "123 a",
        'p "5$"',
        "p $",
        'p $"x"',
        "p \ud800",
    ],
)
def test_what_bash_reads_otherwise_cannot_be_told(script: str) -> None:
    assert plain_commands(script) is None


def test_a_script_beyond_the_limit_cannot_be_told() -> None:
    assert plain_commands("a " * (SCRIPT_LIMIT // 2)) is not None
    assert plain_commands("a " * (SCRIPT_LIMIT // 2 + 1)) is None


def test_deep_nesting_is_survived() -> None:
    assert plain_commands("(" * 20_000 + ")" * 20_000) is None
    assert literal_commands("$(" * 20_000) == ()


@pytest.mark.parametrize(
    ("argv", "call"),
    [
        (["bash", "-lc", "x"], True),
        (["/usr/bin/zsh", "-c", "x"], True),
        (["sh", "-c", "x"], True),
        (["bash", "-c", "x", "y"], False),
        (["bash", "-ec", "x"], False),
        (["bash", "x"], False),
        (["dash", "-c", "x"], False),
        (["bash.exe", "-c", "x"], False),
        ([], False),
    ],
)
def test_a_shell_call_is_exactly_three_words(argv: list[str], call: bool) -> None:
    assert shell_call(argv) == (ShellCall(*argv) if call else None)


def test_split_is_for_shell_calls_only() -> None:
    assert split(["bash", "-lc", "a && b"]) == (("a",), ("b",))
    assert split(["a", "b"]) is None
    assert split(["bash", "-lc", "a > b"]) is None


def test_literal_commands_leave_dynamic_words_out() -> None:
    script = 'if x; then rm "$A" -f > o; fi; $B c; "d" e\'f\''
    assert literal_commands(script) == (("x",), ("rm", "-f"), ("d", "ef"))
    assert literal_commands("rm -f x; if") == ()


# --- properties ---------------------------------------------------------------------------------

WORD = st.sampled_from(["probe", "ok1", "a", "-x", "x=y", "'q r'", '"s t"', "''", "é", "1", "a.b"])
JOIN = st.sampled_from([" && ", " || ", " ; ", "\n", " | "])
#: One of these anywhere outside quotes makes a script more than plain words.
LIVE = [
    "$(a)", "`a`", "$A", "${A}", "$((1))", "<(a)", ">(a)", ">o", "2>&1", "<i", "<<<x", "*", "?.c",
    "[ab]", "{a,b}", "~", "(a)", "{ a; }", "&", "a#", "#", "\\a", "\\ ", "$'a'", "!",
]  # fmt: skip
COMMAND = st.lists(WORD, min_size=1, max_size=4).map(lambda words: " ".join(["probe", *words]))
SCRIPT = st.tuples(COMMAND, st.lists(st.tuples(JOIN, COMMAND), max_size=3)).map(
    lambda parts: parts[0] + "".join(join + command for join, command in parts[1])
)


@settings(deadline=None)
@given(SCRIPT)
def test_scripts_of_plain_words_are_plain(script: str) -> None:
    commands = plain_commands(script)
    assert commands is not None
    assert all(command[0] == "probe" for command in commands)


@settings(deadline=None)
@given(SCRIPT, st.sampled_from(LIVE), st.sampled_from(LIVE))
def test_a_live_part_is_never_called_plain(script: str, first: str, last: str) -> None:
    assert plain_commands(f"{script} {first}") is None or first == "!"
    assert plain_commands(f"{first}; {script}") is None
    assert plain_commands(f'probe "{first}x$y{last}"; {script}') is None
    assert plain_commands(f"probe x{first}y {last}") is None or first == "!" == last


@pytest.mark.parametrize(
    "script", ["{\U00103266", "{1\U000d18bd", "{\U000f464e=\t", "echo {\u65e5..9}"]
)
def test_a_brace_before_any_character_does_not_end_the_process(script: str) -> None:
    assert plain_commands(script) is None


def test_words_of_any_language_stay_themselves() -> None:
    assert plain_commands("echo \u65e5\u672c '\U0001f600 x' && caf\u00e9 \u20ac5") == (
        ("echo", "\u65e5\u672c", "\U0001f600 x"),
        ("caf\u00e9", "\u20ac5"),
    )


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_survived(script: str) -> None:
    commands = plain_commands(script)
    assert commands is None or all(commands)
    assert isinstance(literal_commands(script), tuple)


FRAGMENT = st.sampled_from([
    "probe ", "ok1 ", " a ", "&& ok2 ", "; probe ", "'q' ", " ", "\t", "\n", "\\\n", "\\", " \\\n ",
    "&&", "||", ";", "|", "&", "'", '"', "'a b'", '"c d"', "b", "-x", "=", "x=y", "$", "`", "#",
    "!", "(", ")", "{", "}", "*", "?", "[", "]", "~", "<", ">", "\r", "\x0b", "\x0c", "é", "\u00a0",
    "\u3000", "1", "0x1", "16#f", "''", "\\ ", "%", "^", "@", "+", ",", ":", ".", "/", "if", "then",
    "fi", "do", "case", "in", "function", "[[", "((", "$'", "<<", "let", "export",
])  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@settings(max_examples=300, deadline=None)
@given(st.lists(FRAGMENT, min_size=1, max_size=8).map("".join))
def test_bash_runs_nothing_but_the_commands_that_were_told(script: str) -> None:
    told = plain_commands(script)
    if told is None:
        return
    left = list(told)
    for command in run_in_bash(script):
        assert command in left
        left.remove(command)


def run_in_bash(script: str) -> list[tuple[str, ...]]:
    """What bash starts, with everything but three functions out of reach."""
    report = '() { printf "%s\\0" "$FUNCNAME" "$@" >>"$REPORT"; printf "\\2\\0" >>"$REPORT"; }'
    environment = {f"BASH_FUNC_{name}%%": report for name in ("probe", "ok1", "ok2")}
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "report")
        written.touch()
        subprocess.run(
            [shutil.which("bash") or "bash", "-c", script],
            env={**environment, "PATH": "/no/such/path", "REPORT": str(written)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
        records = written.read_bytes().split(b"\2\0")[:-1]
    return [
        tuple(word.decode("utf-8", "surrogateescape") for word in record.split(b"\0")[:-1])
        for record in records
    ]
