"""``handrail doctor``: what this machine can enforce, and how to fix what it cannot."""

from __future__ import annotations

import argparse
import errno
import json
import sys

from handrail.cli import stdio, style
from handrail.cli.text_table import STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.doctor_checks import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = "Say what this machine can enforce, what is missing and how to get it."
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when commands can be sandboxed here, else 1."""
    from handrail.errors import SandboxUnavailable
    from handrail.sandbox import probe
    from handrail.sandbox.doctor_checks import examine

    try:
        probe.forget()  # doctor reports the present state
    except (OSError, SandboxUnavailable):
        pass  # the findings say what is wrong
    findings = examine()
    holds = all(finding.good for finding in findings if finding.needed)
    try:
        _say(findings, holds, as_json=args.json)
        sys.stdout.flush()
    except stdio.OutputFailed as error:
        if error.errno != errno.EPIPE:
            raise
        stdio.give_up(1)  # the reader has closed the pipe; the findings stand
    return 0 if holds else 1


def _say(findings: list[Finding], holds: bool, *, as_json: bool) -> None:
    if as_json:
        listed = [finding.as_dict() for finding in findings]
        print(json.dumps({"sandbox": holds, "findings": listed}, indent=2))
        return
    person = style.person_looks()
    optional = "optional" if person else "no"  # scripts know it by that word
    for finding in findings:
        mark = "ok" if finding.good else "MISSING" if finding.needed else optional
        _line(f"{mark:10}" if person else f"{mark:8}", f"{finding.subject}: {finding.what}", person)
        if finding.remedy:
            print(f"{'':10}-> {finding.remedy}")
    if holds:
        print("Commands can be sandboxed here.")
        if not all(finding.good for finding in findings):
            print(f"What is marked `{optional}` is not needed for that.")
    else:
        stdio.say("Commands cannot be sandboxed here.")


def _line(mark: str, text: str, person: bool) -> None:
    if not person:
        print(f"{mark}{text}")
        return
    from rich.text import Text

    style.console().print(Text(mark, style=STATES[mark.strip()]).append(text, style="default"))
