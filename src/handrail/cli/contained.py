"""One contained command in the foreground, for ``handrail run`` and ``handrail sandbox``."""

from __future__ import annotations

import os

from handrail.errors import SandboxUnavailable
from handrail.process.foreground import Foreground, own_terminal
from handrail.sandbox import temporary

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal

    from handrail.process.guard import Guard
    from handrail.sandbox.profile import Profile
    from handrail.sandbox.select import Sandbox
    from handrail.sandbox.temporary import Temporary
    from handrail.sandbox.wrap import Wrapped
else:
    import _signal

#: How often a sandbox is set up while the file system moves under it.
_MOST_TRIES = 8


def run(
    sandbox: Sandbox,
    profile: Profile,
    argv: tuple[bytes, ...],
    cwd: bytes,
    env: dict[bytes, bytes],
    *,
    timeout: float | None = None,
    own: Temporary | None = None,
) -> int:
    """Run it to its end; its exit code, as ``Foreground.attend`` has it.

    ``own`` is taken away afterwards, whatever happens to us.  Raises SandboxError, and then
    nothing was run.
    """
    terminal = own_terminal()
    foreground = Foreground(terminal)
    tty = terminal is not None
    for tries in range(_MOST_TRIES):
        held = sandbox.contain_command(argv, cwd, env, profile, tty=tty, again=tries > 0)
        try:
            foreground.start_held(held.argv, held.env, held.passed, held.inside)
        except OSError as error:
            raise SandboxUnavailable(
                f"bubblewrap does not start ({error.strerror}); run `handrail doctor`"
            ) from error
        guard = _guard(foreground, held, own)
        try:
            if held.inside.stands():
                return foreground.attend(timeout)
        finally:
            guard.dismiss()
        # Something that was to be covered has vanished: the command was not run.
        foreground.give_up()
        os.chdir(cwd)
    raise SandboxUnavailable("the sandbox could not be set up; start the command again")


def private_tmp() -> Temporary:
    """What is the /tmp of one command; raises SandboxUnavailable."""
    try:
        return temporary.Temporary()
    except OSError as error:
        raise SandboxUnavailable(
            f"no directory for temporary files can be made ({error.strerror}); set TMPDIR"
        ) from error


def _guard(foreground: Foreground, held: Wrapped, own: Temporary | None) -> Guard:
    from handrail.process.guard import Guard  # when the command runs already

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

    guard = Guard(clear_up, temporary.sweep, foreground.terminal)
    foreground.stranger = guard.pid
    os.close(pidfd)
    return guard
