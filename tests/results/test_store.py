"""The directory of stored results: continued, found, swept."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from msgspec import structs

from handrail.errors import UsageError
from handrail.results import store
from handrail.results.record import Record
from handrail.results.store import About, Exit, ResultFile
from handrail.server_settings import ResultBounds

ABOUT = About(session="s", owner="uid:0", process_id="p", argv=["true"], started_at=1.5)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))


def record(number: int, last: int | None = None, data: bytes = b"abc") -> Record:
    return Record(number, last or number, len(data), 0, 1.0, 0, data)


def test_it_goes_on_behind_what_is_complete() -> None:
    file = ResultFile(ABOUT)
    with pytest.raises(BlockingIOError):
        ResultFile(ABOUT)
    file.write([record(1), record(2)])
    end = file.stored
    file.write([record(3, last=4)])  # it belongs together with another, which is missing
    file.close()
    with open(os.path.join(file.path, "output"), "ab") as output:
        output.write(b"\1\2\3")
    again = ResultFile(ABOUT)
    assert (again.last, again.seen, again.stored) == (2, 6, end)
    again.write([record(3)])
    again.write_about(structs.replace(ABOUT, exit=Exit("exited", 0)), sync=True)
    again.close()
    found = store.find("s", "p")
    assert found is not None
    assert found.about.exit == Exit("exited", 0)
    assert not found.in_use
    assert store.find("s", "q") is None
    assert found.remove() == again.stored + again.beside
    assert list(store.every(unfinished=True)) == []


def test_another_process_of_the_same_id_begins_anew() -> None:
    file = ResultFile(ABOUT)
    file.write([record(1)])
    file.close()
    again = ResultFile(structs.replace(ABOUT, started_at=2.5))
    assert (again.last, again.stored) == (0, 0)
    again.close()


def test_what_is_old_or_too_much_goes_and_what_is_written_stays() -> None:
    now = time.time()
    files = []
    for number in range(4):
        file = ResultFile(structs.replace(ABOUT, process_id=str(number)))
        file.write([record(1, data=bytes(1000))])
        for name in ("about", "output"):
            os.utime(os.path.join(file.path, name), (now - 100 + number, now - 100 + number))
        files.append(file)
    for file in files[1:]:
        file.close()
    size = files[0].stored + files[0].beside
    assert store.sweep(ResultBounds(total=3 * size)) == 3 * size
    assert sorted(one.about.process_id for one in store.every()) == ["0", "2", "3"]
    assert store.sweep(ResultBounds(keep=97.5), now=now) == 2 * size
    assert sorted(one.about.process_id for one in store.every()) == ["0", "3"]
    files[0].close()
    assert store.sweep(ResultBounds(), now=now + 8 * 86_400) == 0
    assert list(store.every(unfinished=True)) == []


def test_what_is_known_beside_the_output_counts() -> None:
    """A client says what that is: arguments, labels."""
    long = structs.replace(ABOUT, argv=["x" * 100_000])
    for number in range(3):
        ResultFile(structs.replace(long, process_id=str(number))).close()
    left = store.sweep(ResultBounds(total=250_000))
    assert 200_000 < left < 250_000
    assert len(list(store.every())) == 2


def test_bounds_of_the_environment() -> None:
    given = {"HANDRAIL_RESULTS_KEEP": "3d", "HANDRAIL_RESULTS_EACH": "1MiB"}
    assert ResultBounds.from_environment(given) == ResultBounds(3 * 86_400.0, 1 << 20)
    with pytest.raises(UsageError, match="HANDRAIL_RESULTS_TOTAL: 'much' is no size"):
        ResultBounds.from_environment({"HANDRAIL_RESULTS_TOTAL": "much"})
