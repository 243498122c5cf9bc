"""``handrail sandbox``: one command, contained, with nothing of ours left behind.

No argparse, no event loop, no server: what is imported here is what people wait for.  We stay as
the parent, forward signals to the command and clear away what covered missing names; should we be
killed ourselves, a second process that only waits for that does it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from handrail.sandbox.inside import Inside
    from handrail.sandbox.profile import Intent
    from handrail.sandbox.wrap import Wrapped

#: The sandbox's own failures, apart from the command's: as timeout, env and their like have it.
FAILED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
#: How often a sandbox is set up that met a moving file system.
_MOST_TRIES = 4

USAGE = """\
usage: handrail sandbox [OPTIONS] [--] COMMAND [ARGUMENT...]

Run one command with no more than a profile allows; its exit code is passed on.

options:
  --profile P        workspace-write (default), read-only, danger-full-access, or permissions as
                     JSON ('{"type": "managed", ...}'), or @FILE with such JSON
  --root DIR         a project root, may be given again (default: the current directory)
  --writable DIR     one more directory that may be written, may be given again
  --network          leave the network open
  -C, --cwd DIR      where the command starts (default: the current directory)
  -h, --help         show this
"""


class Usage(Exception):
    """What was typed makes no sense."""


class Options:
    """What was typed."""

    def __init__(self, words: list[str]) -> None:
        self.profile = "workspace-write"
        self.roots: list[str] = []
        self.writable: list[str] = []
        self.network = False
        self.cwd = ""
        self.command: list[str] = []
        rest = list(words)
        while rest and rest[0].startswith("-"):
            word = rest.pop(0)
            if word == "--":
                break
            if word == "--network":
                self.network = True
                continue
            name, equals, value = word.partition("=")
            if name not in ("--profile", "--root", "--writable", "--cwd", "-C"):
                raise Usage(f"there is no option {word}")
            if not equals:
                if not rest:
                    raise Usage(f"{name} needs a value")
                value = rest.pop(0)
            self._set(name, value)
        self.command = rest
        if not rest:
            raise Usage("a command is missing")

    def _set(self, name: str, value: str) -> None:
        if name == "--profile":
            self.profile = value
        elif name == "--root":
            self.roots.append(os.path.abspath(value))
        elif name == "--writable":
            self.writable.append(os.path.abspath(value))
        else:
            self.cwd = value


def main(words: list[str]) -> int:
    """Run the command; its exit code, or one of ours."""
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    try:
        options = Options(words)
        cwd = os.path.abspath(options.cwd) if options.cwd else os.getcwd()
    except Usage as error:
        print(f"handrail sandbox: {error}; see handrail sandbox --help", file=sys.stderr)
        return 2
    except FileNotFoundError:  # nothing can be relative to it
        why = (
            "the current directory is gone; change to another, or give --cwd with an absolute path"
        )
        print(f"handrail sandbox: {why}", file=sys.stderr)
        return FAILED
    from handrail.errors import HandrailError

    try:
        code = _run(options, cwd)
        # Nothing is left to be done, and taking an interpreter down takes a while.
        sys.stdout.flush()
        os._exit(code)
    except HandrailError as error:
        print(f"handrail sandbox: {error}", file=sys.stderr)
        return FAILED


def _run(options: Options, cwd: str) -> int:
    from handrail.errors import SandboxUnavailable
    from handrail.sandbox.select import Sandbox

    if not os.path.isdir(cwd):
        print(f"handrail sandbox: {cwd} is no directory; give another --cwd", file=sys.stderr)
        return FAILED
    program = options.command[0]
    code = _lookup(program, cwd)
    if code:
        why = "cannot be run" if code == NOT_EXECUTABLE else "was not found"
        print(f"handrail sandbox: {program} {why}", file=sys.stderr)
        return code
    sandbox = Sandbox()
    profile = sandbox.resolve(_intent(options, cwd), os.fsencode(cwd))
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2:
            try:
                os.set_inheritable(fd, False)  # whatever we were given is not for the command
            except OSError:
                pass  # the one that was reading the list
    if not profile.confined:
        os.chdir(cwd)
        os.execvpe(program, options.command, os.environ)
    words = tuple(map(os.fsencode, options.command))
    where, env = os.fsencode(cwd), dict(os.environb)
    try:
        sandbox.sweep()
    except SandboxUnavailable as why:
        from handrail.sandbox import fallback  # machines without user namespaces

        fallback.become(words, where, env, profile, why)
    for failures in range(_MOST_TRIES):
        done = _shoot(sandbox.contain_command(words, where, env, profile, failures))
        if done is not None:
            return done
    return FAILED  # bwrap has said why


def _lookup(program: str, cwd: str) -> int:
    """0, or the exit code for a program that cannot be there inside either."""
    if "/" in program:
        path = os.path.join(cwd, program)
        if not os.path.lexists(path):
            return NOT_FOUND
        return 0 if os.access(path, os.X_OK) and not os.path.isdir(path) else NOT_EXECUTABLE
    for place in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if os.access(os.path.join(cwd, place, program), os.X_OK):
            return 0
    return NOT_FOUND


def _intent(options: Options, cwd: str) -> Intent:
    from handrail.sandbox import profile

    roots = tuple(os.fsencode(root) for root in options.roots or [cwd])
    extra = tuple(
        profile.Entry(profile.Access.WRITE, path=os.fsencode(path)) for path in options.writable
    )
    if options.profile == "workspace-write":
        intent = profile.workspace_write(roots, network=options.network)
    elif options.profile == "read-only":
        intent = profile.read_only(network=options.network)
    elif options.profile == "danger-full-access":
        intent = profile.danger_full_access()
    else:
        from handrail.cli.permissions import read_permissions

        intent = read_permissions(options.profile, roots)
        if options.network:
            intent = intent._replace(network=True)
    return intent._replace(entries=intent.entries + extra, workspace_roots=roots)


# --- running it -------------------------------------------------------------------------------


def _shoot(held: Wrapped) -> int | None:
    """Start it, stay until nobody inside is left, and pass the exit code on; None: not started."""
    import select
    import signal

    inside = held.inside
    wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    waiting: list[int] = []
    forwarded = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
    for number in (*forwarded, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH):
        signal.signal(number, lambda number, _: waiting.append(number))
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
        for number in (signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, lambda number, _: waiting.append(number))
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    typing = os.isatty(0) and not _in_background()
    try:
        # In a session of its own the command is in nobody's background: it would read what the
        # user types to the shell.
        pid = _spawn(held, no_input=os.isatty(0) and not typing)
    except OSError as error:
        inside.abandon()
        print(f"handrail sandbox: cannot start bubblewrap: {error.strerror}", file=sys.stderr)
        return FAILED
    bwrap = os.pidfd_open(pid)
    inside.sent()  # before there is a second process that would hold them too
    guard = _guard(bwrap, inside)
    while not (ready := select.select([bwrap, wake], [], [], 0.005 if waiting else None)[0]) or (
        bwrap not in ready
    ):
        if wake in ready:
            os.read(wake, 512)
        _stop_and_go(inside, waiting, typing=typing)
        later = (signal.SIGTSTP, signal.SIGCONT)
        waiting[:] = [n for n in waiting if n in later or not inside.signal(n, tree=False)]
    _, status = os.waitpid(pid, 0)
    stood = inside.stood()
    inside.wait()
    signal.pidfd_send_signal(guard, signal.SIGKILL)
    os.waitid(os.P_PIDFD, guard, os.WEXITED)
    code = os.waitstatus_to_exitcode(status)
    if code > 0 and not stood:
        return None
    return code if code >= 0 else 128 - code


def _in_background() -> bool:
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False  # not the terminal of our session: nobody's jobs are controlled by it


def _stop_and_go(inside: Inside, waiting: list[int], *, typing: bool) -> None:
    """Stop the command together with us, and let it go on when we do.

    By a signal that it cannot miss: the kernel drops the terminal's own for a group without a
    shell above it.  One that has the terminal goes on in the foreground only, for the reason that
    the kernel stops others that read in the background.
    """
    import signal

    stop, go = signal.SIGTSTP, signal.SIGCONT
    if stop not in waiting and go not in waiting:
        return
    if not inside.signal(signal.SIGSTOP, tree=True):
        return  # it has not begun: look again soon
    inside.signal(signal.SIGSTOP, tree=True)  # whoever was being forked meanwhile
    if stop in waiting:
        waiting[:] = [number for number in waiting if number not in (stop, go)]
        handler = signal.signal(stop, signal.SIG_DFL)
        os.kill(os.getpid(), stop)  # here we stand until we are continued
        signal.signal(stop, handler)
    while typing and _in_background() and set(waiting) <= {go}:
        waiting.clear()
        os.kill(os.getpid(), signal.SIGTTIN)
        if go not in waiting:
            break  # nobody is there who could continue us, so we were not stopped
    waiting[:] = [number for number in waiting if number != go]
    inside.signal(go, tree=True)


def _spawn(held: Wrapped, *, no_input: bool) -> int:
    import fcntl

    actions: list[Any] = []
    if no_input:
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    copies = []
    # First out of the way of the numbers that are being given.
    top = max(number for number, _ in held.passed) + 1
    try:
        for number, fd in held.passed:
            copies.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, top))
            actions.append((os.POSIX_SPAWN_DUP2, copies[-1], number))
        os.chdir("/")
        # A session of its own: the terminal's keys reach us, and through us the command.
        return os.posix_spawn(held.argv[0], held.argv, held.env, file_actions=actions, setsid=True)
    finally:
        for fd in copies:
            os.close(fd)


def _guard(bwrap: int, inside: Any) -> int:
    """A process that clears up if we are killed; a descriptor of it."""
    import select
    import signal

    us = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid:
        os.close(us)
        return os.pidfd_open(pid)
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        signal.set_wakeup_fd(-1)
        select.select([us], [], [])
        # bwrap asks to be told of our end, but perhaps it had not come to that yet.
        signal.pidfd_send_signal(bwrap, signal.SIGKILL)
        inside.wait()
    except OSError:
        pass  # there was nothing left to end
    finally:
        os._exit(0)


def add_parser(commands: Any) -> None:
    """Describe the command for ``handrail --help``; ``main`` reads its words by itself."""
    parser = commands.add_parser(
        "sandbox", help="run one command contained", add_help=False, allow_abbrev=False
    )
    parser.add_argument("words", nargs="...")
    parser.set_defaults(run=lambda args: main(args.words))
