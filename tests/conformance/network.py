"""Cases of the managed network: what is decided about a request, or which status a head gets."""

from __future__ import annotations

import re
from typing import Any

from handrail.network.check import answer
from tests.conformance.comparison import difference

#: What is seen from end to end only.
_ELSEWHERE = ("closes", "reaches_origin")


def network_decisions(case: dict[str, Any]) -> str | None:
    """Answer one case as ``handrail network check --jsonl`` does."""
    told = dict(case)
    if "raw" in told:
        told["raw"] = expanded(told["raw"])
    found = answer(told)
    pairs = {}
    for name, expected in case["expect"].items():
        if name == "dial":
            have: Any = found.get("dial") or []
            pairs[name] = (sorted(expected), sorted(have))
        elif name not in _ELSEWHERE:
            pairs[name] = (expected, found.get(name))
    return difference(**pairs)


def expanded(raw: str) -> str:
    """``{100000*a}`` stands for that many; ``{1000*X-N: 1}`` for as many fields, N counted up."""

    def fields(found: re.Match[str]) -> str:
        lines = (found[2].replace("N", str(number), 1) for number in range(int(found[1])))
        return "\r\n".join(lines)

    raw = re.sub(r"\{(\d+)\*(X-N: [^}]*)\}", fields, raw)
    return re.sub(r"\{(\d+)\*(\w)\}", lambda found: found[2] * int(found[1]), raw)
