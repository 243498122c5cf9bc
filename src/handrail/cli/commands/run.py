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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from handrail import exit_codes, units
from handrail.cli import (
    detached,
    error_output,
    network_options,
    options,
    sandbox_options,
    variable_options,
)
from handrail.cli.foreground_command import NotRun, complain, current_directory
from handrail.cli.remote_signals import SignalRelay
from handrail.cli.stdio import OutputFailed, say
from handrail.errors import UsageError
from handrail.process import ENDING_SIGNALS
from handrail.sandbox.explain_refusal import COMMAND_LINE

if TYPE_CHECKING:
    from handrail.orchestrator.approvals import Approver
    from handrail.process.spec import Limits
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.process import AsyncProcess
    from handrail.workspace.result import Denial, Result

EXAMPLES = """\
examples:
  handrail run -- make -j4                         writes here, has no network
  handrail run --network -- pip install -r requirements.txt
  handrail run --writable .git -- git commit -m x  .git is read-only otherwise
  handrail run --read-only -- pytest -q            writes nothing
  handrail run --timeout 5m --limit memory=2GiB -- ./build
  handrail run --at ssh://box --cwd src -- make    on another machine
  handrail run --expose 8000 -- ./serve            its port 8000, at a port of this machine
  handrail run --json -- make                      output, exit and usage as JSON
  handrail run --detach --label task=42 -- make    left running; its id is printed
"""
#: A detached command is kept this long by a server that cannot be told how long.
DETACHED_SECONDS = 24 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Run a command in a workspace: sandboxed, with its streams and its exit code."
        " 124: it was ended by --timeout; 125: handrail failed; 126, 127: it could not be run."
    )
    sandbox_options.add_sandbox(parser)
    options.add_place(parser)
    add = parser.add_argument
    add(
        "--timeout",
        metavar="DURATION",
        type=options.seconds,
        help="end it after this long: seconds, or 90s, 5m, 1.5h",
    )
    add("--cwd", metavar="DIR", default=".", help="the workspace it runs in (default: here)")
    add(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set a variable; NAME alone removes an inherited one",
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
        help="limit the command, may be given again: cpu_seconds, memory, processes, file_size,"
        " open_files, output, address_space; sizes as 512MiB or 2G, times as 90s or 5m",
    )
    add(
        "--expose",
        metavar="PORT[:LOCAL]",
        action="append",
        default=[],
        help="have a port of this machine, LOCAL or a free one, lead to PORT that the sandboxed"
        " command listens on; for this user alone, while it runs; may be given again",
    )
    add(
        "--watch-denials",
        action="store_true",
        help="with --json: tell for certain what the sandbox refused",
    )
    add(
        "--detach",
        action="store_true",
        help="leave it running and print its id; without --at this"
        " starts a server of this user, which stays until `handrail stop`",
    )
    add(
        "--keep",
        metavar="T",
        type=options.seconds,
        help="with --detach: end it after this long, such as 2h (default: it ends by itself)",
    )
    add("--name", metavar="TEXT", help="a name for listings")
    detached.add_label(parser, "a label for listings, may be given again")
    options.add_json(parser)
    parser.set_defaults(default_shell=False)  # True: `handrail shell`, the machine's own shell
    parser.set_defaults(interactive=False)  # True: `handrail shell`, one command after the other
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
    if args.keep is not None and not args.detach:
        args.parser.error("--keep is for --detach")
    if args.expose and args.detach:
        args.parser.error("--expose ends with this program; leave out --detach")
    if args.watch_denials and not args.json:
        args.parser.error("--watch-denials needs --json, which shows them")
    try:
        args.profile = sandbox_options.profile(args)
        if args.watch_denials and args.profile == "off":
            raise UsageError("--watch-denials is for a command in a sandbox, and this one has none")
        args.limits = _limits(args.limit)
        args.secrets = variable_options.secrets(args.secret)
        args.exposed = [_ports(text) for text in args.expose]
        args.network = network_options.read(args, user_rules=True)
    except UsageError as error:
        args.parser.error(str(error))
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)  # until they are handled
    work = partial(_run_in_workspace, args, words, env)
    return options.to_end(signalled(work))


def _limits(given: list[str]) -> Limits | None:
    """Parse ``--limit``; raises UsageError."""
    from handrail.process.spec import Limits

    found: dict[str, int] = {}
    for pair in given:
        name, _, text = pair.partition("=")
        if name not in Limits.__slots__ or not text:
            raise UsageError(
                f"--limit is NAME=VALUE, as in memory=2GiB or processes=50, not {pair!r}; the"
                f" names are {', '.join(Limits.__slots__)}"
            )
        try:
            if name == "cpu_seconds":
                found[name] = math.ceil(units.parse_duration(text))
            else:
                found[name] = units.parse_size(text)
        except UsageError as error:
            raise UsageError(f"--limit {pair}: {error}") from None
    return Limits(**found) if found else None


def _ports(text: str) -> tuple[int, int | None]:
    """Parse ``--expose``: a port, and the one of this machine; raises UsageError."""
    from handrail.workspace.exposure import check_port

    inner, colon, local = text.partition(":")
    if not inner.isdecimal() or (colon and not local.isdecimal()):
        raise UsageError(f"--expose is PORT or PORT:LOCAL, as in 8000 or 8000:9000, not {text!r}")
    for number in (inner, local or inner):
        check_port(int(number), "--expose: a port")
    return int(inner), int(local) if colon else None


async def signalled(work: Callable[[SignalRelay], Awaitable[int]]) -> int:
    """Run a command with our signals passed on to it; its exit code."""
    signals = SignalRelay()
    try:
        return await work(signals)
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
    args.approver = approver(args)
    if at is None:
        root = _from_here(root)
        if args.detach:
            at = here()  # it works somewhere else
    workspace = AsyncWorkspace(
        root,
        at=at,
        token=options.token(args, at) if at is not None else None,
        sandbox=args.profile,
        network=args.network,
        approver=args.approver,
        env=env,
        inherit_env=args.inherit_env,
        secrets=args.secrets,
        labels=detached.labels(args),
        # Its output goes on without us, and a server without results keeps it for a day.
        detach_ttl=DETACHED_SECONDS if args.detach else None,
        keep_output=RETENTION_BYTES,  # the command waits for our reader, as for a pipe
    )
    if args.detach:
        return await _leave(args, workspace, words)
    async with workspace:
        for port, local in args.exposed:
            exposure = await workspace.expose(port, local_port=local)
            say(f"handrail: {exposure.url} leads to port {port} of the command")
        if args.default_shell:
            words[0] = (await (await workspace.executor()).place()).shell
        if args.json:
            return await _collect(args, workspace, words, signals)
        return await stream(args, workspace, words)


def approver(args: argparse.Namespace) -> Approver | None:
    """The approver of hosts: the user at the terminal, if there is one."""
    from handrail.network.settings import Managed

    if not isinstance(args.network, Managed) or args.detach:
        return None
    from handrail.cli import terminal
    from handrail.cli.host_questions import at_terminal

    keys = os.isatty(0) and not args.json
    return at_terminal(keys=keys, raw=terminal.is_there() and args.tty is not False)


async def _tell_hosts(process: AsyncProcess, args: argparse.Namespace) -> None:
    """Say behind the command's own output which hosts it was refused."""
    if isinstance(args.network, str | None):
        return
    result = await process.result()
    for note in result.notes:
        complain(note)


async def stream(args: argparse.Namespace, workspace: AsyncWorkspace, words: list[str]) -> int:
    """Run it at our own streams; its exit code."""
    from handrail.cli import terminal
    from handrail.cli.host_questions import HostQuestions
    from handrail.cli.refused_host_notes import RefusedHostNotes
    from handrail.cli.stdio_relay import Relay
    from handrail.workspace.process import explain_refusal

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
    questions = args.approver if isinstance(args.approver, HostQuestions) else None
    hidden = workspace.variables.secrets
    relay = Relay(process, raw=raw, tty=tty, secrets=hidden, questions=questions)
    notes = RefusedHostNotes(process, raw=raw) if args.interactive else None
    try:
        info = await relay.run()
        if notes is not None:
            await notes.close()
        else:
            await _tell_hosts(process, args)
    except OutputFailed as error:
        error.outcome = "so the command was ended"
        raise
    assert info is not None  # noqa: S101 (there is no key to leave it with)
    code = options.told_exit(info)
    refused = await explain_refusal(process, relay.tail, COMMAND_LINE)
    if refused is not None:
        say(f"handrail: {refused}")
    return code


async def _collect(
    args: argparse.Namespace, workspace: AsyncWorkspace, words: list[str], signals: SignalRelay
) -> int:
    from handrail.workspace.process import explain_refusal

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
    code = options.told_exit(result.exit)
    tail = result.stdout if args.tty else result.stderr
    refused = await explain_refusal(process, tail.encode("utf-8", "replace"), COMMAND_LINE)
    try:
        options.print_json(_report(words, result, refused))
    except OutputFailed as error:
        error.outcome = f"and the command's exit code was {code}"
        raise
    return code


def _report(words: list[str], result: Result[str], refusal: str | None) -> dict[str, object]:
    return {
        "argv": words,
        "exitCode": result.exit and exit_codes.of_command(result.exit),
        "exit": options.exit_json(result.exit),
        "stdout": result.stdout,
        "stderr": result.stderr,
        "durationMs": round(result.duration * 1000, 3),
        "usage": options.usage_json(result.exit),
        "omitted": result.omitted,
        "refusal": refusal,
        "denials": [
            {
                "kind": d.kind,
                "op": d.op,
                "path": d.path,
                "certain": d.certain,
                **({} if d.kind != "network" else _host(d)),
            }
            for d in result.denials
        ],
        **({"notes": list(result.notes)} if result.notes else {}),
    }


def _host(denial: Denial) -> dict[str, object]:
    """The facts about a refused host, as JSON."""
    names = ("host", "port", "protocol", "method", "reason", "source", "pid", "comm", "count")
    found = {name: getattr(denial, name) for name in names}
    found["omitted"] = denial.omitted or None
    return {name: value for name, value in found.items() if value is not None}


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
        # First: its output is stored from the first byte on.
        await (await workspace.executor()).leave(args.keep, None)
        process = await workspace.start(
            words,
            tty=bool(args.tty),
            size=terminal.size(),
            timeout=args.timeout,
            limits=args.limits,
            name=args.name,
        )
        name = process.id
        workspace_id = await workspace.detach(args.keep)
    except BaseException:
        await workspace.close()
        raise
    if args.json:
        options.print_json({"id": workspace_id, "processId": name})
    else:
        print(workspace_id)
    return 0


def _from_here(path: str) -> str:
    """The path made absolute, so that it means the same in any directory; raises UsageError."""
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
