"""Our server beside its peer, and what we wanted to reach: what ``make bench`` runs.

compare.py [--quick] [--only A,B] [--no-limits] [--strict] [--html FILE]
It prints tables and writes the same with bars as one HTML page.
The peer is the Codex binary: $CODEX, or an npm package kept in the user's cache folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from page import page
from peer_binary import NoPeer, cache_folder, find_peer, version
from targets import OURS, PEER, Verdict, judge

HERE = Path(__file__).resolve().parent
LISTEN = "ws://127.0.0.1:{port}"


def our_server() -> str:
    """The command of this project's own server, installed beside the Python that runs this."""
    # Not resolved: in a virtual environment the interpreter is a link out of it.
    program = Path(sys.executable).parent / "handrail"
    if not os.access(program, os.X_OK):
        raise SystemExit(f"there is no handrail beside {sys.executable}: install the project first")
    return f"{shlex.quote(str(program))} serve --listen {LISTEN}"


def peer_server() -> str | None:
    """The command of the peer, or None after one sentence on why there is none."""
    try:
        binary = find_peer()
    except NoPeer as e:
        print(f"Without the peer: {e}.", flush=True)
        return None
    print(f"The peer is {version(binary)}.", flush=True)
    return f"{shlex.quote(str(binary))} exec-server --listen {LISTEN}"


def run_bench(options: argparse.Namespace, servers: dict[str, str], result: Path) -> int:
    """Run bench.py, which prints the tables; gives its exit code."""
    command = [sys.executable, str(HERE / "bench.py"), "--json", str(result)]
    command += ["--state", str(options.state), "--skip", options.skip]
    command += ["--reps", str(options.reps), "--limit", str(options.limit)]
    for name, server in servers.items():
        command += ["--server", f"{name}={server}"]
        command += ["--version", f"{name}={version(Path(shlex.split(server)[0]))}"]
    if options.only:
        command += ["--only", options.only]
    if options.python:
        command += ["--python", options.python]
    for flag in ("quick", "no_limits", "verbose"):
        if getattr(options, flag):
            command.append("--" + flag.replace("_", "-"))
    return subprocess.run(command).returncode


def print_verdicts(result: Path) -> bool:
    """The list of targets; False if one was missed."""
    measured = json.loads(result.read_text())
    print("\n### targets\n")
    if measured["meta"]["quick"]:
        print("A quick run: sizes are small, so read nothing into a near miss.\n")
    verdicts = list(judge(measured["results"]))
    for verdict, sentence in verdicts:
        print(f"- {verdict.value:6} {sentence}")
    return all(verdict is not Verdict.MISSED for verdict, _ in verdicts)


def parse_options() -> argparse.Namespace:
    """The command line; what is not ours goes to bench.py, where it is explained."""
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--strict", action="store_true", help="exit with 1 if a target was missed")
    ap.add_argument("--ours", metavar="CMD", help="another command for our server, with {port}")
    ap.add_argument("--json", type=Path, metavar="FILE", help="keep all figures there")
    ap.add_argument("--html", type=Path, metavar="FILE", default=Path("build/bench.html"))
    ap.add_argument("--state", type=Path, metavar="DIR", default=cache_folder() / "bench")
    passed = ap.add_argument_group("passed on to bench.py")
    passed.add_argument("--quick", action="store_true", help="small sizes, one repetition")
    passed.add_argument("--only", metavar="A,B", help="only these workloads")
    passed.add_argument("--skip", default="", metavar="A,B", help="all but these workloads")
    passed.add_argument("--no-limits", action="store_true", help="do not measure the floor")
    passed.add_argument("--reps", type=float, default=1.0, help="factor on the repetitions")
    passed.add_argument("--limit", type=float, default=120, help="seconds per repetition")
    passed.add_argument("--python", metavar="PATH", help="the Python that children run")
    passed.add_argument("--verbose", action="store_true", help="print tracebacks")
    return ap.parse_args()


def main() -> int:
    """Find both servers, measure, judge."""
    options = parse_options()
    ours = options.ours or our_server()
    peer = peer_server()
    options.state.mkdir(parents=True, exist_ok=True)
    options.html.parent.mkdir(parents=True, exist_ok=True)
    result = options.json or options.state / "result.json"
    result.unlink(missing_ok=True)
    # The peer goes first: the tables show ratios to the first server.
    servers = {PEER: peer, OURS: ours} if peer else {OURS: ours}
    code = run_bench(options, servers, result)
    if code:
        return code
    reached = print_verdicts(result)
    measured = json.loads(result.read_text())
    options.html.write_text(page(measured["meta"], measured["results"]))
    print(f"\nThe page of this run: {options.html}")
    return 1 if options.strict and not reached else 0


if __name__ == "__main__":
    sys.exit(main())
