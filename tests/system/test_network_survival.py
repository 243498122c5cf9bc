"""Downloads through the porter, rules and open questions survive kills of the server.

``HANDRAIL_NETWORK_KILLS=50`` makes it the long run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.processes import nothing_left
from tests.system.network_survival import NetworkRig, origin, survive

KILLS = int(os.environ.get("HANDRAIL_NETWORK_KILLS", "4"))

pytestmark = pytest.mark.fault


def test_downloads_rules_and_questions_survive_kills(ws: Path, tmp_path: Path) -> None:
    with nothing_left(), origin() as far:
        rig = NetworkRig(tmp_path / "state", seed=14)
        try:
            result = survive(rig, far, ws, KILLS)
        finally:
            rig.stop()
    assert result["kills"] == result["questions asked again"] == KILLS
    assert result["probes without a server"] >= KILLS
