"""``handrail run`` on this machine: as little as possible before the start.

Reads the options that are usual without argparse; whatever else was asked for is left to
``handrail.cli.commands.run``.
"""

from __future__ import annotations

import os

from handrail.cli import foreground_command
from handrail.credentials import forget_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def run(words: Sequence[str]) -> int | None:
    """The exit code, or None when this is left to the slower way."""
    try:
        given, argv = foreground_command.read_options(words, ("--sandbox", "--timeout"))
        timeout = float(given["--timeout"][-1]) if "--timeout" in given else None
    except (foreground_command.Usage, ValueError):
        return None
    sandbox = given.get("--sandbox", ["workspace-write"])[-1]
    if sandbox not in ("workspace-write", "read-only", "off"):
        return None
    if timeout is not None and not 0 <= timeout < 10**9:
        return None
    forget_secrets()  # no command inherits them
    try:
        if sandbox == "off":
            return _run_free(argv, timeout)
        return _run_sandboxed(argv, sandbox, timeout)
    except foreground_command.NotRun as error:
        ours = error.code == foreground_command.FAILED
        foreground_command.complain(f"nothing was run: {error}" if ours else str(error))
        return error.code


def _run_sandboxed(argv: list[str], mode: str, timeout: float | None) -> int:
    from handrail.errors import HandrailError

    cwd = foreground_command.current_directory()
    foreground_command.check_root(mode, cwd)
    intent = foreground_command.named_intent(mode, (cwd,))
    assert intent is not None  # noqa: S101 (its name was checked)
    try:
        return foreground_command.run_sandboxed(intent, argv, cwd, timeout)
    except (HandrailError, OSError) as error:
        raise foreground_command.NotRun(str(error)) from error


def _run_free(argv: list[str], timeout: float | None) -> int:
    from handrail.process.foreground.crash_guard import CrashGuard, end_family
    from handrail.process.foreground.run import Foreground, own_terminal

    foreground = Foreground(own_terminal())
    guard = CrashGuard(lambda pid: end_family(pid, foreground.tag), terminal=foreground.terminal)
    foreground.stranger = guard.pid
    try:
        try:
            foreground.start(argv, os.environ)
        except OSError as error:
            raise foreground_command.not_started(argv[0], error) from None
        guard.tell(foreground.pid)
        return foreground.attend(timeout)
    finally:
        guard.dismiss()
