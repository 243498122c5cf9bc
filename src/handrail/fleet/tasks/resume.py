"""What a resumed run does with each task, by its results, its journal and the fleet.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from handrail.fleet.tasks.journal import Begun
from handrail.fleet.tasks.results_file import Known
from handrail.fleet.tasks.task_file import Task, TasksRefused


@dataclass(slots=True)
class Plan:
    """What to do with each task; ``adopt`` has the workspaces in which tasks were left."""

    skip: list[Task] = field(default_factory=list)
    run: list[Task] = field(default_factory=list)
    adopt: list[tuple[Task, str]] = field(default_factory=list)
    lost: list[Task] = field(default_factory=list)


def check(tasks: Iterable[Task], known: Mapping[str, Known], begun: Mapping[str, Begun]) -> None:
    """Refuse tasks that are not those of the results and the journal; raises TasksRefused."""
    for task in tasks:
        before = known.get(task.id) or begun.get(task.id)
        if before is not None and before.digest != task.digest:
            done = "has a result" if task.id in known else "has begun"
            raise TasksRefused(
                f"task {task.id} {done}, and it, its command or the template was another then; give"
                " the changed task another id, or --results another file"
            )


def plan(
    tasks: Iterable[Task],
    known: Mapping[str, Known],
    begun: Mapping[str, Begun],
    found: Collection[str],
) -> Plan:
    """The plan; ``found`` has the ids of workspaces that are still there."""
    made = Plan()
    for task in tasks:
        before = begun.get(task.id)
        if task.id in known:
            made.skip.append(task)
        elif before is None:
            made.run.append(task)
        elif before.workspaces[-1][1] in found:
            made.adopt.append((task, before.workspaces[-1][1]))
        elif task.idempotent:
            made.run.append(task)
        else:
            made.lost.append(task)
    return made
