"""What the front door costs beside the bare thing: medians and best of interleaved rounds.

    python bench/front_door.py

Prints one line a figure: what is measured, the bare thing, the ratio, and the limit it is to keep.
A command line may take two starts of Python and the spawn.  What the spawn of a contained command
is can be read in two ways, so both are printed: the bare command alone, and bare bwrap around it.
"""

from __future__ import annotations

import compileall
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import handrail
from handrail import Workspace

ROUNDS = 60
PYTHON = sys.executable


def measure(work: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Milliseconds of each, taken in turns so that a busy machine is busy for all of them."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, one in work.items():
            began = time.perf_counter()
            one()
            times[name].append((time.perf_counter() - began) * 1000)
    return times


def show(what: str, ours: list[float], bare: list[float], limit: str) -> None:
    middle, best = statistics.median(ours), min(ours)
    other, other_best = statistics.median(bare), min(bare)
    print(
        f"{what:34} median {middle:7.2f} ms ({middle / other:4.2f} x)"
        f"  best {best:7.2f} ms ({best / other_best:4.2f} x)  limit {limit}"
    )


def program(*argv: str, cwd: str | None = None) -> Callable[[], object]:
    def run() -> object:
        return subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True)

    return run


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        bwrap = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        bwrap += ["--bind", directory, directory, "--unshare-all", "--die-with-parent"]
        bwrap += ["--new-session", "--cap-drop", "ALL", "true"]
        with Workspace(directory, sandbox="off") as plain, Workspace(directory) as held:
            plain.run("true")
            held.run("true")
            gc.collect()
            times = measure(
                {
                    "bare": program("true"),
                    "run": lambda: plain.run("true"),
                    "bwrap": program(*bwrap),
                    "held": lambda: held.run("true"),
                }
            )
            show("ws.run('true'), no sandbox", times["run"], times["bare"], "3 x subprocess.run")
            show("ws.run('true'), sandboxed", times["held"], times["bwrap"], "2 x bare bwrap")
            lines(plain)
            sessions(plain, held)
            files(plain, held)
            trees(plain, held, directory)
            leaks(plain)
        commands(directory, bwrap)


def lines(ws: Workspace) -> None:
    """A million lines, beside a pipe that is read as text."""
    seq = ["seq", "1000000"]

    def bare() -> None:
        with subprocess.Popen(seq, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert sum(1 for _ in process.stdout) == 1_000_000

    def ours() -> None:
        assert sum(1 for _ in ws.start(seq).lines()) == 1_000_000

    times = measure({"bare": bare, "lines": ours}, rounds=7)
    show("p.lines(), 1,000,000 lines", times["lines"], times["bare"], "2 x reading the pipe")


def sessions(plain: Workspace, held: Workspace) -> None:
    """A command of a shell session, for which no process is started."""
    with plain.shell() as near, held.shell() as inside:
        work = {"plain": lambda: near.run("true"), "held": lambda: inside.run("true")}
        times = measure(work, rounds=200)
    for name, what in (("plain", "no sandbox"), ("held", "sandboxed")):
        middle, best = statistics.median(times[name]), min(times[name])
        what = f"shell.run('true'), {what}"
        print(f"{what:34} median {middle:7.2f} ms           best {best:7.2f} ms  limit 1.5 ms")


def files(plain: Workspace, held: Workspace) -> None:
    """Small files, warm: the helper in the sandbox beside calls of this process."""
    for ws in (plain, held):
        ws.files.write("small", "x" * 1000)
        ws.files.read("small")
    for what, call in (
        ("write", lambda ws: ws.files.write("small", "x" * 1000)),
        ("read", lambda ws: ws.files.read("small")),
        ("stat", lambda ws: ws.files.stat("small")),
    ):
        work = {"plain": partial(call, plain), "held": partial(call, held)}
        times = measure(work, rounds=200)
        show(f"ws.files.{what}, sandboxed", times["held"], times["plain"], "none")


def trees(plain: Workspace, held: Workspace, directory: str, rounds: int = 5) -> None:
    """10,000 small files, beside tar into tar; bench/trees.py has the same over ssh."""
    source, target = os.path.join(directory, "source"), os.path.join(directory, "target")
    for number in range(10_000):
        place = os.path.join(source, f"d{number % 100}")
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, f"f{number}"), "wb") as file:
            file.write(b"%d\n" % number * 150)
    tar = f"mkdir {target}; tar c -C {source} . | tar x -C {target}"

    work: dict[str, Callable[[], object]] = {"tar": program("sh", "-c", tar)}
    for what, ws in (("no sandbox", plain), ("sandboxed", held)):
        work[f"upload, 10,000 files, {what}"] = partial(ws.files.upload, source, target)
        work[f"download, 10,000 files, {what}"] = partial(ws.files.download, source, target)
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, one in work.items():
            began = time.perf_counter()
            one()
            times[name].append((time.perf_counter() - began) * 1000)
            shutil.rmtree(target)
    for name in list(work)[1:]:
        show(name, times[name], times["tar"], "none")
    shutil.rmtree(source)


def leaks(ws: Workspace) -> None:
    """1,000 runs in a row."""
    before = len(os.listdir("/proc/self/fd")), resident()
    for _ in range(1000):
        ws.run("echo hello")
    after = len(os.listdir("/proc/self/fd")), resident()
    print(f"1000 runs: descriptors {before[0]} -> {after[0]}, RSS {before[1]} -> {after[1]} KiB")


def resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def commands(directory: str, bwrap: list[str]) -> None:
    script = os.path.join(os.path.dirname(PYTHON), "handrail")
    # As pip and the first start leave it, also where PYTHONDONTWRITEBYTECODE is set.
    compileall.compile_dir(os.path.dirname(handrail.__file__), quiet=2)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([script, "run", "--", "true"], cwd=directory, env=env, check=True)
    times = measure(
        {
            "pass": program(PYTHON, "-c", "pass"),
            "import": program(PYTHON, "-c", "import handrail"),
            "open": program(script, "run", "--sandbox", "off", "--", "true", cwd=directory),
            "held": program(script, "run", "--", "true", cwd=directory),
            "contained": program(script, "sandbox", "--", "true", cwd=directory),
            "true": program("true"),
            "bwrap": program(*bwrap),
        },
        rounds=40,
    )
    imports = [a - b for a, b in zip(times["import"], times["pass"], strict=True)]
    print(f"import handrail: {statistics.median(imports):.1f} ms over `python -c pass`, limit 60")
    for name, what in (
        ("open", "handrail run --sandbox off -- true"),
        ("held", "handrail run -- true"),
        ("contained", "handrail sandbox -- true"),
    ):
        for spawn in ("true",) if name == "open" else ("true", "bwrap"):
            limit = [2 * a + b for a, b in zip(times["pass"], times[spawn], strict=True)]
            show(what, times[name], limit, f"1 x (two starts of python and {spawn})")


if __name__ == "__main__":
    main()
