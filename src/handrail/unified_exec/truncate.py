"""Fits a text into a budget: keeps both ends, says in the middle how much is missing.  Pure.

Tokens are estimated at four bytes each.  The texts are those of the tool that models were trained
with, byte for byte.  The limit of ``Workspace.run`` is in ``workspace/output/kept_output.py``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

from handrail.executor.output.head_tail import omission

#: Most tokens of an answer, if the model asks for no other number.
DEFAULT_TOKENS = 10_000

BYTES_PER_TOKEN = 4


class Unit(enum.Enum):
    TOKENS = "tokens"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit with its unit, which is also in the marker's text."""

    unit: Unit
    limit: int

    @property
    def in_bytes(self) -> int:
        return self.limit * BYTES_PER_TOKEN if self.unit is Unit.TOKENS else self.limit

    def cost(self, size: int) -> int:
        """The cost of ``size`` bytes in this unit."""
        return approx_tokens(size) if self.unit is Unit.TOKENS else size


def tokens(limit: int) -> Budget:
    return Budget(Unit.TOKENS, limit)


def approx_tokens(size: int) -> int:
    """About how many tokens so many bytes are."""
    return -(-size // BYTES_PER_TOKEN)


def effective_budget(requested_tokens: int, model: Budget) -> Budget:
    """The caller's limit if it is the smaller one, else the model's own."""
    wish = tokens(requested_tokens)
    return wish if wish.in_bytes < model.in_bytes else model


def truncate(text: str, budget: Budget) -> str:
    """``text`` if it fits, else its two ends around a marker."""
    data = text.encode("utf-8", "surrogatepass")
    limit = budget.in_bytes
    if len(data) <= limit:
        return text
    left, right = limit // 2, limit - limit // 2
    start, end = _boundary_before(data, left), _boundary_after(data, len(data) - right)
    prefix, suffix = data[:start], data[end:]
    if budget.unit is Unit.TOKENS:
        marker = f"…{approx_tokens(len(data) - limit)} tokens truncated…"
    else:
        removed = len(data[start:end].decode("utf-8", "surrogatepass"))
        marker = f"…{removed} chars truncated…"
    return (
        prefix.decode("utf-8", "surrogatepass") + marker + suffix.decode("utf-8", "surrogatepass")
    )


def kept_prefix(text: str, budget: Budget) -> bytes:
    """The text that ``truncate`` keeps before its marker; all of it if there is none."""
    data = text.encode("utf-8", "surrogatepass")
    limit = budget.in_bytes
    return data if len(data) <= limit else data[: _boundary_before(data, limit // 2)]


def formatted(
    text: str, budget: Budget, *, omitted: int = 0, total_bytes: int | None = None
) -> str:
    """``truncate``, with a warning before the text where something is missing.

    ``omitted`` bytes were dropped before ``text`` was made and are marked in it by a line;
    ``total_bytes`` is the size before that.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    marker = omission(omitted)
    short = truncate(text, budget)
    if size <= budget.in_bytes:
        return short if not omitted or marker in short else f"{marker}\n{short}"
    count = approx_tokens(size if total_bytes is None else total_bytes)
    if omitted and marker not in short:
        second = marker
    else:
        second = f"Total output lines: {line_count(text)}"
    return f"Warning: truncated output (original token count: {count})\n{second}\n\n{short}"


def fit(
    text: str,
    budget: Budget,
    model: Budget,
    answer: Callable[[str], str],
    *,
    omitted: int = 0,
    total_bytes: int | None = None,
) -> tuple[str, Budget]:
    """``formatted`` so that the whole ``answer`` around it stays near the model's limit, too.

    Also returns the budget that this took.
    """
    most = -(-model.limit * 6 // 5)
    while True:
        output = formatted(text, budget, omitted=omitted, total_bytes=total_bytes)
        excess = model.cost(len(answer(output).encode("utf-8", "surrogatepass"))) - most
        if excess <= 0 or budget.limit == 0:
            return output, budget
        # The excess is in the model's unit, the budget may be in the other one.
        if budget.unit is model.unit:
            step = excess
        elif budget.unit is Unit.TOKENS:
            step = approx_tokens(excess)
        else:
            step = excess * BYTES_PER_TOKEN
        budget = replace(budget, limit=max(budget.limit - step, 0))


def line_count(text: str) -> int:
    """Lines of a text; a newline at its end starts no further one."""
    return text.count("\n") + (not text.endswith("\n") and text != "")


def _boundary_before(data: bytes, at: int) -> int:
    while at > 0 and at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _boundary_after(data: bytes, at: int) -> int:
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at
