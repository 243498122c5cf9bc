"""``handrail run`` on this machine: as little as possible before the start.

Reads the options that are usual without argparse; whatever else was asked for is left to
``handrail.cli.commands.run``.
"""

from __future__ import annotations

import os

from handrail import exit_codes
from handrail.cli import foreground_command
from handrail.secret_variables import forget_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: What ``--network`` may be followed by; alone it means open.
NETWORKS = ("off", "open", "managed")


def not_a_network(word: str, rest: Sequence[str]) -> bool:
    """Whether a word behind ``--network`` is a mistaken value of it rather than the command."""
    if word.startswith("-") or word in NETWORKS:
        return False
    if rest[:1] == ["--"]:
        return True
    from shutil import which

    from handrail.cli.suggestion import nearest

    return which(word) is None and ("--" in rest or nearest(word, NETWORKS) is not None)


def run(words: Sequence[str]) -> int | None:
    """The exit code, or None when this is left to the slower way."""
    for place, value in enumerate(words[1:]):
        after = words[place] == "--network"
        if after and (value in NETWORKS or not_a_network(value, words[place + 2 :])):
            return None
    try:
        valued, flags = ("--sandbox", "--timeout", "--writable"), ("--network", "--read-only")
        given, argv = foreground_command.read_options(words, valued, flags)
        timeout = (
            foreground_command.duration(given["--timeout"][-1]) if "--timeout" in given else None
        )
    except (foreground_command.Usage, ValueError):
        return None
    if "--sandbox" in given and "--read-only" in given:
        return None
    sandbox = given.get("--sandbox", ["workspace-write"])[-1]
    sandbox = "read-only" if "--read-only" in given else sandbox
    sandbox = "off" if sandbox == "danger-full-access" else sandbox
    if sandbox not in ("workspace-write", "read-only", "off"):
        return None
    if sandbox == "off" and ("--network" in given or "--writable" in given):
        return None
    if timeout is not None and not 0 <= timeout < 10**9:
        return None
    forget_secrets()  # no command inherits them
    try:
        if sandbox == "off":
            return _run_free(argv, timeout)
        return _run_sandboxed(argv, sandbox, given, timeout)
    except foreground_command.NotRun as error:
        ours = error.code == exit_codes.OWN_FAILURE
        foreground_command.complain(f"nothing was run: {error}" if ours else str(error))
        return error.code


def _run_sandboxed(
    argv: list[str], mode: str, given: dict[str, list[str]], timeout: float | None
) -> int:
    from handrail.start_errors import HandrailError

    cwd = foreground_command.current_directory()
    foreground_command.check_root(mode, cwd)
    intent = foreground_command.named_intent(mode, (cwd,), network="--network" in given)
    assert intent is not None  # noqa: S101 (its name was checked)
    if "--writable" in given:
        intent = foreground_command.with_writable(intent, given["--writable"], cwd)
    try:
        return foreground_command.run_sandboxed(intent, argv, cwd, timeout)
    except (HandrailError, OSError) as error:
        raise foreground_command.NotRun(str(error)) from error


def _run_free(argv: list[str], timeout: float | None) -> int:
    from handrail.process.foreground.crash_guard import CrashGuard, end_family
    from handrail.process.foreground.run import Foreground, own_terminal

    foreground = Foreground(own_terminal())
    guard = CrashGuard(
        lambda pid: end_family(pid, foreground.tag),
        terminal=foreground.terminal,
        foreign=foreground.foreign,
    )
    foreground.stranger = guard.pid
    try:
        try:
            foreground.start(argv, os.environ)
        except OSError as error:
            raise foreground_command.not_started(argv[0], error) from None
        guard.tell(foreground.pid)
        return foreground.attend(timeout)
    finally:
        guard.dismiss(last=True)
