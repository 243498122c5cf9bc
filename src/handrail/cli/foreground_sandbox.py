"""One sandboxed command in the foreground, for ``handrail run`` and ``handrail sandbox``."""

from __future__ import annotations

import os

from handrail.cli.foreground_command import complain
from handrail.exit_codes import OWN_FAILURE, TIMED_OUT
from handrail.process.foreground.run import (
    Foreground,
    is_line,
    is_plain,
    own_terminal,
)
from handrail.sandbox import temp_dirs
from handrail.start_errors import SandboxUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from handrail.process.foreground.crash_guard import CrashGuard
    from handrail.process.foreground.stream_copies import StreamCopies
    from handrail.sandbox.choose_sandbox import Sandbox
    from handrail.sandbox.profile import Intent
    from handrail.sandbox.sandboxed_command import Command, SandboxedCommand
    from handrail.sandbox.temp_dirs import TempDir


def run(
    sandbox: Sandbox,
    intent: Intent,
    command: Command,
    *,
    timeout: float | None = None,
    own: TempDir | None = None,
    surface: str = "COMMAND_LINE",
) -> int:
    """Run it to its end; its exit code, as ``Foreground.attend`` has it.

    ``own`` is removed afterwards, also when this process is killed; ``surface`` names the words of
    ``sandbox/explain_refusal.py`` for what was refused.  Raises SandboxError, and then
    nothing was run.
    """
    terminal = own_terminal()
    foreground = Foreground(terminal)
    command = command._replace(tty=terminal is not None)
    made = sandbox.sandboxed(command, intent, guarded=True)
    if made.running is None:
        # Never in silence: it enforces less than what people expect of bubblewrap.
        complain(f"{made.reason}; sandboxed by Landlock instead")
    while True:
        copies, guard = _start(foreground, made, own)
        last = False
        try:
            if made.running is None or made.running.stands():
                code = foreground.attend(timeout)
                if code:
                    # Before its end only what was recorded says why it has not come to it.
                    tail = b"" if code == TIMED_OUT else foreground.tail
                    _explain(code, intent, command.cwd, made, tail, surface)
                last = True
                return _exit_code(code, copies)
        finally:
            guard.dismiss(last=last)
        # Something that was to be covered has vanished: the command was not run.
        foreground.give_up()
        os.chdir(command.cwd)
        assert made.again is not None  # noqa: S101 (bubblewrap's always has one)
        made = made.again(
            SandboxUnavailable("the sandbox could not be set up; start the command again")
        )


def _start(
    foreground: Foreground, made: SandboxedCommand, own: TempDir | None
) -> tuple[StreamCopies | None, CrashGuard]:
    """Start it, with copies of those of our streams that it must not have; raises SandboxError."""
    try:
        assert made.may_write is not None  # noqa: S101 (given with every sandbox)
        copies = copies_of(foreground.own_streams, made.may_write)
    except BaseException:
        made.abandon()
        raise
    if made.running is None:
        guard = _guard(foreground, made, own, copies)
        try:
            _spawn(foreground, made, copies)
        except BaseException:
            guard.dismiss()
            raise
        guard.tell(foreground.pid)
        return copies, guard
    _spawn(foreground, made, copies)
    try:
        # Made while bubblewrap is at work, which waits for it before it starts the command.
        guard = _guard(foreground, made, own, copies)
    except BaseException:
        foreground.kill()
        raise
    guard.tell(foreground.pid)
    made.running.let_start()
    # Wanted at once when the sandbox stands.
    import select  # noqa: F401

    from handrail.sandbox.syscalls import lazy_supervisor  # noqa: F401

    return copies, guard


def _spawn(foreground: Foreground, made: SandboxedCommand, copies: StreamCopies | None) -> None:
    try:
        foreground.start_sandboxed(made, copies)
    except OSError as error:
        raise SandboxUnavailable(
            f"{made.mechanism} does not start ({error.strerror}); run `handrail doctor`"
        ) from error


def copies_of(numbers: Sequence[int], may_write: Callable[[bytes], bool]) -> StreamCopies | None:
    """Our streams that the command gets as pipes; raises SandboxUnavailable for one it cannot."""
    if all(map(is_plain, numbers)) and not (2 in numbers and is_line(2)):
        return None
    from handrail.process.foreground.stream_copies import NoStream, StreamCopies

    try:
        return StreamCopies(numbers, may_write) or None
    except NoStream as problem:
        raise SandboxUnavailable(str(problem)) from None


def _explain(
    code: int,
    intent: Intent,
    cwd: bytes,
    made: SandboxedCommand,
    tail: bytes,
    surface: str,
) -> None:
    """Say what the sandbox has refused to a command that failed, if it has."""
    denials = () if made.running is None else made.running.denials
    if not (tail or denials or code == 128 + 31):  # SIGSYS
        return
    from handrail.sandbox import explain_refusal

    rules, words = explain_refusal.Rules.of(intent, cwd), getattr(explain_refusal, surface)
    said = explain_refusal.explain(
        rules, code, tail, denials, words, could=explain_refusal.user_could
    )
    if said is not None:
        complain(said)


def _exit_code(code: int, copies: StreamCopies | None) -> int:
    """The command's, or ours where a stream could not be copied to its end, which is said."""
    if copies is None or copies.failure is None:
        return code
    number, error = copies.failure
    if number == 0:
        what = f"stdin cannot be read ({error.strerror}), so the command did not get all of it"
    else:
        name = "stdout" if number == 1 else "stderr"
        what = f"{name} cannot be written ({error.strerror}), so not all of the output is there"
    complain(f"{what}; the command's exit code was {code}; make room, or use another file")
    return OWN_FAILURE


def _guard(
    foreground: Foreground,
    made: SandboxedCommand,
    own: TempDir | None,
    copies: StreamCopies | None,
) -> CrashGuard:
    from handrail.process.foreground.crash_guard import CrashGuard, end_family

    def clear_up(pid: int) -> None:
        # Also bwrap, which asks to be told of our end, but perhaps had not come to that yet.
        end_family(pid, foreground.tag)
        if made.running is not None:
            made.running.wait()
        if own is not None:
            own.remove()

    def let_go() -> None:
        made.sent()
        for fd in () if copies is None else copies.descriptors:
            os.close(fd)

    guard = CrashGuard(clear_up, temp_dirs.sweep, foreground.terminal, let_go, foreground.foreign)
    foreground.stranger = guard.pid
    return guard
