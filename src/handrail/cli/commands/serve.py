"""``handrail serve``: flags, checks and exit codes.

argparse rather than click: importing click costs more than the whole handshake of a client,
and other programs start this command and wait for it.  The keeper is started before the
event loop and the server are imported, so that both get ready at the same time.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from dataclasses import replace

from handrail import fault_points, private_places
from handrail.cli import error_output, options, workspace_options
from handrail.errors import HandrailError
from handrail.server.auth.exposure import check_exposure
from handrail.server_settings import (
    DEFAULT_CONCURRENT_REQUESTS,
    DEFAULT_LISTEN,
    DEFAULT_PROCESSES,
    DEFAULT_SESSION_PROCESSES,
    STOP_SIGNALS,
    Quota,
    ResultBounds,
    ServerSettings,
    parse_listen,
)

_LEVELS = ("debug", "info", "warning", "error")

EXAMPLES = """\
examples:
  handrail serve                                     on a free port of loopback, which it prints
  handrail serve --listen unix:/run/user/1000/h.sock
  handrail serve --listen ws://0.0.0.0:8443 --ws-auth capability-token --ws-token-file token
  handrail serve --detach-ttl 5m --on-stop keep
"""


#: After the start and the first requests, which have the same to import each time.
_NOTE_SECONDS = 1.0
#: What the first command or file call in a sandbox imports.
_OF_FIRST_CALLS = (
    "handrail.server.methods.files_sandboxed",
    "handrail.server.methods.process_sandbox",
    "handrail.sandbox.plan.path_rules",
    "handrail.sandbox.plan.mounts",
    "handrail.sandbox.warm.programs",
    "handrail.sandboxed_files.view_stub",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Start the exec-server: run commands and file calls for clients that speak the"
        " protocol of Codex's exec-server. Prints the address it listens on."
    )
    add = parser.add_argument
    add(
        "--listen",
        metavar="URL",
        default=DEFAULT_LISTEN,
        help="ws://IP:PORT, stdio or unix:PATH (default: %(default)s)",
    )
    add(
        "--concurrent-requests",
        metavar="N",
        type=options.number_from(1),
        default=None,
        help="requests of one connection that run at the same time (default:"
        f" {DEFAULT_CONCURRENT_REQUESTS}; 1: strictly in order)",
    )
    add(
        "--detach-ttl",
        metavar="S",
        type=options.seconds,
        default=30.0,
        help="seconds a session is kept without a connection, then ended (default: %(default)s)",
    )
    add(
        "--on-stop",
        choices=("end", "keep"),
        default="end",
        help="when the server stops: end its processes, or keep them for the next server"
        " (default: %(default)s)",
    )
    add(
        "--state-dir",
        metavar="DIR",
        help="the directory by which the next server finds this one's processes",
    )
    add(
        "--orphan-ttl",
        metavar="S",
        type=options.seconds,
        default=600.0,
        help="seconds processes wait for the next server after a crash (default: %(default)s)",
    )
    for name, text in (
        ("keep", "how long results of left processes are stored, such as 7d"),
        ("each", "most output that is stored of each, such as 64MiB; 0 stores none"),
        ("total", "most output that is stored of all, such as 1GiB; the oldest goes first"),
    ):
        kind = options.seconds if name == "keep" else options.size
        text += f" (or: $HANDRAIL_RESULTS_{name.upper()})"
        add(f"--results-{name}", metavar=name.upper(), type=kind, help=text)
    add(
        "--max-processes",
        metavar="N",
        type=options.number_from(1),
        default=DEFAULT_PROCESSES,
        help="most running processes of all sessions (default: %(default)s)",
    )
    add(
        "--max-session-processes",
        metavar="N",
        type=options.number_from(1),
        default=DEFAULT_SESSION_PROCESSES,
        help="most running processes of one session (default: %(default)s)",
    )
    add(
        "--trees",
        choices=("auto", "cgroup", "walk"),
        default="auto",
        help="how process trees are found and ended: by a control group for each process, by a"
        " walk over /proc, or by a group only where limits need one (default: %(default)s)",
    )
    add(
        "--log-level",
        choices=_LEVELS,
        default="warning",
        help="what is logged (default: %(default)s)",
    )
    add("--log-json", action="store_true", help="log as JSON lines")
    add("--allow-host", action="append", default=[], metavar="HOST", help="accept this Host too")
    add("--allow-origin", action="append", default=[], metavar="ORIGIN", help="accept this Origin")
    add(
        "--http-header-env",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable of the server that http/request may send in a header, although its name"
        " looks like that of a secret",
    )
    add("--otel", action="store_true", help="export telemetry by OTLP (needs handrail[otel])")
    auth = parser.add_argument_group("authentication of WebSocket clients")
    add = auth.add_argument
    add(
        "--ws-auth",
        choices=("capability-token", "signed-bearer-token"),
        help="what clients send: one fixed token, or JSON web tokens signed with HS256",
    )
    add("--ws-token-file", metavar="PATH", help="the capability token")
    add("--ws-token-sha256", metavar="HEX", help="its SHA-256, instead of the file")
    add("--ws-shared-secret-file", metavar="PATH", help="the secret that signs bearer tokens")
    add("--ws-issuer", metavar="ISS", help="the issuer that bearer tokens must have")
    add("--ws-audience", metavar="AUD", help="the audience that bearer tokens must have")
    add(
        "--ws-max-clock-skew-seconds",
        metavar="S",
        type=options.number_from(0),
        help="tolerance for times in bearer tokens (default: 30)",
    )
    add(
        "--insecure-no-auth",
        action="store_true",
        help="listen beyond loopback without authentication",
    )
    text = "accept every user of this machine on loopback (default: this user and root)"
    add("--any-user", action="store_true", help=text)
    workspace_options.add_arguments(parser)
    # Accepted for the peer's launchers, which only use it together with a relay.
    add("--exit-on-stdin-close", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Check everything, then serve; returns 1 when a check fails."""
    if args.exit_on_stdin_close:
        args.parser.error("--exit-on-stdin-close is only valid together with --remote")
    try:
        return _run(args)
    except HandrailError as error:
        return error_output.tell(error, 1)
    except KeyboardInterrupt:
        return 0


def _settings(args: argparse.Namespace) -> ServerSettings:
    from handrail.server.auth.tokens import AuthMode, AuthSettings

    bounds = {
        name: value
        for name in ("keep", "each", "total")
        if (value := getattr(args, f"results_{name}")) is not None
    }
    return ServerSettings(
        results=ResultBounds.from_environment(os.environ, bounds),
        listen=parse_listen(args.listen),
        auth=AuthSettings(
            mode=AuthMode(args.ws_auth or "none"),
            token_file=args.ws_token_file,
            token_sha256=args.ws_token_sha256,
            shared_secret_file=args.ws_shared_secret_file,
            issuer=args.ws_issuer,
            audience=args.ws_audience,
            max_clock_skew_seconds=args.ws_max_clock_skew_seconds,
        ),
        concurrent_requests=args.concurrent_requests or DEFAULT_CONCURRENT_REQUESTS,
        strict_lanes=args.concurrent_requests is not None,
        detach_ttl=args.detach_ttl,
        on_stop=args.on_stop,
        state_dir=args.state_dir,
        orphan_ttl=args.orphan_ttl,
        insecure_no_auth=args.insecure_no_auth,
        any_user=args.any_user,
        otel=args.otel,
        http_header_env=tuple(args.http_header_env),
        allowed_hosts=tuple(args.allow_host),
        allowed_origins=tuple(args.allow_origin),
        quota=Quota(session_processes=args.max_session_processes, processes=args.max_processes),
        workspaces=workspace_options.workspace_settings(args),
        tls=workspace_options.tls_files(args),
    )


def _run(args: argparse.Namespace) -> int:
    from handrail.process import required_syscalls
    from handrail.process.keeper_client.start_keeper import (
        KeeperHandle,
        become_private,
        start_keeper,
    )
    from handrail.server.auth.tokens import build_authenticator
    from handrail.server.recovery import upgrade_server
    from handrail.server.recovery.state_dir import StateDir, claim, inherit, last_listen

    settings = _settings(args)
    for given in (args.ws_token_file, args.ws_shared_secret_file, args.tls_key):
        if given is not None:
            private_places.add(given)
    auth = build_authenticator(settings.auth, listener=settings.listen.kind)  # type: ignore[arg-type]
    check_exposure(settings)
    # From here on a signal must end the keeper too: serve() unblocks them when it can do that.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGUSR2))
    if args.trees != "auto":
        os.environ["HANDRAIL_TREES"] = args.trees
    heir = upgrade_server.inherited()
    state: StateDir | None = None
    keeper: KeeperHandle | None = None
    if heir is not None:
        state = inherit(heir.path, heir.lock)
    elif settings.listen.kind == "stdio" and settings.state_dir is None:
        # It lives and ends with the program at the other ends of our pipes.
        keeper = start_keeper()
    else:
        listen = settings.listen
        required_syscalls.check()  # before a keeper is found, which may be under no such filter
        state = claim(settings.state_dir, listen.key)
        before = last_listen(state.path)
        if before is not None and before.port and before.host == listen.host:
            listen = replace(listen, port_before=before.port)
            settings = replace(settings, listen=listen)
        state.begin()
        keeper = state.keeper(settings.orphan_ttl)
    if fault_points.armed:
        fault_points.point("server.start")
    become_private()
    _raise_file_limit()  # after the keeper, which passes the original limit on to children

    from handrail.telemetry import logs

    logs.setup(args.log_level.upper(), json=args.log_json)
    if settings.insecure_no_auth and not settings.listen.is_loopback:
        import logging

        logging.getLogger("handrail").warning(
            "listening on %s without authentication: any client that can connect can run commands",
            settings.listen.host,
        )
    import uvloop

    from handrail.server.app import serve

    gc.freeze()
    gc.set_threshold(20_000, 50, 50)
    gc.enable()

    async def serve_and_note() -> int:
        _note_modules()
        return await serve(settings, auth, keeper, state, heir)

    return uvloop.run(serve_and_note())


def _note_modules() -> None:
    """Have the modules of this start written for the next, once the server has started."""
    start_bundle = sys.modules.get("handrail.start_bundle")
    if start_bundle is not None and start_bundle.wanted():
        import asyncio

        def write() -> None:
            start_bundle.noted()  # in this thread, to which the notes belong
            loop.run_in_executor(None, _write_modules)

        loop = asyncio.get_running_loop()
        loop.call_later(_NOTE_SECONDS, write)


def _write_modules() -> None:
    """Write them, with those that the first sandboxed call needs."""
    from importlib import import_module

    from handrail import start_bundle

    for name in _OF_FIRST_CALLS:
        import_module(name)
    start_bundle.make()


def _raise_file_limit() -> None:
    """Raise the fd limit to the maximum: every child costs descriptors."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
