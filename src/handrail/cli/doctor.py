"""``handrail doctor``: what this machine can enforce, and how to make it so."""

from __future__ import annotations

import argparse
import json
import sys


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "doctor",
        help="say what this machine can enforce",
        description="Say what this machine can enforce, what is missing and how to get it.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when commands can be contained here, else 1."""
    from handrail.sandbox.examination import examine

    findings = examine()
    holds = all(finding.good for finding in findings if finding.needed)
    if args.json:
        listed = [finding.as_dict() for finding in findings]
        print(json.dumps({"sandbox": holds, "findings": listed}, indent=2))
        return 0 if holds else 1
    for finding in findings:
        mark = "ok" if finding.good else "MISSING" if finding.needed else "no"
        print(f"{mark:8}{finding.subject}: {finding.what}")
        if finding.remedy:
            print(f"{'':8}  -> {finding.remedy}")
    verdict = "Commands can be contained here." if holds else "Commands cannot be contained here."
    print(verdict, file=sys.stdout if holds else sys.stderr)
    return 0 if holds else 1
