"""Whether a rule that leaves the sandbox is believed: programs, directories, surroundings."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from handrail.policy.context import Lookup, Situation
from handrail.policy.decide import Action, Verdict, decide
from handrail.policy.load import parse_rules
from handrail.policy.rules import Sandbox

SYSTEM = "/usr/bin:/bin"
TOOL = "#!/bin/sh\nexit 0\n"


class Place:
    """A directory that commands can write, and one of the user's that they cannot."""

    def __init__(self, base: Path) -> None:
        self.work, self.own = base / "work", base / "own"
        for directory in (self.work / "bin", self.own / "bin"):
            directory.mkdir(parents=True, mode=0o755)
        self.program(self.own / "bin" / "tool")

    @staticmethod
    def program(path: Path) -> None:
        path.write_text(TOOL)
        path.chmod(0o755)

    def verdict(
        self,
        script: str,
        path: str | None = None,
        *,
        rules: str = "",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        local: bool = True,
        flag: str = "-c",
        shell: str = "/bin/bash",
        escalates: bool = False,
    ) -> Verdict:
        named = [word for word in rules.split() if word] or ["tool"]
        text = "\n".join(f'prefix_rule(["{name}"], sandbox="off")' for name in named)
        given = {"HOME": str(self.own), **(env or {})}
        if path is not None:
            given["PATH"] = path
        situation = Situation(
            cwd=cwd or str(self.own),
            writable_roots=(str(self.work),),
            lookup=Lookup(given, local),
            escalates=escalates,
        )
        return decide((shell, flag, script), parse_rules(text, "t.rules"), situation)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    # Never a directory that others share, which has the sticky bit.
    for directory in (tmp_path, *tmp_path.parents):
        status = directory.stat()
        if status.st_mode & stat.S_ISVTX or status.st_uid != os.geteuid():
            break
        directory.chmod(status.st_mode & ~0o022)
    return Place(tmp_path)


def own(place: Place) -> str:
    return f"{place.own}/bin"


def test_a_program_that_commands_cannot_write_leaves(place: Place) -> None:
    found = place.verdict("tool", f"{own(place)}:{SYSTEM}")
    assert (found.sandbox, found.withheld) == (Sandbox.OFF, None)
    found = place.verdict("tool", f"{SYSTEM}:{own(place)}:{place.work}/bin")
    assert found.sandbox is Sandbox.OFF
    assert place.verdict("true", SYSTEM, rules="true").sandbox is Sandbox.OFF
    full = f"{own(place)}/tool"
    assert place.verdict(full, SYSTEM, rules=full).sandbox is Sandbox.OFF


def test_an_earlier_directory_that_commands_can_write_keeps_the_sandbox(place: Place) -> None:
    (place.own / "way").symlink_to(place.work / "bin")
    firsts = [
        f"{place.work}/bin", f"{place.work}/missing", f"{place.own}/way", "", ".", "bin",
        f"{place.own}/../work/bin",
    ]  # fmt: skip
    for first in firsts:
        found = place.verdict("tool", f"{first}:{own(place)}")
        assert found.sandbox is Sandbox.KEEP, first
        assert found.withheld is not None
        assert found.action is Action.ALLOW
        asked = place.verdict("tool", f"{first}:{own(place)}", escalates=True)
        assert (asked.action, asked.reason) == (Action.ASK, found.withheld)
    assert place.verdict("tool", "").sandbox is Sandbox.KEEP


def test_every_link_on_the_way_to_the_program_counts(place: Place) -> None:
    place.program(place.work / "bin" / "mine")
    (place.own / "bin" / "direct").symlink_to(place.work / "bin" / "mine")
    # The target is the user's own, but the link between is a command's.
    (place.work / "hop").symlink_to(place.own / "bin")
    (place.own / "bin" / "hopping").symlink_to(place.work / "hop" / "tool")
    (place.own / "bin" / "fine").symlink_to("tool")
    for name, sandbox in (
        ("direct", Sandbox.KEEP), ("hopping", Sandbox.KEEP), ("fine", Sandbox.OFF),
    ):  # fmt: skip
        assert place.verdict(name, own(place), rules=name).sandbox is sandbox, name


def test_what_other_users_can_write_is_not_trusted(place: Place) -> None:
    (place.own / "bin").chmod(0o777)
    assert place.verdict("tool", own(place)).sandbox is Sandbox.KEEP
    (place.own / "bin").chmod(0o1777)
    assert place.verdict("tool", own(place)).sandbox is Sandbox.KEEP
    (place.own / "bin").chmod(0o755)
    (place.own / "bin" / "tool").chmod(0o757)
    assert place.verdict("tool", own(place)).sandbox is Sandbox.KEEP


@pytest.mark.parametrize(
    ("script", "rules"),
    [
        ("no-such-program", "no-such-program"),
        ("bin/tool", "bin/tool"),
        ("./bin/tool", "./bin/tool"),
        ("env PATH=/x tool", "env"),
        ("env no-such-program", "env"),
        ("export PATH=x; tool", "export tool"),
        ("alias tool=other; tool", "alias tool"),
        ("cd /; make", "cd make"),
        ("timeout 5 make -C ../work", "timeout"),
    ],
)
def test_a_name_that_may_mean_another_program_keeps_the_sandbox(
    place: Place, script: str, rules: str
) -> None:
    path = f"{own(place)}:{SYSTEM}"
    place.program(place.own / "bin" / "make")
    assert place.verdict(script, path, rules=rules).sandbox is Sandbox.KEEP


def test_a_command_behind_a_wrapper_is_looked_up_too(place: Place) -> None:
    path = f"{own(place)}:{SYSTEM}"
    assert place.verdict("timeout 5 tool", path, rules="timeout").sandbox is Sandbox.OFF
    mixed = f"{SYSTEM}:{place.work}/bin:{own(place)}"
    assert place.verdict("timeout 5 tool", mixed, rules="timeout").sandbox is Sandbox.KEEP


@pytest.mark.parametrize("name", ["git", "make", "npm", "cargo", "pip3", "pytest", "python3.11"])
def test_a_program_that_runs_what_it_finds_is_asked_where_commands_write(
    place: Place, name: str
) -> None:
    path = own(place)
    place.program(place.own / "bin" / name)
    (place.own / "link").symlink_to(place.work)
    verdict = place.verdict
    verb = "status" if name == "git" else "y"  # another one may be an alias
    assert verdict(f"{name} {verb}", path, rules=name).sandbox is Sandbox.OFF
    for script, cwd, env in (
        (f"{name} y", str(place.work), {}),
        (f"{name} y", f"{place.own}/link", {}),
        (f"{name} -C {place.work}", None, {}),
        (f"{name} -C../work/n x", None, {}),
        (f"{name} --directory={place.work} x", None, {}),
        (f"{name} link/x", None, {}),
        (f"{name} y", None, {"HOME": str(place.work)}),
        (f"{name} y", None, {"XDG_CONFIG_HOME": f"{place.work}/c"}),
    ):
        found = verdict(script, path, rules=name, cwd=cwd, env=env)
        assert found.sandbox is Sandbox.KEEP, (script, cwd, env)


def test_variables_that_bring_code_along_keep_the_sandbox(place: Place) -> None:
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "BASH_ENV", "PYTHONPATH", "GIT_DIR"):
        for value in (f"{place.work}/x", f"/usr/lib:{place.work}", "relative"):
            found = place.verdict("tool", own(place), env={name: value})
            assert found.sandbox is Sandbox.KEEP, (name, value)
        assert place.verdict("tool", own(place), env={name: "/usr/lib"}).sandbox is Sandbox.OFF


def test_a_login_shell_reads_the_home_directory(place: Place) -> None:
    assert place.verdict("tool", own(place), flag="-lc").sandbox is Sandbox.OFF
    found = place.verdict("tool", own(place), flag="-lc", env={"HOME": str(place.work)})
    assert found.sandbox is Sandbox.KEEP


def test_the_shell_itself_is_looked_up_unless_it_is_the_one_of_the_settings(place: Place) -> None:
    path = f"{place.work}/bin:{own(place)}:{SYSTEM}"
    full = f"{own(place)}/tool"
    assert place.verdict(full, path, rules=full).sandbox is Sandbox.OFF
    assert place.verdict(full, path, rules=full, shell="sh").sandbox is Sandbox.KEEP
    assert place.verdict(full, SYSTEM, rules=full, shell="sh").sandbox is Sandbox.OFF
    assert place.verdict(full, SYSTEM, rules=full, shell="/bin/sh").sandbox is Sandbox.OFF
    place.program(place.own / "bin" / "zsh")
    for home, sandbox in ((place.own, Sandbox.OFF), (place.work, Sandbox.KEEP)):
        env = {"HOME": str(home)}
        found = place.verdict(full, own(place), rules=full, shell="zsh", env=env)
        assert found.sandbox is sandbox


def test_on_another_machine_only_directories_of_the_system_are_believed(place: Place) -> None:
    assert place.verdict("tool", SYSTEM, local=False).sandbox is Sandbox.OFF
    assert place.verdict("tool", own(place), local=False).sandbox is Sandbox.KEEP
    assert place.verdict("tool", local=False).sandbox is Sandbox.KEEP


def test_a_hard_link_elsewhere_keeps_the_sandbox(place: Place) -> None:
    tool = place.own / "bin" / "tool"
    os.link(tool, place.own / "bin" / "same")
    assert place.verdict("tool", own(place)).sandbox is Sandbox.OFF
    os.link(tool, place.work / "tool")
    found = place.verdict("tool", own(place))
    assert found.sandbox is Sandbox.KEEP
    assert "hard link" in str(found.withheld)


@pytest.mark.parametrize(
    ("line", "sandbox"),
    [
        ("#!/bin/sh -e", Sandbox.OFF),
        ("#! /usr/bin/env python3", Sandbox.OFF),
        ("#!{own}/bin/interpreter", Sandbox.OFF),
        ("#!{work}/bin/interpreter", Sandbox.KEEP),
        ("#!{own}/bin/linked", Sandbox.KEEP),
        ("#!{own}/bin/script", Sandbox.KEEP),
        ("#!bin/interpreter", Sandbox.KEEP),
        ("#!", Sandbox.KEEP),
    ],
)
def test_the_interpreter_of_a_script_is_looked_up_too(
    place: Place, line: str, sandbox: Sandbox
) -> None:
    for directory in (place.work, place.own):
        place.program(directory / "bin" / "interpreter")
    (place.own / "bin" / "linked").symlink_to(place.work / "bin" / "interpreter")
    (place.own / "bin" / "script").write_text(f"#!{place.work}/bin/interpreter\n")
    tool = place.own / "bin" / "tool"
    tool.write_text(line.format(own=place.own, work=place.work) + "\n")
    assert place.verdict("tool", own(place)).sandbox is sandbox


def test_directories_that_are_named_one_after_the_other_are_followed(place: Place) -> None:
    place.program(place.own / "bin" / "git")
    (place.own / "deep").mkdir()
    path = own(place)
    for script, sandbox in (
        ("git -C deep -C .. status", Sandbox.OFF),
        ("git -C deep -C ../../work status", Sandbox.KEEP),
        ("git -C .. -C work status", Sandbox.KEEP),
        ("git -C .. --git-dir=work/.git status", Sandbox.KEEP),
    ):
        assert place.verdict(script, path, rules="git").sandbox is sandbox, script


@pytest.mark.parametrize(
    ("script", "sandbox"),
    [
        ("git fetch origin", Sandbox.OFF),
        ("git fetch --upload-pack='touch x' .", Sandbox.KEEP),
        ("git -c core.fsmonitor='touch x' status", Sandbox.KEEP),
        ("rsync -a x y", Sandbox.OFF),
        ("rsync -e 'touch x' a b", Sandbox.KEEP),
        ("find /usr -exec touch x ';'", Sandbox.KEEP),
    ],
)
def test_a_word_that_names_another_program_keeps_the_sandbox(
    place: Place, script: str, sandbox: Sandbox
) -> None:
    for name in ("git", "rsync"):
        place.program(place.own / "bin" / name)
    path = f"{own(place)}:{SYSTEM}"
    assert place.verdict(script, path, rules=script.split(maxsplit=1)[0]).sandbox is sandbox


def test_commands_in_variables_are_looked_at(place: Place) -> None:
    for name, value, sandbox in (
        ("PAGER", "less -R", Sandbox.OFF),
        ("GIT_SSH_COMMAND", "ssh -i /usr/x", Sandbox.OFF),
        ("GIT_SSH_COMMAND", f"{place.work}/ssh -v", Sandbox.KEEP),
        ("NODE_OPTIONS", f"--require={place.work}/x.js", Sandbox.KEEP),
        ("LESSOPEN", f"|{place.work}/x %s", Sandbox.KEEP),
    ):
        found = place.verdict("tool", own(place), env={name: value})
        assert found.sandbox is sandbox, (name, value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_second_mount_where_commands_write_keeps_the_sandbox(place: Place) -> None:
    alias = place.work / "second mount"
    alias.mkdir()
    assert place.verdict("tool", own(place)).sandbox is Sandbox.OFF
    subprocess.run(["mount", "--bind", place.own / "bin", alias], check=True)
    try:
        assert place.verdict("tool", own(place)).sandbox is Sandbox.KEEP
    finally:
        subprocess.run(["umount", alias], check=True)


@pytest.mark.parametrize(
    ("name", "plain", "writing"),
    [
        ("git", "log --oneline", ("log --output=f", "diff --output f", "log --out f")),
        (
            "git",
            "log -p",
            ("log --ext-diff", "grep -O x", "show --textconv"),
        ),
        ("sort", "-n f", ("-o f f", "-of f", "--output=f f", "--out=f f")),
        ("curl", "-s u", ("-o f u", "-O u", "-c f u", "--dump-header f u")),
        ("find", ". -name x", (". -fprint f", ". -fprintf f %p", ". -delete")),
    ],
)
def test_a_rule_about_a_program_that_reads_lets_it_write_nothing(
    place: Place, name: str, plain: str, writing: tuple[str, ...]
) -> None:
    path = own(place)
    place.program(place.own / "bin" / name)
    assert place.verdict(f"{name} {plain}", path, rules=name).sandbox is Sandbox.OFF
    for words in writing:
        found = place.verdict(f"{name} {words}", path, rules=name)
        assert found.sandbox is Sandbox.KEEP, words
        assert found.withheld, words


def test_an_option_that_the_rule_names_is_meant(place: Place) -> None:
    place.program(place.own / "bin" / "sort")
    situation = Situation(
        cwd=str(place.own),
        writable_roots=(str(place.work),),
        lookup=Lookup({"HOME": str(place.own), "PATH": own(place)}, True),
    )
    rules = parse_rules('prefix_rule(["sort", "-o"], sandbox="off")', "t.rules")
    argv = ("/bin/bash", "-c", "sort -o f f")
    assert decide(argv, rules, situation).sandbox is Sandbox.OFF
