"""Throw mutated inputs at the parsers for a while.

run.py [TARGET ...] [--seconds 10] [--seed 0] [--crashes DIR]      all targets by default
run.py TARGET --replay FILE                                        one input, with its traceback

Inputs that raise, or take too long, are kept in the folder of crashes.  Where atheris can be
imported it does the work, guided by coverage; else a loop of our own does, guided by nothing
but the corpus.  Exit code 1 if something was found.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType

from guard import EvadedRule
from mutations import LARGEST, Mutator
from targets import TARGETS, Target

HERE = Path(__file__).resolve().parent


class TooSlow(BaseException):
    """Not an Exception, so that no target can take it for a refusal."""


def give_up(_signal: int, _frame: FrameType | None) -> None:
    raise TooSlow("no answer in time")


class Findings:
    """Crashing inputs on disk, one for each place that raised."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: set[str] = set()

    def add(self, data: bytes, error: BaseException) -> None:
        """Keep an input, unless another one crashed at the same place."""
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-2] if isinstance(error, TooSlow) else frames[-1]  # -1 is give_up
        place = f"{type(error).__name__} at {last.filename}:{last.lineno}"
        if isinstance(error, EvadedRule):
            place = "EvadedRule"  # each is a cause of its own
        elif place in self.places:
            return
        self.places.add(f"{place} {len(self.places)}" if place == "EvadedRule" else place)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / hashlib.sha256(data).hexdigest()[:16]
        path.write_bytes(data)
        print(f"  {place}: {error}"[:300])
        print(f"  kept as {path}", flush=True)


def read_corpus(folder: Path) -> list[bytes]:
    """The seeds of a target, in a fixed order."""
    return [path.read_bytes() for path in sorted(folder.glob("*")) if path.is_file()]


def fuzz(target: Target, corpus: list[bytes], seconds: float, seed: int, found: Findings) -> int:
    """Our own loop: every seed as it is, then mutations of them; gives how many were run."""
    mutator = Mutator(corpus, target.tokens, random.Random(seed))
    executions = 0
    before = signal.signal(signal.SIGALRM, give_up)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline or executions < len(corpus):
            data = corpus[executions] if executions < len(corpus) else mutator.next()
            signal.setitimer(signal.ITIMER_REAL, target.patience)
            try:
                target.run(data)
                signal.setitimer(signal.ITIMER_REAL, 0)  # the time of the next input is not its own
            except (Exception, TooSlow) as e:  # noqa: BLE001 - whatever gets out is a finding
                signal.setitimer(signal.ITIMER_REAL, 0)
                found.add(data, e)
            executions += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return executions


def fuzz_with_atheris(name: str, options: argparse.Namespace, scratch: Path) -> None:
    """One target under atheris, which ends the process it runs in."""
    import atheris

    target = TARGETS[name]
    with atheris.instrument_imports(include=["handrail"]):
        target.run(b"")  # targets import what they test
    tokens = scratch / "tokens"
    tokens.write_text("".join(f'"{escaped(token)}"\n' for token in target.tokens))
    # New inputs go to the first folder: not into the seeds, which are part of the project.
    inputs = scratch / "inputs"
    inputs.mkdir()
    crashes = options.crashes / name
    crashes.mkdir(parents=True, exist_ok=True)
    arguments = [
        f"-max_total_time={max(1, round(options.seconds))}",
        f"-seed={options.seed + 1}",  # 0 would mean: any
        f"-max_len={LARGEST}",
        f"-timeout={round(target.patience)}",
        f"-dict={tokens}",
        f"-artifact_prefix={crashes}/",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    folders = [str(inputs), str(options.corpus / name)]
    atheris.Setup([sys.argv[0], *arguments, *folders], target.run)
    atheris.Fuzz()


def escaped(token: bytes) -> str:
    """A token as the dictionaries of libFuzzer have it."""
    return "".join(f"\\x{byte:02x}" for byte in token)


def run_target(name: str, options: argparse.Namespace) -> bool:
    """Fuzz one target and say how fast it went; True if something was found."""
    if options.atheris:
        return run_under_atheris(name, options)
    corpus = read_corpus(options.corpus / name)
    found = Findings(options.crashes / name)
    begin = time.monotonic()
    executions = fuzz(TARGETS[name], corpus, options.seconds, options.seed, found)
    speed = executions / (time.monotonic() - begin)
    crashes = len(found.places)
    print(f"{name}: {executions} executions, {speed:.0f}/s, {len(corpus)} seeds, {crashes} crashes")
    if (say := TARGETS[name].report) is not None:
        print(f"  {say()}")
    return bool(crashes)


def run_under_atheris(name: str, options: argparse.Namespace) -> bool:
    """In a process of its own, for atheris does not come back; it says itself how it went."""
    print(f"{name}:", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = (name, options, Path(scratch))
        spawned = multiprocessing.get_context("spawn")
        process = spawned.Process(target=fuzz_with_atheris, args=arguments)
        process.start()
        process.join()
    return process.exitcode != 0


def has_atheris() -> bool:
    """Is the better fuzzer there?"""
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


def parse_options() -> argparse.Namespace:
    """The command line."""
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    ap.add_argument("--seconds", type=float, default=10.0, help="for each target")
    ap.add_argument("--seed", type=int, default=0, help="the same seed gives the same inputs")
    ap.add_argument("--corpus", type=Path, default=HERE / "corpus", metavar="DIR")
    ap.add_argument("--crashes", type=Path, default=HERE / "crashes", metavar="DIR")
    ap.add_argument("--own-loop", action="store_true", help="do not use atheris")
    ap.add_argument("--replay", type=Path, metavar="FILE", help="run one input")
    options = ap.parse_args()
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        ap.error(f"no such target: {', '.join(sorted(unknown))}")
    if options.replay and len(options.targets) != 1:
        ap.error("--replay needs one target")
    options.atheris = has_atheris() and not options.own_loop
    return options


def main() -> int:
    """Run what was asked for."""
    options = parse_options()
    if options.replay:
        TARGETS[options.targets[0]].run(options.replay.read_bytes())
        return 0
    found = [run_target(name, options) for name in options.targets or TARGETS]
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main())
