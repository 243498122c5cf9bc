"""One contained command in the foreground, for ``handrail run`` and ``handrail sandbox``."""

from __future__ import annotations

import os

from handrail.cli.stderr import complain
from handrail.errors import SandboxUnavailable
from handrail.process.foreground.run import Foreground, is_plain, own_terminal
from handrail.sandbox import temp_dirs
from handrail.sandbox.profile import Access
from handrail.sandbox.tries import Tries

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Sequence

    from handrail.process.foreground.crash_guard import CrashGuard
    from handrail.process.foreground.stream_copies import StreamCopies
    from handrail.sandbox.bwrap.command import Wrapped
    from handrail.sandbox.profile import Profile
    from handrail.sandbox.sandbox import Sandbox
    from handrail.sandbox.temp_dirs import TempDir
else:
    import _signal

#: As ``cli/stdio.py`` says it.
_OWN_FAILURE = 125


def run(
    sandbox: Sandbox,
    profile: Profile,
    argv: tuple[bytes, ...],
    cwd: bytes,
    env: dict[bytes, bytes],
    *,
    timeout: float | None = None,
    own: TempDir | None = None,
) -> int:
    """Run it to its end; its exit code, as ``Foreground.attend`` has it.

    ``own`` is taken away afterwards, whatever happens to us.  Raises SandboxError, and then
    nothing was run.
    """
    terminal = own_terminal()
    foreground = Foreground(terminal)
    tty = terminal is not None

    def may_write(path: bytes) -> bool:
        plan = sandbox.plan(profile)
        # A file of the host's /tmp is not the one that the command finds at that path.
        return plan.access(path) is Access.WRITE and plan.shown.host_path(path) == path

    tries = Tries()
    while True:
        copies = copies_of(foreground.own_streams, may_write)
        held = sandbox.contain_command(argv, cwd, env, profile, tty=tty, tries=tries)
        try:
            foreground.start_held(held.argv, held.env, held.passed, held.inside, copies)
        except OSError as error:
            raise SandboxUnavailable(
                f"bubblewrap does not start ({error.strerror}); run `handrail doctor`"
            ) from error
        guard = _guard(foreground, held, own, copies)
        try:
            if held.inside.stands():
                code = foreground.attend(timeout)
                return exit_code(code, copies)
        finally:
            guard.dismiss()
        # Something that was to be covered has vanished: the command was not run.
        foreground.give_up()
        os.chdir(cwd)
        tries.failed(SandboxUnavailable("the sandbox could not be set up; start the command again"))


def private_tmp() -> TempDir:
    """What is the /tmp of one command; raises SandboxUnavailable."""
    try:
        return temp_dirs.TempDir()
    except OSError as error:
        raise SandboxUnavailable(
            f"no directory for temporary files can be made ({error.strerror}); set TMPDIR"
        ) from error


def copies_of(numbers: Sequence[int], may_write: Callable[[bytes], bool]) -> StreamCopies | None:
    """Our streams that the command gets as pipes; raises SandboxUnavailable for one it cannot."""
    if all(map(is_plain, numbers)):
        return None
    from handrail.process.foreground.stream_copies import NoStream, StreamCopies

    try:
        return StreamCopies(numbers, may_write) or None
    except NoStream as problem:
        raise SandboxUnavailable(str(problem)) from None


def exit_code(code: int, copies: StreamCopies | None) -> int:
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
    return _OWN_FAILURE


def _guard(
    foreground: Foreground, held: Wrapped, own: TempDir | None, copies: StreamCopies | None
) -> CrashGuard:
    from handrail.process.foreground.crash_guard import CrashGuard  # when the command runs already

    pidfd = os.pidfd_open(foreground.pid)

    def clear_up() -> None:
        # bwrap asks to be told of our end, but perhaps it had not come to that yet.
        try:
            _signal.pidfd_send_signal(pidfd, _signal.SIGKILL)
        except ProcessLookupError:
            pass
        held.inside.wait()
        if own is not None:
            own.remove()

    pipes = () if copies is None else copies.descriptors
    guard = CrashGuard(clear_up, temp_dirs.sweep, foreground.terminal, pipes)
    foreground.stranger = guard.pid
    os.close(pidfd)
    return guard
