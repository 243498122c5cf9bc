"""Run recorded cases: ``python tests/conformance/run.py FILE.jsonl...``

A file is recognised by its name, wherever it lies: ``apply_patch.jsonl``, and also
``apply_patch-more.jsonl``.  Every line is one case.  A failure is printed with what was expected
and what came; the last line is ``N passed, N failed``.  Without files it runs those in ``cases``.
Cases of the sandbox and of the wire go through a server of ours that is started for them.

Exit code: 0 all passed, 1 something failed or a file could not be run, 2 wrong usage.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE.parents[1]) not in sys.path:
    sys.path.insert(0, str(HERE.parents[1]))

from tests.conformance.comparison import NotRunError  # noqa: E402 (needs the path above)

Case = dict[str, Any]
#: None if a case holds, else what does not.
Check = Callable[[Case], str | None]

#: File -> module of this package; the function has the file's name, with ``_`` for ``-``.
MODULES = {
    "apply_patch": "patches",
    "apply_patch_intercept": "patches",
    "dangerous_commands": "policy",
    "denial_heuristic": "orchestrator",
    "execpolicy_check": "policy",
    "head_tail": "unified",
    "network-decisions": "network",
    "orchestrator_decisions": "orchestrator",
    "safe_commands": "policy",
    "sandbox-attacks": "attacks",
    "shell_split": "policy",
    "truncation": "unified",
    "unified_exec": "unified",
}
#: Cases on the wire have a runner of their own, for any server; it is called for ours.
TRANSCRIPTS = "exec-server-transcripts"
#: Attacks on a managed network run one after the other in a network of their own.
NETWORK = "network-attacks"
KNOWN = (*MODULES, TRANSCRIPTS, NETWORK)
#: Key of what stands for a line that holds no case; its value says why.
UNREADABLE = "unreadable line"


def family(path: Path) -> str | None:
    """Which kind of cases a file holds, by its name."""
    names = sorted(KNOWN, key=len, reverse=True)
    return next((name for name in names if path.stem.startswith(name)), None)


def load(path: Path) -> Iterator[tuple[str, Case]]:
    """The cases of a file with their names."""
    # Not ``splitlines``: a JSON string may hold U+2028 or U+0085 as it is.
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if line.strip():
            case = _case(line)
            yield str(case.get("id") or case.get("name") or f"line {number}"), case


def _case(line: bytes) -> Case:
    try:
        case = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {UNREADABLE: str(error)}
    return case if isinstance(case, dict) else {UNREADABLE: "not an object"}


def checker(name: str) -> Check:
    """The function that runs cases of this family."""
    module = importlib.import_module(f"tests.conformance.{MODULES[name]}")
    check: Check = getattr(module, name.replace("-", "_"))
    return check


def outcome(check: Check, case: Case) -> str | None:
    """None if the case holds, else what does not; a crash is a failure like any other."""
    if UNREADABLE in case:
        return f"{UNREADABLE}: {case[UNREADABLE]}"
    try:
        return check(case)
    except NotRunError:
        raise
    except Exception:  # noqa: BLE001 - whatever it is, the other cases are still to be run
        return traceback.format_exc()


def run_file(path: Path) -> tuple[int, int]:
    """Run one file and print what fails; how many passed and failed."""
    name = family(path)
    if name is None:
        print(f"{path}: unknown; known names are {', '.join(sorted(KNOWN))}")
        return 0, 1
    if name == TRANSCRIPTS:
        return replay(path)
    if name == NETWORK:
        return network_attacks(path)
    try:
        check = checker(name)
    except ModuleNotFoundError as error:
        count = sum(1 for _ in load(path))
        print(f"{path.name}: nothing here runs these cases ({error})")
        return 0, count
    passed = failed = 0
    for case_id, case in load(path):
        try:
            wrong = outcome(check, case)
        except NotRunError as reason:
            print(f"not run {path.name} {case_id}: {reason}")
            continue
        if wrong is None:
            passed += 1
        else:
            failed += 1
            print(f"FAILED {path.name} {case_id}: {wrong}")
    print(f"{path.name}: {passed} passed, {failed} failed")
    return passed, failed


def replay(path: Path) -> tuple[int, int]:
    """Replay conversations with our server, on both transports."""
    server = f"{shlex.quote(sys.executable)} -m handrail serve --listen"
    command = [sys.executable, "-m", "tests.wire.replay", str(path.resolve())]
    command += ["--ws-cmd", f"{server} ws://127.0.0.1:0", "--stdio-cmd", f"{server} stdio"]
    done = subprocess.run(
        command, cwd=HERE.parents[1], stdout=subprocess.PIPE, text=True, check=False
    )
    lines = done.stdout.splitlines()
    for line in lines:
        if not line.startswith("PASS"):
            print(line)
    found = re.fullmatch(r"(\d+) passed, (\d+) failed", lines[-1] if lines else "")
    return (int(found[1]), int(found[2])) if found else (0, 1)


def network_attacks(path: Path) -> tuple[int, int]:
    """Run attacks on a managed network, as the user of this program."""
    from tests.network.world_program import WorldProgram, missing_tools

    missing = missing_tools()
    if missing is not None:
        print(f"not run {path.name}: {missing}")
        return 0, 0
    names = [str(case.get("name")) for _, case in load(path)]
    world = WorldProgram(os.getuid(), "tests.network.world_cases", str(path.resolve()), *names)
    passed = 0
    try:
        for name in names:
            result = world.result(name)
            passed += bool(result["holds"])
            if not result["holds"]:
                print(f"FAILED {path.name} {name}: {result['said']}")
    finally:
        world.end()
    print(f"{path.name}: {passed} passed, {len(names) - passed} failed")
    return passed, len(names) - passed


def main(arguments: Sequence[str]) -> int:
    paths = [Path(argument) for argument in arguments] or sorted((HERE / "cases").glob("*.jsonl"))
    missing = [path for path in paths if not path.is_file()]
    if missing:
        print(f"no such file: {', '.join(map(str, missing))}", file=sys.stderr)
        return 2
    results = [run_file(path) for path in paths]
    passed, failed = (sum(column) for column in zip(*results, strict=True))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
