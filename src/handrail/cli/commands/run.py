"""``handrail run``: one command, near or far, as if it had been started here.

What needs neither other options nor another machine is done by ``run_fast`` before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import signal
import threading
from typing import TYPE_CHECKING

from handrail import units
from handrail.cli import error_output, options, variable_options
from handrail.cli.foreground_command import NotRun, current_directory
from handrail.cli.signals import PASSED_ON, SignalRelay
from handrail.cli.stdio import OutputFailed
from handrail.errors import UsageError

if TYPE_CHECKING:
    from handrail.process.spec import Limits
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.result import Result

#: A detached command is kept this long without a client.
DETACHED_SECONDS = 24 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Run a command in a workspace: sandboxed, with its streams and its exit code."
        " 124: it was ended by --timeout; 125: handrail failed; 126, 127: it could not be run."
    )
    add = parser.add_argument
    add(
        "--sandbox",
        choices=("workspace-write", "read-only", "off"),
        default="workspace-write",
        help="what it may touch (default: %(default)s)",
    )
    options.add_place(parser)
    add("--timeout", metavar="S", type=options.seconds, help="end it after this long")
    add("--cwd", metavar="DIR", default=".", help="the workspace it runs in (default: here)")
    add(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set a variable; NAME alone removes it",
    )
    variable_options.add_variables(parser)
    add(
        "--tty",
        action=argparse.BooleanOptionalAction,
        help="give it a terminal (default: when there is one here)",
    )
    add(
        "--limit",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="end or refuse what takes more, may be given again: cpu_seconds, memory, processes,"
        " file_size, open_files, output, address_space; sizes as 512MiB or 2G, times as 90s or 5m",
    )
    add(
        "--watch-denials",
        action="store_true",
        help="with --json: tell for certain what the sandbox refused",
    )
    add("--detach", action="store_true", help="leave it running and print its id")
    options.add_json(parser)
    add("command", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command and its words")


def run(args: argparse.Namespace) -> int:
    """Run it; the command's exit code."""
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words or not words[0]:
        args.parser.error("name a command after --")
    env = {}
    for pair in args.env:
        name, mark, value = pair.partition("=")
        if not name:
            args.parser.error("--env is NAME=VALUE")
        env[name] = value if mark else None
    if args.watch_denials and not args.json:
        args.parser.error("--watch-denials needs --json, which shows them")
    try:
        args.limits = _limits(args.limit)
        args.secrets = variable_options.secrets(args.secret)
    except UsageError as error:
        args.parser.error(str(error))
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until they are handled
    return options.to_end(_run(args, words, env))


def _limits(given: list[str]) -> Limits | None:
    """What ``--limit`` says; raises UsageError."""
    from handrail.process.spec import Limits

    found: dict[str, int] = {}
    for pair in given:
        name, _, text = pair.partition("=")
        if name not in Limits.__slots__ or not text:
            raise UsageError(
                f"--limit is NAME=VALUE, as in memory=2GiB or processes=50, not {pair!r}; the"
                f" names are {', '.join(Limits.__slots__)}"
            )
        if name == "cpu_seconds":
            found[name] = math.ceil(units.parse_duration(text))
        else:
            found[name] = units.parse_size(text)
    return Limits(**found) if found else None


async def _run(args: argparse.Namespace, words: list[str], env: dict[str, str | None]) -> int:
    signals = SignalRelay()
    try:
        return await _run_in_workspace(args, words, env, signals)
    except asyncio.CancelledError:
        if signals.held:
            raise error_output.Interrupted(signals.held[0]) from None
        raise


async def _run_in_workspace(
    args: argparse.Namespace, words: list[str], env: dict[str, str | None], signals: SignalRelay
) -> int:
    from handrail.process.output.output_log import RETENTION_BYTES
    from handrail.workspace.asynchronous import AsyncWorkspace

    at, root = args.at, args.cwd
    if at is None:
        root = _from_here(root)
        if args.detach:
            at = here()  # it works somewhere else
    workspace = AsyncWorkspace(
        root,
        at=at,
        token=options.token(args, at) if at is not None else None,
        sandbox=args.sandbox,
        env=env,
        inherit_env=args.inherit_env,
        secrets=args.secrets,
        detach_ttl=DETACHED_SECONDS if args.detach else None,
        keep_output=RETENTION_BYTES,  # the command waits for our reader, as for a pipe
    )
    if args.detach:
        return await _leave(args, workspace, words)
    async with workspace:
        if args.json:
            return await _collect(args, workspace, words, signals)
        return await _stream(args, workspace, words)


async def _stream(args: argparse.Namespace, workspace: AsyncWorkspace, words: list[str]) -> int:
    from handrail.cli import terminal
    from handrail.cli.stdio_relay import Relay

    raw = terminal.is_there() and args.tty is not False
    tty = raw or bool(args.tty)
    takes_input = True
    if not (tty or os.isatty(0) or (await workspace.executor()).features.close_stdin):
        if not _is_empty(0):
            raise UsageError(
                f"the server at {args.at} cannot end the input of a command, which would wait for"
                " more for ever; give it a terminal with --tty, or nothing by < /dev/null, or use"
                " a handrail server"
            )
        takes_input = False
    process = await workspace.start(
        words,
        tty=tty,
        size=terminal.size(),
        stdin=takes_input,
        timeout=args.timeout,
        limits=args.limits,
    )
    try:
        info = await Relay(process, raw=raw, secrets=workspace.variables.secrets).run()
    except OutputFailed as error:
        error.outcome = "so the command was ended"
        raise
    assert info is not None  # noqa: S101 (there is no key to leave it with)
    return options.exit_code(info)


async def _collect(
    args: argparse.Namespace, workspace: AsyncWorkspace, words: list[str], signals: SignalRelay
) -> int:
    stdin = None if os.isatty(0) else await _read_all()
    signals.start_asked = True
    process = await workspace.start(
        words,
        timeout=args.timeout,
        tty=bool(args.tty),
        stdin=False,
        input=stdin,
        limits=args.limits,
        watch_denials=args.watch_denials,
    )
    signals.started(process)
    result = await process.result()
    assert result.exit is not None  # noqa: S101 (it was waited for)
    code = options.exit_code(result.exit)
    try:
        options.print_json(_report(words, result))
    except OutputFailed as error:
        error.outcome = f"and the command's exit code was {code}"
        raise
    return code


def _report(words: list[str], result: Result[str]) -> dict[str, object]:
    return {
        "argv": words,
        "exitCode": result.exit_code,
        "exit": options.exit_json(result.exit),
        "stdout": result.stdout,
        "stderr": result.stderr,
        "durationMs": round(result.duration * 1000, 3),
        "omitted": result.omitted,
        "denials": [
            {"kind": d.kind, "op": d.op, "path": d.path, "certain": d.certain}
            for d in result.denials
        ],
    }


def _is_empty(fd: int) -> bool:
    """Whether nothing can come from there any more, as far as can be told without reading."""
    import select
    import stat

    try:
        found = os.fstat(fd)
    except OSError:  # it is closed
        return True
    if stat.S_ISREG(found.st_mode):
        return os.lseek(fd, 0, os.SEEK_CUR) >= found.st_size
    if stat.S_ISCHR(found.st_mode):
        return found.st_rdev == os.stat(os.devnull).st_rdev
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return any(not events & select.POLLIN for _, events in poll.poll(0))


async def _read_all() -> bytes:
    """Read our whole stdin, by a thread that no end of this program waits for."""
    loop, ended, data = asyncio.get_running_loop(), asyncio.Event(), bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # it is closed
            while piece := os.read(0, 1 << 20):
                data.extend(piece)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    await ended.wait()
    return bytes(data)


async def _leave(args: argparse.Namespace, workspace: AsyncWorkspace, words: list[str]) -> int:
    from handrail.cli import terminal

    try:
        process = await workspace.start(
            words,
            tty=bool(args.tty),
            size=terminal.size(),
            timeout=args.timeout,
            limits=args.limits,
        )
        name = process.id
        workspace_id = await workspace.detach()
    except BaseException:
        await workspace.close()
        raise
    if args.json:
        options.print_json({"id": workspace_id, "processId": name})
    else:
        print(workspace_id)
    return 0


def _from_here(path: str) -> str:
    """The same from everywhere; raises UsageError."""
    try:
        return os.path.join(current_directory(), path)
    except NotRun as gone:
        if path.startswith(("/", "~")):
            return path
        raise UsageError(f"nothing was run: {gone}") from None


def here() -> str:
    """The address of this user's own server on this machine, which is started if need be."""
    from handrail.cli.commands import proxy

    path = proxy.default_socket()
    try:
        (proxy.connect(path) or proxy.start(path)).close()
    except OSError as error:
        raise UsageError(str(error)) from None
    return f"unix:{path}"
