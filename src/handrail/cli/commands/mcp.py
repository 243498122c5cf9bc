"""``handrail mcp``: serve an agent's shell to an MCP host, on stdio or over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import sys
from typing import TYPE_CHECKING

from handrail import private_places
from handrail.cli import error_output, network_options, options, variable_options
from handrail.cli.stdio import say
from handrail.errors import HandrailError, UsageError
from handrail.sandbox.profile import PEERS_OFF
from handrail.secret_file import read_secret
from handrail.server.auth.exposure import check_users
from handrail.server_settings import STOP_SIGNALS

if TYPE_CHECKING:
    from handrail.mcp_server.tool_calls import ToolCalls

_APPROVALS = ("untrusted", "on-failure", "on-request", "never")
_MODES = ("read-only", "workspace-write", "off", PEERS_OFF)

EXAMPLES = """\
examples:
  handrail mcp --cwd ~/src/repo                      over stdio, as MCP hosts start it
  handrail mcp --approval untrusted --sandbox read-only
  handrail mcp --http 127.0.0.1:8765 --token-file token
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Serve the tools exec_command, write_stdin, read_output, list_processes, kill"
        " and apply_patch to an MCP host, on stdio unless --http is given."
    )
    add = parser.add_argument
    add("--cwd", metavar="DIR", default=".", help="the workspace (default: this directory)")
    add(
        "--approval",
        choices=_APPROVALS,
        default="on-request",
        help="when the user is asked before a command runs (default: %(default)s)",
    )
    add("--sandbox", choices=_MODES, default="workspace-write", help="(default: %(default)s)")
    variable_options.add_variables(parser)
    network_options.add_network(parser, listens=True)
    add(
        "--add-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="one more directory that commands may write; may be repeated",
    )
    add(
        "--rules",
        action="append",
        default=[],
        metavar="PATH",
        help="a rules file or a directory of them, instead of your own; may be repeated",
    )
    text = "the rules file to which a «yes, always» is added (without --rules: your default.rules)"
    add("--rules-file", metavar="FILE", help=text)
    add(
        "--without-elicitation",
        choices=("deny", "approve"),
        default="deny",
        help="the answer to questions if the host cannot show them (default: %(default)s)",
    )
    add(
        "--approval-timeout",
        metavar="S",
        type=options.seconds,
        default=300.0,
        help="seconds until a question without an answer counts as no (default: %(default)s)",
    )
    add("--http", metavar="IP:PORT", help="serve streamable HTTP here instead of stdio")
    add(
        "--token-file",
        metavar="PATH",
        help="file with the token that HTTP clients send (without it: $HANDRAIL_MCP_TOKEN, or a new"
        " token, which is printed)",
    )
    add("--allow-host", action="append", default=[], metavar="HOST", help="accept this Host too")
    add("--insecure-no-auth", action="store_true", help="serve HTTP without a token")
    text = "accept every user of this machine on loopback (default: this user and root)"
    add("--any-user", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Serve; returns 0 when told to stop, 1 for what cannot be served."""
    try:
        import handrail.mcp_server.server  # noqa: F401 (whether the extra is there)
    except ImportError as error:
        say(f"handrail mcp needs the extra of that name ({error}): pip install 'handrail[mcp]'")
        return 1
    try:
        return asyncio.run(_serve(args))
    except HandrailError as error:
        return error_output.tell(error, 2 if isinstance(error, UsageError) else 1, "handrail mcp: ")


async def _serve(args: argparse.Namespace) -> int:
    from handrail.agent.shell import AgentShell
    from handrail.mcp_server.call_approvals import PendingCalls, read_unasked
    from handrail.mcp_server.tool_calls import ToolCalls
    from handrail.policy.layers import DEFAULT_FILE, user_folder
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.profile import Profile

    cwd = os.path.realpath(args.cwd)  # noqa: ASYNC240 (before anything is served)
    if not os.path.isdir(cwd):  # noqa: ASYNC240 (as above)
        raise UsageError(f"--cwd {args.cwd} is not a directory; name one that is")
    roots = tuple(os.path.realpath(folder) for folder in args.add_dir)  # noqa: ASYNC240 (as above)
    free = args.sandbox in ("off", PEERS_OFF)
    own = (".", *roots) if args.sandbox == "workspace-write" else ()
    network = network_options.read(args) or "off"
    profile = Profile(write=own, network=network, temporary=bool(own))
    rules_file = args.rules_file
    if rules_file is None and not args.rules:
        rules_file = os.path.join(user_folder(), DEFAULT_FILE)
    pending = PendingCalls(read_unasked(args.without_elicitation))
    workspace = AsyncWorkspace(
        cwd, inherit_env=args.inherit_env, secrets=variable_options.secrets(args.secret)
    )
    shell = AgentShell(
        workspace,
        approver=pending,
        policy=args.approval,
        approval_timeout=args.approval_timeout,
        sandbox="off" if free else profile,
        rules=args.rules or None,
        rules_file=rules_file,
    )
    async with shell:
        calls = ToolCalls(shell, pending)
        try:
            await _until_stopped(calls, args)
        finally:
            await calls.close()
    return 0


async def _until_stopped(calls: ToolCalls, args: argparse.Namespace) -> None:
    """Serve until the transport ends or a signal comes."""
    if args.http is not None:
        await _http(calls, args)
        return
    from handrail.mcp_server.server import serve_stdio

    loop = asyncio.get_running_loop()
    task = asyncio.create_task(serve_stdio(calls))
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _http(calls: ToolCalls, args: argparse.Namespace) -> None:
    from handrail.mcp_server.http import check_exposure, serve_http

    host, separator, port = args.http.rpartition(":")
    host = host.strip("[]")
    if not separator or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"--http wants IP:PORT, such as 127.0.0.1:8300, not {args.http!r}")
    token = None if args.insecure_no_auth else _token(args)
    check_exposure(host, token, insecure=args.insecure_no_auth)
    check_users(args.any_user or token is not None, "a token")

    def started(url: str) -> None:
        print(url, flush=True)

    await serve_http(
        calls,
        host,
        int(port),
        token,
        allowed=tuple(args.allow_host),
        any_user=args.any_user,
        started=started,
    )


def _token(args: argparse.Namespace) -> str:
    if args.token_file is not None:
        token = read_secret(args.token_file, "the token in").decode()
        private_places.add(args.token_file)
        return token
    given = os.environ.get("HANDRAIL_MCP_TOKEN")
    if given:
        return given
    token = secrets.token_urlsafe(32)
    print(f"token: {token}", file=sys.stderr, flush=True)
    return token
