"""The sentence about a refusal: its causes, how sure it is, and when there is none."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace

import pytest

from handrail.sandbox import profile
from handrail.sandbox.denial import Denial, Host
from handrail.sandbox.explain_refusal import (
    COMMAND_LINE,
    MODEL,
    MODEL_ALONE,
    PYTHON,
    Rules,
    Words,
    explain,
)

WORK = "/home/me/work"
NET = Denial("network", "connect", "10.0.0.1:53", "notify", certain=True)


def rules(intent: profile.Intent | None = None) -> Rules:
    made = Rules.of(intent or profile.workspace_write((WORK.encode(),)), WORK.encode())
    assert made is not None
    return made


def said(output: str, *denials: Denial, intent: profile.Intent | None = None, code: int = 1) -> str:
    return explain(rules(intent), code, output, denials, COMMAND_LINE) or ""


@pytest.mark.parametrize(
    ("output", "what", "allow"),
    [
        (
            f"fatal: Unable to create '{WORK}/.git/index.lock': Read-only file system",
            ".git",
            ".git",
        ),
        (f"fatal: cannot copy '/a' to '{WORK}/.git/x': Permission denied", ".git", ".git"),
        ("sh: 1: cannot create .git/x: Read-only file system", ".git", ".git"),
        (f"{WORK}/sub/.git: Read-only file system", "sub/.git", "sub/.git"),
        ("touch: cannot touch '/etc/x': Read-only file system", "/etc/x", "/etc"),
        ("touch: cannot touch ‘/etc/x’: Read-only file system", "/etc/x", "/etc"),
        ("OSError: [Errno 30] Read-only file system: '/opt/a/b'", "/opt/a/b", "/opt/a"),
        ("Error: EROFS: read-only file system, open '/opt/b'", "/opt/b", "/opt"),
        ("bash: line 1: /opt/b: Permission denied", "/opt/b", "/opt"),
        ("mkdir: cannot create directory ‘.codex’: File exists", ".codex", ".codex"),
    ],
)
def test_path_that_the_output_blames(output: str, what: str, allow: str) -> None:
    text = said(output + "\n")
    assert text.startswith("probably refused by the sandbox: ")
    assert f"writing {what} (" in text
    assert text.endswith(f"to allow it use --writable {allow}")


@pytest.mark.parametrize(
    "output",
    [
        "curl: (6) Could not resolve host: example.org",
        "npm error code EAI_AGAIN",
        "[Errno -3] Temporary failure in name resolution",
        "connect: Network is unreachable",
    ],
)
def test_network_by_the_output(output: str) -> None:
    text = said(output)
    assert text.startswith("probably refused")
    assert text.endswith("--network")
    assert said(output, intent=profile.workspace_write((WORK.encode(),), network=True)) == ""


@pytest.mark.parametrize(
    ("words", "allow"),
    [
        (COMMAND_LINE, "use --allow-host h.example:443"),
        (PYTHON, "Managed(allow=['h.example:443'])"),
    ],
)
def test_unlisted_host_of_a_managed_network_is_to_be_listed(words: Words, allow: str) -> None:
    managed = replace(rules(), managed=True)
    host = Host("h.example", 443, reason="not_allowed")
    refused = Denial("network", "connect", "h.example:443", "proxy", certain=True, host=host)
    text = explain(managed, 56, "Could not resolve host: h.example", [refused], words) or ""
    assert text.endswith(allow)
    assert "no network" not in text


@pytest.mark.parametrize("words", [MODEL, MODEL_ALONE, COMMAND_LINE])
@pytest.mark.parametrize("reason", ["not_allowed", "denied", "not_allowed_local"])
def test_managed_network_that_listing_does_not_open(words: Words, reason: str) -> None:
    managed = replace(rules(), managed=True)
    host = Host("h.example", 443, reason=reason)
    refused = Denial("network", "connect", "h.example:443", "proxy", certain=True, host=host)
    text = explain(managed, 6, "Could not resolve host: h.example", [refused], words)
    assert (text is None) is (words is not COMMAND_LINE or reason != "not_allowed")


def test_record_of_the_supervisor_is_certain() -> None:
    text = said("npm error code EAI_AGAIN", NET)
    assert text.startswith("refused by the sandbox: connecting to 10.0.0.1:53 (")
    assert text.endswith("--network")
    written = Denial("file", "openat", "/etc/x", "notify", certain=True)
    assert said("", written).startswith("refused by the sandbox: writing /etc/x (")


def test_all_that_is_to_be_allowed_is_in_one_sentence() -> None:
    text = said("npm warn EROFS: read-only file system, mkdir '/home/me/.npm/x'", NET)
    assert text.startswith("probably refused")
    assert text.endswith("--network --writable /home/me/.npm")
    assert "\n" not in text


@pytest.mark.parametrize(
    "output",
    [
        "",
        "FAILED tests/test_x.py::test_mode - assert 1 == 2",
        "FAILED test_x: Permission denied",
        "E       PermissionError: [Errno 13] Permission denied",
        "AssertionError: the sandbox was to say 'Permission denied'",
        "sh: 1: ./script: Permission denied",
        f"cat: {WORK}/closed: Permission denied",
        "cat: /tmp/other: Permission denied",
        "mkdir: cannot create directory 'a': File exists",
        "make: *** [Makefile:2: all] Error 1",
    ],
)
def test_ordinary_failure_gets_no_sentence(output: str) -> None:
    assert said(output) == ""


def test_folder_of_a_workspace_below_tmp_is_not_its_own_tmp() -> None:
    """The /tmp of a command is writable; the folders above a workspace there are read-only."""
    work = b"/tmp/tests/work"
    made = Rules.of(profile.workspace_write((work,)), work)
    refused = explain(made, 1, "touch: cannot touch '../x': Read-only file system", ())
    assert refused is not None
    assert "writing /tmp/tests/x (it is outside of what may be written)" in refused
    certain = Denial("file", "openat", "/tmp/tests/x", "notify", certain=True)
    assert explain(made, 1, "", (certain,)) == refused.removeprefix("probably ")
    assert explain(made, 1, "touch: cannot touch '../x': Permission denied", ()) is None


def test_success_and_no_sandbox_get_none() -> None:
    output = "touch: cannot touch '/etc/x': Read-only file system"
    assert said(output, NET, code=0) == ""
    assert explain(None, 1, output, [NET]) is None
    assert Rules.of(profile.off(), b"/") is None


def test_what_fails_without_a_sandbox_too_is_ordinary() -> None:
    output = "touch: cannot touch '/etc/x': Permission denied"
    assert explain(rules(), 1, output, could=lambda _: False) is None
    assert explain(rules(), 1, output, could=lambda _: True) is not None


def test_unknown_cause_is_said_to_be_unknown() -> None:
    text = said("mytool: setting it up: Operation not permitted")
    assert "is not known" in text
    assert text.endswith("--json --watch-denials")
    assert "SIGSYS" in said("", code=159)


def test_unix_socket_of_the_machine() -> None:
    output = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?"
    assert "connecting to /var/run/docker.sock (" in said(output)
    assert said(output).endswith("--sandbox off")
    gone = explain(rules(), 1, output, words=COMMAND_LINE, could=lambda _: False)
    assert gone is not None
    assert "is not known" in gone
    seen = Denial("network", "connect", "/run/docker.sock", "notify", certain=True)
    assert said(output, seen).startswith("refused by the sandbox: connecting to")
    # Programs look users up by sockets all the time: a record alone explains no failure.
    assert said("it failed", seen) == ""


def test_read_only_and_denied_paths() -> None:
    intent = profile.read_only()
    text = said("touch: cannot touch 'x': Read-only file system", intent=intent)
    assert "(the sandbox is read-only)" in text
    assert text.endswith("--writable .")
    hidden = profile.workspace_write((WORK.encode(),))
    hidden = hidden._replace(entries=(*hidden.entries, profile.denied("secret", WORK)))
    assert "reading secret/a (the profile denies it)" in said(
        "cat: secret/a: Permission denied", intent=hidden
    )


@pytest.mark.parametrize(
    ("pattern", "output", "what"),
    [
        ("*.env", "cat: a.env: Permission denied", "a.env"),
        ("*.env", "bash: line 1: a.env: Read-only file system", "a.env"),
        ("**/keys", "cat: d/keys/id: Permission denied", "d/keys/id"),
        ("/srv/*.key", "ls: cannot open '/srv/é.key': Permission denied", "/srv/é.key"),
    ],
)
def test_what_a_pattern_denies(pattern: str, output: str, what: str) -> None:
    intent = profile.workspace_write((WORK.encode(),))
    intent = intent._replace(entries=(*intent.entries, profile.denied(pattern, WORK)))
    text = said(output, intent=intent)
    assert f"reading {what} (the profile denies {pattern})" in text
    assert text.endswith(f"to allow it use a profile that does not deny {what}")
    assert said("cat: other: Permission denied", intent=intent) == said(
        "cat: other: Permission denied"
    )


def test_a_path_that_is_open_in_what_a_pattern_denies() -> None:
    intent = profile.workspace_write(
        (WORK.encode(),), writable_roots=(f"{WORK}/keys/mine".encode(),)
    )
    intent = intent._replace(entries=(*intent.entries, profile.denied("k*", WORK)))
    assert said("cat: keys/mine/a: Permission denied", intent=intent) == ""
    assert "keys/other" in said("cat: keys/other: Permission denied", intent=intent)


@pytest.mark.parametrize("name", ["f", f"{WORK}/f"])
def test_what_the_owner_of_a_file_may_not_do_is_not_ordinary(name: str) -> None:
    """A set-user-id bit, for example."""
    assert "is not known" in said(
        f"chmod: changing permissions of '{name}': Operation not permitted"
    )


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("mv: cannot move '.git' to 'g': Device or resource busy", "writing .git (.git is prot"),
        ("rm: cannot remove 'a.env': Device or resource busy", "reading a.env (the profile"),
        ("mv: cannot move 'sub' to 's': Device or resource busy", "moving or removing sub (some"),
        ("OSError: [Errno 16] Device or resource busy: 'sub' -> 's'", "moving or removing sub ("),
        ("rm: cannot remove '/mnt/disk': Device or resource busy", ""),
    ],
)
def test_what_is_mounted_on_is_busy(output: str, what: str) -> None:
    intent = profile.workspace_write((WORK.encode(),))
    intent = intent._replace(entries=(*intent.entries, profile.denied("*.env", WORK)))
    text = said(output, intent=intent)
    assert what in text
    assert bool(text) is bool(what)


@pytest.mark.parametrize(
    "line", ["cat: {}: No such file or directory", "[Errno 2] No such file or directory: '{}'"]
)
def test_a_file_in_the_tmp_of_the_machine(line: str) -> None:
    intent = profile.workspace_write((WORK.encode(),))
    with tempfile.NamedTemporaryFile(dir="/tmp") as there:
        output = line.format(there.name)
        found = explain(rules(intent), 1, output, words=COMMAND_LINE, could=lambda _: True)
        assert found == (
            f"probably refused by the sandbox: reaching {there.name} (commands have a /tmp of their"
            f" own); to allow it use --writable {there.name}"
        )
        # Another machine may not have it.
        assert explain(rules(intent), 1, output) is None
        assert explain(rules(profile.read_only()), 1, output, could=lambda _: True) is None
        elsewhere = line.format(f"/home/me{there.name}")
        assert explain(rules(intent), 1, elsewhere, could=lambda _: True) is None
    assert explain(rules(intent), 1, output, could=lambda _: True) is None


def test_a_directory_in_the_tmp_of_the_machine() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as there:
        work = f"{there}/project/work"
        os.makedirs(work)
        os.makedirs(f"{there}/other")
        made = Rules.of(profile.workspace_write((work.encode(),)), work.encode())

        def told(path: str) -> str:
            line = f"touch: cannot touch '{path}': No such file or directory"
            return explain(made, 1, line, words=COMMAND_LINE, could=lambda _: True) or ""

        assert told(f"{there}/other/new").endswith(f"--writable {there}/other")
        assert told(f"{there}/other").endswith(f"--writable {there}/other")
        # Nothing of these is hidden.
        for path in (f"{work}/a/new", f"{there}/project/a", f"{there}/new", "/tmp/new-one/x"):
            assert told(path) == "", path


def test_words_of_each_surface() -> None:
    output = f"fatal: Unable to create '{WORK}/.git/index.lock': Read-only file system"
    python = explain(rules(), 128, output, words=PYTHON) or ""
    assert python.endswith("sandbox=Profile(write=('.', '.git'))")
    assert "require_escalated" in (explain(rules(), 128, output, words=MODEL) or "")
    alone = explain(rules(), 128, output, words=MODEL_ALONE) or ""
    assert alone.endswith("; only the user can allow it")


def test_named_path_in_a_protected_one_is_ordinary() -> None:
    intent = profile.workspace_write((WORK.encode(),), writable_roots=(f"{WORK}/.git".encode(),))
    output = f"fatal: Unable to create '{WORK}/.git/index.lock': Permission denied"
    assert said(output, intent=intent) == ""
