"""``handrail fleet``: workspaces on many machines, from the shell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from handrail.cli import error_output, options
from handrail.cli.fleet import fleet_options
from handrail.cli.stdio import say
from handrail.errors import UsageError
from handrail.units import counted

if TYPE_CHECKING:
    from handrail.fleet import Fleet

_Commands = argparse._SubParsersAction  # noqa: SLF001 (it has no public name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its sub-commands."""
    parser.description = "Run tasks in workspaces on many machines: a Ray cluster, or hosts."
    own = parser.add_subparsers(metavar="COMMAND", required=True)
    _add(own, "up", "start a fleet, or join it", run_up, fleet_options.add_make)
    _add(own, "status", "show the nodes of a fleet", run_status)
    _add(own, "ls", "list the workspaces of a fleet", run_ls, _add_ls)
    _add_run(own)
    _add(own, "sweep", "end workspaces that no driver holds", run_sweep, _add_owner)
    _add(own, "logs", "print what the servers of nodes have logged", run_logs, _add_logs)
    _add(own, "metrics", "print the metrics of all nodes", run_metrics)
    _add(own, "down", "end a fleet with everything in it", run_down)


def _add(
    commands: _Commands[argparse.ArgumentParser],
    name: str,
    summary: str,
    run_below: Callable[[argparse.Namespace], int],
    more: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> argparse.ArgumentParser:
    text = f"{summary[:1].upper()}{summary[1:]}."
    parser = commands.add_parser(name, help=summary, description=text, allow_abbrev=False)
    fleet_options.add_fleet(parser)
    more(parser)
    parser.set_defaults(run_below=run_below, parser=parser)
    return parser


def _add_run(commands: _Commands[argparse.ArgumentParser]) -> None:
    from handrail.cli.fleet import task_run

    parser = _add(
        commands, "run", "run a file of tasks, each once", task_run.run, task_run.add_arguments
    )
    parser.description = (
        "Run a command for each task of a file, each in a fresh workspace, and write a result a"
        " line. After a kill or Ctrl-C the same command again goes on: it skips tasks that have a"
        " result and adopts those that still run."
    )
    parser.epilog = (
        "Exit codes, for the whole file: 0 all ok, 1 some failed, 3 some are lost, 2 or 125"
        " refused, 130 Ctrl-C."
    )


def _add_owner(parser: argparse.ArgumentParser) -> None:
    text = "all workspaces of this owner, also held ones"
    parser.add_argument("--owner", metavar="OWNER", help=text)


def _add_ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--owner", metavar="OWNER", help="only those of this owner")
    text = "only those with this label; may be given again"
    parser.add_argument("--label", metavar="NAME=VALUE", action="append", help=text)


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", nargs="?", help="its id (default: all nodes)")
    text = "only the last N lines of each node (default: 200)"
    parser.add_argument(
        "-n", "--lines", metavar="N", type=options.number_from(1), default=200, help=text
    )


def run(args: argparse.Namespace) -> int:
    """Run the sub-command; options that make no sense are told before anything is reached."""
    try:
        fleet_options.where(args)
        code: int = args.run_below(args)
    except UsageError as error:
        return error_output.tell(error, error_output.WRONG_USAGE)
    return code


def _with_fleet(
    args: argparse.Namespace, use: Callable[[Fleet, argparse.Namespace], Coroutine[Any, Any, int]]
) -> int:
    async def main() -> int:
        fleet = await fleet_options.joined(args)
        try:
            return await use(fleet, args)
        finally:
            await fleet.close()

    return options.to_end(main())


async def _tell_silent(fleet: Fleet, args: argparse.Namespace) -> None:
    """Say which nodes do not answer, for they may have more; raises FleetError when none does."""
    from handrail.fleet import FleetError

    silent = {"joining", "unreachable"}
    if isinstance(fleet_options.where(args), list):
        silent.add("lost")  # by its silence alone
    nodes = (await fleet.status()).nodes
    missing = [f"{node.id} does not answer: {node.error}" for node in nodes if node.state in silent]
    if missing and not any(node.state == "ready" for node in nodes):
        raise FleetError("; ".join(missing))
    for text in missing:
        say(f"handrail: {text}")


def run_up(args: argparse.Namespace) -> int:
    """Start a fleet, wait for its nodes, and leave it."""
    return options.to_end(_up(args, fleet_options.made(args)))


async def _up(args: argparse.Namespace, fleet: Fleet) -> int:
    from handrail.cli.fleet import listing

    await fleet.__aenter__()
    try:
        await fleet.wait(_awaited(args), timeout=args.timeout)
        listing.show_status(await fleet.status(), as_json=args.json)
    finally:
        await fleet.detach()
    return 0


def _awaited(args: argparse.Namespace) -> int:
    """How many nodes ``up`` waits for; a fleet that begins with none has none to wait for."""
    if args.nodes is not None or args.shares is None:
        return args.nodes or 1
    found = fleet_options.shares(args.shares)
    least = found[0] if isinstance(found, tuple) else 1
    return min(1, int(least))


def run_status(args: argparse.Namespace) -> int:
    """Show a fleet and its nodes."""

    async def use(fleet: Fleet, args: argparse.Namespace) -> int:
        from handrail.cli.fleet import listing

        listing.show_status(await fleet.status(), as_json=args.json)
        return 0

    return _with_fleet(args, use)


def run_ls(args: argparse.Namespace) -> int:
    """List workspaces."""
    wanted = fleet_options.labels(args.label)

    async def use(fleet: Fleet, args: argparse.Namespace) -> int:
        from handrail.cli.fleet import listing

        found = await fleet.workspaces(owner=args.owner, labels=wanted or None)
        await _tell_silent(fleet, args)
        listing.show_workspaces(found, as_json=args.json)
        return 0

    return _with_fleet(args, use)


def run_sweep(args: argparse.Namespace) -> int:
    """End workspaces that are not held, or those of an owner."""

    async def use(fleet: Fleet, args: argparse.Namespace) -> int:
        count = await fleet.sweep(owner=args.owner)
        await _tell_silent(fleet, args)
        if args.json:
            options.print_json({"ended": count})
        else:
            print(f"{counted(count, 'workspace')} ended")
        return 0

    return _with_fleet(args, use)


def run_logs(args: argparse.Namespace) -> int:
    """Print the logs of one node or all."""

    async def use(fleet: Fleet, args: argparse.Namespace) -> int:
        from handrail.fleet import FleetError

        nodes = [args.node] if args.node else [n.id for n in (await fleet.status()).nodes]
        missing: list[FleetError] = []
        for node in nodes:
            try:
                text = await fleet.logs(node, args.lines)
            except FleetError as error:  # of a lost one, which is no reason to hide the others
                missing.append(error)
                continue
            if args.json:
                options.print_json({"node": node, "text": text})
                continue
            if len(nodes) > 1:
                print(f"==> {node} <==")
            print(text, end="" if text.endswith("\n") or not text else "\n")
        if missing and len(missing) == len(nodes):
            raise missing[0]
        for one in missing:
            say(f"handrail: {one}")
        return 0

    return _with_fleet(args, use)


def run_metrics(args: argparse.Namespace) -> int:
    """Print the metrics of all nodes in the Prometheus text format."""

    async def use(fleet: Fleet, args: argparse.Namespace) -> int:
        text = await fleet.metrics()
        if args.json:
            options.print_json({"metrics": text})
        else:
            print(text, end="" if text.endswith("\n") else "\n")
        return 0

    return _with_fleet(args, use)


def run_down(args: argparse.Namespace) -> int:
    """End a fleet."""
    return options.to_end(_down(args))


async def _down(args: argparse.Namespace) -> int:
    fleet = await fleet_options.joined(args)
    hosts = isinstance(fleet_options.where(args), list)
    if hosts:
        await _tell_silent(fleet, args)
    await fleet.down()
    if args.json:
        options.print_json({"name": args.name})
    elif hosts:
        print("the workspaces of all clients on these hosts have ended; their servers go on")
    else:
        print(f"fleet {args.name} has ended")
    return 0
