"""When an event loop may change something on a disk."""

from __future__ import annotations

from pathlib import Path

from handrail.filesystem import calm_disks
from handrail.filesystem.calm_disks import CalmDisks


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _account(place: Path, percent: float) -> None:
    place.write_text(f"some avg10={percent:.2f} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00\n")


def test_programs_that_wait_for_disks_make_them_busy(tmp_path: Path) -> None:
    clock, account = Clock(), tmp_path / "io"
    _account(account, 0.0)
    disks = CalmDisks(str(account), clock)
    assert disks
    _account(account, calm_disks.MOST_WAITING + 1)
    clock.now += 1
    assert not disks
    _account(account, calm_disks.MOST_WAITING - 1)
    clock.now += 1
    assert disks


def test_a_change_that_took_long_is_the_last_for_a_while(tmp_path: Path) -> None:
    clock, account = Clock(), tmp_path / "io"
    _account(account, 0.0)
    disks = CalmDisks(str(account), clock)
    disks.took(calm_disks.LONG / 2)
    assert disks
    disks.took(calm_disks.LONG * 2)
    assert not disks
    clock.now += calm_disks.REST - 0.1
    assert not disks
    clock.now += 0.2
    assert disks


def test_without_an_account_no_disk_is_calm(tmp_path: Path) -> None:
    assert not CalmDisks(str(tmp_path / "missing"))
    (tmp_path / "strange").write_text("nothing of that kind")
    assert not CalmDisks(str(tmp_path / "strange"))
