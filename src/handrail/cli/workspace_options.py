"""Options of ``handrail serve`` for a server that is part of a fleet."""

from __future__ import annotations

import argparse
import os

from handrail import units
from handrail.cli import options
from handrail.errors import UsageError
from handrail.server_settings import TlsFiles, WorkspaceSettings

_FORM = "cpus=N,memory=SIZE,workspaces=N"
#: The most workspaces of a server that was told no number: each may have a connection of its own.
_MOST_WORKSPACES = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    add = parser.add_argument_group("workspaces of a fleet").add_argument
    add("--workspaces", metavar="DIR", help="hold workspaces for clients in this directory")
    add(
        "--share",
        metavar=_FORM,
        help="what all workspaces together may have (default: the cpus and memory of the machine,"
        f" {_MOST_WORKSPACES} workspaces)",
    )
    add(
        "--min-free",
        metavar="SIZE",
        type=options.size,
        help="bytes of the disk that stay free: no new workspace below that (default: 1GiB)",
    )
    add(
        "--supervised",
        metavar="S",
        type=options.seconds,
        help="end everything when DIR/stamp is missing, or was not touched for so many seconds",
    )
    add = parser.add_argument_group("encryption of WebSockets").add_argument
    add("--tls-cert", metavar="PATH", help="serve wss:// with this certificate (PEM)")
    add("--tls-key", metavar="PATH", help="its key (PEM, without a password)")


def workspace_settings(args: argparse.Namespace) -> WorkspaceSettings | None:
    """Read the options of workspaces; None: the server holds none.  Raises UsageError."""
    if args.workspaces is None:
        for name in ("share", "min_free", "supervised"):
            if getattr(args, name) is not None:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is for a server with workspaces; give --workspaces DIR")
        return None
    if args.supervised is not None and args.supervised <= 0:
        raise UsageError("--supervised needs more than 0 seconds")
    cpus, memory, count = _share(args.share or "")
    return WorkspaceSettings(
        directory=os.path.abspath(args.workspaces),
        cpu_millis=cpus,
        memory_bytes=memory,
        workspaces=count,
        min_free=2**30 if args.min_free is None else args.min_free,
        supervised=args.supervised,
    )


def _share(text: str) -> tuple[int, int, int]:
    given: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in ("cpus", "memory", "workspaces") or not value or name in given:
            raise UsageError(f"--share is {_FORM}, each at most once, not {text!r}")
        given[name] = value
    try:
        cpus = round(float(given["cpus"]) * 1000) if "cpus" in given else _own_cpus() * 1000
        count = int(given.get("workspaces", _MOST_WORKSPACES))
    except (ValueError, OverflowError):
        raise UsageError(f"--share is {_FORM}, with numbers, not {text!r}") from None
    memory = units.parse_size(given["memory"]) if "memory" in given else _own_memory()
    if cpus < 0 or count < 0:
        raise UsageError(f"--share is {_FORM}, and nothing of it is negative")
    return cpus, memory, count


def _own_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _own_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tls_files(args: argparse.Namespace) -> TlsFiles | None:
    """The certificate and the key, both or neither; raises UsageError."""
    if args.tls_cert is None and args.tls_key is None:
        return None
    if args.tls_cert is None or args.tls_key is None:
        raise UsageError("--tls-cert and --tls-key belong together; give both")
    if not args.listen.startswith("ws://"):
        raise UsageError("--tls-cert is for a server that listens on ws://IP:PORT")
    return TlsFiles(args.tls_cert, args.tls_key)
