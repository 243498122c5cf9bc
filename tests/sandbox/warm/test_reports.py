"""What the end of a sandbox changes is noticed before the next command comes."""

from __future__ import annotations

from pathlib import Path

from tests.sandbox.warm.conftest import Warm
from tests.support.eventually import eventually_so


async def test_many_names_that_went_are_noticed_while_no_command_waits(
    warm: Warm, folder: Path
) -> None:
    for number in range(32):  # so many directories are watched
        (folder / f"repository{number}/.git/objects").mkdir(parents=True)
    async with warm(folder) as warmed:
        await warmed.wait(1)
        for _ in range(3):
            await warmed.ws.run("true")
        (line,) = warmed.pool._lines.values()
        trees = line.plan._trees()
        assert all(tree.watched for tree in trees)
        watches = [tree._watch for tree in trees if tree._watch is not None]
        await eventually_so(lambda: all(w.pending() == 0 for w in watches), "they are taken")
        assert not (folder / "repository3/.codex").exists()
        (folder / "repository3/.codex").mkdir()
        assert not line.plan.still_true()
