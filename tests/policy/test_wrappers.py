from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.policy.wrappers import DEPTH_LIMIT, sightings


def seen(*argv: str | None) -> dict[str, bool]:
    return {
        " ".join("?" if word is None else word for word in words): certain
        for words, certain in sightings(argv).commands
    }


@pytest.mark.parametrize(
    "script",
    [
        "sudo P x", "sudo -u root -- P x", "sudo -n P x", "sudo A=1 P x", "env -u X P x",
        "env -i A=1 P x", "env - P x", "env - -u X A=1 P x", "env -S 'P x'",
        "env --split-string='P x'", "doas -u x P x",
        "timeout 5 P x", "timeout -k 5 -s KILL 10 P x", "timeout $T P x", "nice P x",
        "nice -n 5 P x", "nice -5 P x", "nohup P x", "setsid -w P x", "stdbuf -oL P x",
        "time -p P x", "command P x", "builtin P x", "exec -a y P x", "eval P x", "eval 'P x'",
        "trap 'P x' EXIT", "trap -- 'P x' EXIT", "bash -ec 'P x'", "bash -l -c 'P x'",
        "bash -o pipefail -c 'P x'", "dash -c 'P x'", "bash <<< 'P x'", "sh <<E\nP x\nE",
        "su - y -c 'P x'", "watch -n 1 'P x'", "flock /l P x", "flock /l -c 'P x'", "chroot / P x",
        "busybox P x", "find . -exec P x \\;", "uv run P x", "npx P x", "/usr/bin/sudo P x",
        "if then P x", "coproc P x", "coproc { P x; }", "coproc N { P x; }",
    ],
)  # fmt: skip
def test_a_command_is_seen_behind_its_wrapper(script: str) -> None:
    assert seen("bash", "-c", script).get("P x") is True


@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("xargs -n1 P", "P ?"),
        ("xargs -I{} P {}", "P {} ?"),
        ("find . -exec P {} + -o -execdir Q {} \\;", "Q ?"),
        ("git -C y push", "git push"),
        ("git -c a=b --no-pager push x", "git push x"),
        ("docker -H y run x", "docker run x"),
    ],
)
def test_words_of_the_wrapper_itself_are_left_out(script: str, command: str) -> None:
    assert command in seen("bash", "-c", script)


@pytest.mark.parametrize("script", ["command -v P", "echo P x", "sudo -u P", "find . -name P"])
def test_an_argument_is_no_command(script: str) -> None:
    assert not {"P", "P x"} & set(seen("bash", "-c", script))


def test_behind_an_unknown_program_nothing_is_certain() -> None:
    assert seen("bash", "-c", "$SUDO P x").get("P x") is False
    assert not sightings(("bash", "-c", "$SUDO P x")).clear


def test_an_argv_that_wraps_nothing_is_itself() -> None:
    assert seen("P", "x") == {"P x": True}
    assert sightings(("P", "x")).clear
    assert sightings(()).commands == ()


def test_depth_is_bounded() -> None:
    assert "P" in seen(*["env"] * DEPTH_LIMIT, "P")
    deep = sightings((*["env"] * (DEPTH_LIMIT + 1), "P"))
    assert ("P",) not in dict(deep.commands)
    assert not deep.clear


@pytest.mark.parametrize("word", ["watch", "eval", "sudo", "flock", "env"])
def test_repetition_does_not_explode(word: str) -> None:
    start = time.monotonic()
    sightings((word,) * 400)
    sightings(("bash", "-c", f"{word} " * 400))
    assert time.monotonic() - start < 10


@settings(deadline=None)
@given(st.lists(st.sampled_from(["sudo", "env", "-c", "bash", "A=1", "--", "x", None, "-u"])))
def test_any_argv_is_survived(words: list[str | None]) -> None:
    sightings(tuple(words))


def test_a_short_script_with_many_readings_is_cut_and_not_followed_for_ever() -> None:
    script = 'X=z; X="$X"ap; bash -c "$X x"<<<"$X"ap; `ash -c "$X x"<<<'
    begin = time.process_time()
    assert sightings(("bash", "-c", script)).cut
    assert time.process_time() - begin < 5
