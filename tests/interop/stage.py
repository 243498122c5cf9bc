"""One turn of the client with a script, in a room of its own; nobody is left when it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.codex import MODEL, Turn, run_turn, write_config
from tests.interop.model import Model
from tests.interop.script import LAST_WORD, Script, Step
from tests.wire.servers import MARK, Household


@dataclass(frozen=True)
class Stage:
    """The client, and a room for one turn."""

    codex: str
    room: Path

    @property
    def home(self) -> Path:
        """Where the client's configuration is."""
        return self.room / "home"

    @property
    def workspace(self) -> Path:
        """Where the client is started."""
        return self.room / "project" / "work"

    @property
    def outside(self) -> Path:
        """A directory beside the workspace."""
        return self.room / "project" / "outside"

    def set_up(
        self,
        steps: Sequence[Step],
        settings: Mapping[str, Any] = MODEL,
        config: str = "",
        make: Callable[[Script], Model] = Model,
    ) -> Model:
        """A model that follows the steps, and a client that knows it and nothing else."""
        model = make(Script(steps))
        for directory in (self.home, self.workspace, self.outside):
            directory.mkdir(parents=True)
        write_config(self.home, model.base_url, settings, config)
        return model

    def play(
        self,
        model: Model,
        environment: Mapping[str, str],
        sandbox: str = "danger-full-access",
        limit: float = 60.0,
    ) -> Turn:
        """Run the client to its end, which must be the end of the script."""
        household = Household()
        leftovers: list[str] = []
        with model.serving(), household.cleared(leftovers):
            marked = {**environment, MARK: household.mark}
            turn = run_turn(
                self.codex, self.home, self.workspace, marked, "-s", sandbox, limit=limit
            )
        assert leftovers == [], "the client, or a server that it started, left somebody behind"
        assert model.errors == [], turn.stderr
        assert turn.exit_code == 0, turn.stderr
        assert model.script.finished, turn.stderr
        assert [item["text"] for item in turn.items("agent_message")] == [LAST_WORD]
        return turn
