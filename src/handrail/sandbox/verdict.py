"""How the end of a contained command is read: the guess that all share, and what is known.

What is known for certain stands beside the guess and does not change it, unless a client has asked
to be told for certain: clients of the wire decide by the guess.
"""

from __future__ import annotations

from collections.abc import Sequence

from handrail.process.spec import Verdict
from handrail.sandbox import denial
from handrail.sandbox.denial import Denial
from handrail.sandbox.sandbox import LINUX_SECCOMP


def judge(code: int | None, texts: list[bytes], seen: Sequence[Denial]) -> Verdict:
    """From the exit code (None: not known), the retained output and what was seen."""
    said = denial.likely_denied(LINUX_SECCOMP, code, *texts)
    # What a tool says beside a failure it has survived is no evidence of anything.
    blamed = denial.from_text(*texts) if said else []
    return Verdict(said, tuple(denial.merge(seen, blamed)))


def judge_watched(code: int | None, texts: list[bytes], seen: Sequence[Denial]) -> Verdict:
    """The same for a client that has asked to be told for certain."""
    verdict = judge(code, texts, seen)
    return Verdict(verdict.denied or (bool(seen) and bool(code)), verdict.denials)
