"""``handrail fleet run``: a file of tasks on a fleet, with a bar, and resumed after a kill.

A signal, or a file that cannot be written, ends this process without ending what runs: tasks under
way go on for their lease, and the same command again adopts them.  That is the road of a killed
run too, so there is one way to resume.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from handrail.cli import error_output, options, style
from handrail.cli.fleet import fleet_options
from handrail.cli.stdio import say, settle
from handrail.errors import HandrailError, UsageError
from handrail.exit_codes import OWN_FAILURE
from handrail.process import ENDING_SIGNALS
from handrail.units import counted

if TYPE_CHECKING:
    from handrail.fleet import Fleet
    from handrail.fleet.progress_bar import ProgressBar
    from handrail.fleet.tasks.results_file import ResultsFile
    from handrail.fleet.tasks.runner import Counts, Runner
    from handrail.fleet.tasks.task_file import TaskFile

SOME_FAILED, SOME_LOST = 1, 3
#: Seconds between two drawings of the bar, and two looks at the nodes.
_DRAWN, _LOOKED = 0.2, 2.0
#: Members of a record that are not printed.
_LONG = ("stdout", "stderr", "digest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options and the command."""
    add = parser.add_argument
    add(
        "--tasks",
        metavar="FILE",
        required=True,
        help='the tasks: a JSON object a line, each with a unique text "id"; optional members:'
        " command, env, stdin, timeout, idempotent",
    )
    add("--results", metavar="FILE", help="one result a line (default: TASKS.results.jsonl)")
    add(
        "--image",
        metavar="TEMPLATE",
        help="what each workspace has at first: a directory, a tarball, or sha256:HEX",
    )
    number = options.number_from(1)
    add("--concurrency", metavar="N", type=number, default=64, help="tasks at once (default: 64)")
    add("--cpus", metavar="N", type=_cpus, default=1.0, help="cpus of each workspace (default: 1)")
    add(
        "--memory",
        metavar="SIZE",
        type=options.size,
        help="memory of each workspace (default: 1GiB)",
    )
    add("--timeout", metavar="S", type=options.seconds, help="time limit of a task that names none")
    add("--idempotent", action="store_true", help="tasks of a lost node may run again elsewhere")
    add(
        "--retries",
        metavar="N",
        type=options.number_from(0),
        default=2,
        help="how often a task of a lost node may run again (default: 2)",
    )
    add("--retry-failed", action="store_true", help="run tasks again whose result is failed")
    add("--retry-lost", action="store_true", help="run tasks again whose result is lost")
    add(
        "--sandbox",
        choices=("workspace-write", "read-only", "off"),
        default="workspace-write",
        help="sandbox of the commands (default: %(default)s)",
    )
    add("--tenant", metavar="NAME", default="default", help="the tenant whose quota is used")
    add(
        "--lease",
        metavar="S",
        type=options.seconds,
        default=600.0,
        help="tasks go on for so long when this run is killed (default: 10m)",
    )
    add(
        "--fetch",
        metavar="GLOB",
        action="append",
        default=[],
        help="copy such files of each workspace to RESULTS.files/ID when its task has ended; may be"
        " given again",
    )
    add(
        "command",
        metavar="CMD",
        nargs=argparse.REMAINDER,
        help="behind --: the command; {member} in it stands for that member of the task, without a"
        " shell",
    )


def _cpus(text: str) -> float:
    """For argparse: a number of processors."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 2**40:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processors")
    return found


def run(args: argparse.Namespace) -> int:
    """Run the file; the exit code tells of all of it."""
    try:
        with _template(args) as (template, digest):
            return asyncio.run(_run(args, template, digest))
    except UsageError as error:
        return error_output.tell(error, error_output.WRONG_USAGE)
    except HandrailError as error:
        return error_output.tell(error, OWN_FAILURE)


@contextlib.contextmanager
def _template(args: argparse.Namespace) -> Iterator[tuple[str | None, str | None]]:
    """Open the template, with its digest; a directory is packed into a nameless file."""
    from handrail.template_archive import pack

    image = args.image
    if image is None:
        yield None, None
    elif image.startswith("sha256:"):
        yield image, image.removeprefix("sha256:")
    elif os.path.isdir(image):
        with tempfile.TemporaryFile(prefix="handrail-template-") as file:
            digest = pack(image, file)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}", digest
    else:
        with open(image, "rb") as archive:
            yield image, hashlib.file_digest(archive, "sha256").hexdigest()


async def _run(args: argparse.Namespace, template: str | None, digest: str | None) -> int:
    from handrail.fleet.tasks import remaining
    from handrail.fleet.tasks.results_file import ResultsFile

    tasks = _tasks(args, digest)
    results = ResultsFile(_results_path(args))
    try:
        remaining.check(tasks.tasks, results.known, results.journal.begun)
        retried = {"failed"} if args.retry_failed else set()
        retried |= {"lost"} if args.retry_lost else set()
        known = results.known
        again = [t.id for t in tasks.tasks if t.id in known and known[t.id].state in retried]
        results.drop(again)
        counts = await _on_fleet(args, tasks, results, template, digest)
    finally:
        results.close()
    return _told(args, results, counts)


def _tasks(args: argparse.Namespace, digest: str | None) -> TaskFile:
    from handrail.fleet.tasks import task_file

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    return task_file.TaskFile(
        task_file.read(args.tasks),
        command=command,
        template=digest,
        idempotent=args.idempotent,
        timeout=args.timeout,
    )


def _results_path(args: argparse.Namespace) -> str:
    if args.results is not None:
        return str(args.results)
    return f"{args.tasks.removesuffix('.jsonl')}.results.jsonl"


async def _on_fleet(
    args: argparse.Namespace,
    tasks: TaskFile,
    results: ResultsFile,
    template: str | None,
    digest: str | None,
) -> Counts:
    from handrail.fleet.tasks.runner import NotRun, Runner, RunOptions

    fleet = await fleet_options.joined(
        args, owner=results.journal.owner, tenant=args.tenant, lease=args.lease
    )
    needs: dict[str, Any] = {"cpus": args.cpus, "sandbox": args.sandbox, "patience": float("inf")}
    if args.memory is not None:
        needs["memory"] = args.memory
    if template is not None:
        await fleet.put(template)
        needs["template"] = f"sha256:{digest}"
    ways = RunOptions(
        concurrency=args.concurrency,
        retries=args.retries,
        fetch=args.fetch,
        fetch_to=f"{results.path}.files",
        needs=needs,
    )
    runner = Runner(fleet, tasks, results, ways, _print if args.json else _nothing)
    async with _bar(fleet, runner, wanted=not args.json) as stop_bar:
        _leave_on_signals(runner, stop_bar)
        try:
            counts = await runner.run()
        except NotRun:
            await fleet.close()
            raise
        except (HandrailError, OSError) as error:
            stop_bar()
            _leave(error_output.tell(error, OWN_FAILURE))
    await fleet.close()
    return counts


def _leave_on_signals(runner: Runner, stop_bar: Callable[[], None]) -> None:
    def leave(number: int) -> None:
        stop_bar()
        if not error_output.wanted_as_json() and runner.counts.running:
            left = counted(runner.counts.running, "task")
            say(
                f"handrail: {left} left running, each for its lease; the same command again goes"
                " on from there, `handrail fleet sweep` ends what is left"
            )
        else:
            error_output.tell(error_output.Interrupted(number), 128 + number)
        _leave(128 + number)

    for number in ENDING_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, leave, number)


def _leave(code: int) -> NoReturn:
    """Exit and end nothing: what closes a fleet ends the workspaces of its driver."""
    os._exit(settle(code))


def _print(record: dict[str, Any]) -> None:
    """A line for each result; its output is in the file."""
    options.print_json({name: record[name] for name in record if name not in _LONG})


def _nothing(record: dict[str, Any]) -> None:
    pass


@contextlib.asynccontextmanager
async def _bar(
    fleet: Fleet, runner: Runner, *, wanted: bool
) -> AsyncGenerator[Callable[[], None], None]:
    """The bar while the tasks run, if a person looks; gives what leaves it as it is."""
    if not wanted or not style.person_looks(sys.stderr):
        yield lambda: None
        return
    from handrail.fleet.progress_bar import ProgressBar

    bar = ProgressBar(runner.counts.total)
    drawing = asyncio.ensure_future(_draw(bar, fleet, runner.counts))
    try:
        yield bar.stop
        drawing.cancel()
        await asyncio.wait((drawing,))
        bar.show(**_shown(runner.counts))
    finally:
        drawing.cancel()
        bar.stop()


async def _draw(bar: ProgressBar, fleet: Fleet, counts: Counts) -> None:
    nodes: int | None = None
    looked = float("-inf")
    loop = asyncio.get_running_loop()
    while True:
        if loop.time() - looked >= _LOOKED:
            with contextlib.suppress(HandrailError):
                found = (await fleet.status()).nodes
                nodes = sum(node.state == "ready" for node in found)
            looked = loop.time()
        bar.show(**_shown(counts), nodes=nodes)
        await asyncio.sleep(_DRAWN)


def _shown(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in ("ok", "failed", "lost", "running", "skipped")}


def _told(args: argparse.Namespace, results: ResultsFile, counts: Counts) -> int:
    """Print how it went; the exit code."""
    numbers = {
        name: getattr(counts, name) for name in ("ok", "failed", "lost", "skipped", "adopted")
    }
    if args.json:
        options.print_json({**numbers, "results": results.path})
    else:
        said = ", ".join(f"{number} {name}" for name, number in numbers.items())
        print(f"{counted(counts.total, 'task')}: {said}; results in {results.path}")
    return SOME_LOST if counts.lost else SOME_FAILED if counts.failed else 0
