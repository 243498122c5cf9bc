"""Repeats tests under load, as root and as an ordinary user, and counts what passed.

    python tests/system/repeat.py [--rounds N] [--minutes M] [--load K] [-n WORKERS] [NODE ...]

Without node ids it takes every test with the marker ``fault``.  In each round pytest runs all of
them once as root and once as an ordinary user (as the caller alone, if that is not root), while K
processes of this program keep CPUs busy.  It looks after each run whether those are still alive,
and ends them in the end.  It stops at the first failure, or when a run would have no load; the
table of what passed and ran is printed in any case.  Exit code: 0 all passed, 1 a test failed or
none ran, 2 the load was not there.

The ordinary user is one without any privilege (``setpriv``).  Where the interpreter lies in a
directory that is closed to others, such as root's home, the user gets a mount namespace in which
that directory holds nothing but the way to the interpreter.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
UID = 1000
#: Ends by itself when this program was killed.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n  sum(range(10**6))"
#: Gives ``$1``, a directory closed to others, the one entry ``$2`` and shows it to everyone; ``$3``
#: is an empty directory.  What follows is run.
OPENED = """
set -e
mount --bind "$1/$2" "$3"
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/$2"
mount --bind "$3" "$1/$2"
shift 3
exec "$@"
"""


class NoLoad(Exception):
    """A process that keeps a CPU busy has ended."""


class Load:
    """Processes of ours that do nothing but use CPUs."""

    def __init__(self, count: int) -> None:
        argv = [sys.executable, "-I", "-S", "-c", BUSY]
        self._busy = [subprocess.Popen(argv, stdin=subprocess.DEVNULL) for _ in range(count)]

    def check(self) -> None:
        """Raise NoLoad unless all of them run."""
        for one in self._busy:
            if one.poll() is not None:
                raise NoLoad(f"the load, process {one.pid}, has ended with {one.returncode}")

    def end(self) -> None:
        for one in self._busy:
            one.kill()
            one.wait()


class Counts:
    """How often each test ran and passed, by user."""

    def __init__(self) -> None:
        self.ran: Counter[tuple[str, str]] = Counter()
        self.passed: Counter[tuple[str, str]] = Counter()
        self.skipped: Counter[tuple[str, str]] = Counter()

    def add(self, user: str, report: Path) -> None:
        """Take in what pytest has reported of one run."""
        for case in ET.parse(report).iter("testcase"):
            name = (f"{case.get('classname', '')}::{case.get('name', '')}", user)
            outcomes = {child.tag for child in case}
            if "skipped" in outcomes:
                self.skipped[name] += 1
                continue
            self.ran[name] += 1
            self.passed[name] += not outcomes & {"failure", "error"}

    def print(self) -> None:
        names = sorted(self.ran.keys() | self.skipped.keys())
        print("passed / run  user      test")
        for name in names:
            count = f"{self.passed[name]} / {self.ran[name]}" if self.ran[name] else "skipped"
            print(f"{count:>12}  {name[1]:<8}  {name[0]}")
        for user in sorted({user for _, user in names}):
            ran, passed, skipped = (
                sum(number for name, number in counter.items() if name[1] == user)
                for counter in (self.ran, self.passed, self.skipped)
            )
            print(f"{user}: {passed} of {ran} passed, {skipped} skipped", flush=True)


def marked() -> list[str]:
    """The files with tests of faults; to collect all others would take longer than to run these."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "mark.fault" in file.read_text()]


def prefix_of(user: str, work: Path) -> list[str]:
    """What to put before a command so that this user runs it."""
    if user == "root" or os.getuid() != 0:
        return []
    becoming = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    closed = next(
        (
            parent
            for path in (Path(sys.executable).absolute(), Path(sys.executable).resolve())
            for parent in reversed(path.parents)
            if not parent.stat().st_mode & 0o001
        ),
        None,
    )
    if closed is None:
        return becoming
    held = work / "interpreter"
    held.mkdir(exist_ok=True)
    entry = Path(sys.executable).resolve().relative_to(closed).parts[0]
    unshared = ["unshare", "--mount", "sh", "-c", OPENED, "sh"]
    return [*unshared, str(closed), entry, str(held), *becoming]


def run_once(user: str, work: Path, words: Sequence[str], counts: Counts) -> bool:
    """One run of pytest as a user; whether everything passed."""
    home = work / user
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700)
    if user != "root" and os.getuid() == 0:
        os.chown(home, UID, UID)
    env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    env |= {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    env["HYPOTHESIS_STORAGE_DIRECTORY"] = str(home / "hypothesis")
    report = home / "report.xml"
    own = ["-q", "-p", "no:cacheprovider", f"--basetemp={home}/t", f"--junitxml={report}"]
    own += ["--timeout=300"]  # a busy machine takes its time; what hangs hangs for longer
    began = time.monotonic()
    done = subprocess.run(
        [*prefix_of(user, work), sys.executable, "-m", "pytest", *own, *words],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = done.stdout.strip().rpartition("\n")[2]
    print(f"{user}: {said} (whole run {time.monotonic() - began:.0f} s)", flush=True)
    if report.exists():
        counts.add(user, report)
    if done.returncode != 0:
        print(done.stdout, flush=True)
    return done.returncode == 0


@contextmanager
def loaded(count: int) -> Iterator[Load]:
    load = Load(count)
    try:
        yield load
    finally:
        load.end()


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, help="begin no round after this long")
    parser.add_argument("--load", type=int, default=2, help="busy processes (default: 2)")
    parser.add_argument("--users", default="root,ordinary", help="which of them (default: both)")
    parser.add_argument("-n", dest="workers", default="2", help="workers of pytest (default: 2)")
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="default: all marked `fault`")
    args = parser.parse_args(words)
    users = args.users.split(",") if os.getuid() == 0 else ["ordinary"]
    selected = args.nodes or ["-m", "fault", *marked()]
    options = ["-n", args.workers, "--max-worker-restart", "0"]
    until = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    counts = Counts()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="hr", ignore_cleanup_errors=True) as name:
        work = Path(name)
        work.chmod(0o711)  # each user's directory is closed
        try:
            with loaded(args.load) as load:
                for number in range(args.rounds):
                    if until is not None and time.monotonic() > until:
                        break
                    print(f"round {number + 1}", flush=True)
                    for user in users:
                        passed = run_once(user, work, [*options, *selected], counts)
                        load.check()
                        if not passed:
                            return 1
        except NoLoad as error:
            print(error)
            return 2
        finally:
            counts.print()
    return 0 if counts.ran else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
