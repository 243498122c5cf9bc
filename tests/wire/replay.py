"""Replay recorded cases against any server and print pass or fail for each.

  python -m tests.wire.replay --ws-cmd "SERVER --listen ws://127.0.0.1:0"
  python -m tests.wire.replay --stdio-cmd "SERVER --listen stdio"
  python -m tests.wire.replay CASES.jsonl --url ws://127.0.0.1:PORT

--ws-cmd starts the server and reads its URL from stdout, --stdio-cmd starts one child per case,
--url takes a server that runs already (cases that need arguments of their own are skipped).
Server and replay must share a filesystem.  ``tests/cases/README.md`` has the form of a case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.wire.fixture_http import fixture_http
from tests.wire.runner import TIMEOUT, Case, Target, run_case
from tests.wire.servers import ServerFailed, WebSocketServer

CASES = Path(__file__).resolve().parent.parent / "cases" / "exec-server-transcripts.jsonl"


#: Key of what stands for a line that holds no case; its value says why.
UNREADABLE = "unreadable line"


def load_cases(path: Path) -> list[Case]:
    """One case per line."""
    # Not ``splitlines``: a JSON string may hold U+2028 or U+0085 as it is.
    lines = enumerate(path.read_bytes().split(b"\n"), 1)
    return [{"name": f"line {number}", **_case(line)} for number, line in lines if line.strip()]


def _case(line: bytes) -> Case:
    try:
        case = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {UNREADABLE: str(error)}
    return case if isinstance(case, dict) else {UNREADABLE: "not an object"}


async def replay(
    cases: list[Case], target: Target, skip_needs: set[str], verbose: bool = False
) -> int:
    """Run cases and print how they went, or also what each is about; gives how many failed."""
    passed = failed = skipped = 0
    for case in cases:
        if UNREADABLE in case:
            failed += 1
            print(f"FAIL {case['name']}: {UNREADABLE}: {case[UNREADABLE]}")
            continue
        transports = target.transports(case)
        if not transports or set(case.get("needs", [])) & skip_needs:
            skipped += 1
            print(f"SKIP {case['name']}")
            continue
        for transport in transports:
            try:
                faults = await run_case(case, transport, target)
            except Exception as e:  # noqa: BLE001 - one case that breaks must not end the others
                faults = [f"{type(e).__name__}: {e}"]
            passed += not faults
            failed += bool(faults)
            print(f"{'FAIL' if faults else 'PASS'} {case['name']} [{transport}]")
            if verbose and case.get("notes"):
                print("     ", case["notes"])
            for fault in faults:
                print("     ", fault)
    if skipped:
        print(f"{skipped} skipped")
    print(f"{passed} passed, {failed} failed")
    return failed


def parse_options() -> argparse.Namespace:
    """The command line."""
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("cases", nargs="?", type=Path, default=CASES)
    ap.add_argument("--url", help="a server that runs already")
    ap.add_argument("--ws-cmd", help="command of a server that listens")
    ap.add_argument("--stdio-cmd", help="command of a server on stdio")
    ap.add_argument("--only", default="", metavar="REGEX", help="cases whose name has a match")
    ap.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds per awaited message")
    ap.add_argument("--skip-needs", default="", metavar="A,B", help="leave out, e.g. sandbox")
    ap.add_argument("-v", action="store_true", dest="verbose", help="print what a case is about")
    options = ap.parse_args()
    if not (options.url or options.ws_cmd or options.stdio_cmd):
        ap.error("give --url, --ws-cmd or --stdio-cmd")
    return options


def main() -> int:
    """Start what is needed, replay, stop it."""
    options = parse_options()
    cases = [case for case in load_cases(options.cases) if re.search(options.only, case["name"])]
    with ExitStack() as stack:
        target = Target(stack.enter_context(fixture_http()), options.url, timeout=options.timeout)
        if options.ws_cmd:
            target.ws_command = shlex.split(options.ws_cmd)
        if options.stdio_cmd:
            target.stdio_command = shlex.split(options.stdio_cmd)
        if target.ws_command and not target.url:
            server = WebSocketServer(target.ws_command)
            stack.callback(lambda: target.leftovers.extend(server.stop()))
            target.url = server.url
        skip_needs = set(options.skip_needs.split(","))
        failed = asyncio.run(replay(cases, target, skip_needs, options.verbose))
    for line in target.leftovers:
        print("left behind and killed:", line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerFailed as e:
        sys.exit(str(e))
