from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from handrail.unified_exec.truncate import (
    Budget,
    Unit,
    approx_tokens,
    effective_budget,
    fit,
    formatted,
    kept_prefix,
    line_count,
    tokens,
    truncate,
)

TEXT = st.text(alphabet="ab \né漢🙂", max_size=60)
BUDGET = st.builds(Budget, st.sampled_from(Unit), st.integers(0, 40))


@given(TEXT, BUDGET)
def test_what_fits_is_unchanged_and_what_does_not_keeps_both_ends(
    text: str, budget: Budget
) -> None:
    short = truncate(text, budget)
    size = len(text.encode())
    if size <= budget.in_bytes:
        assert short == text
        return
    head, middle, tail = short.partition("…")[0], short, short.rpartition("…")[2]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len((head + tail).encode()) <= budget.in_bytes
    assert "truncated…" in middle
    assert kept_prefix(text, budget) == head.encode()
    if budget.unit is Unit.BYTES:
        assert f"…{len(text) - len(head) - len(tail)} chars truncated…" in short


def test_the_smaller_budget_decides_and_words_the_marker() -> None:
    model = Budget(Unit.BYTES, 10_000)
    assert effective_budget(100_000, model) == model
    assert effective_budget(2_500, model) == model
    assert effective_budget(2_499, model) == tokens(2_499)


def test_a_gap_in_the_text_is_told_in_the_warning_unless_it_can_be_seen() -> None:
    text = "a" * 40 + "\n... 7 bytes omitted ...\n" + "b" * 40
    seen = formatted(text, Budget(Unit.BYTES, 200), omitted=7, total_bytes=87)
    assert seen == text
    lost = formatted(text, Budget(Unit.BYTES, 20), omitted=7, total_bytes=87)
    assert lost.startswith(
        "Warning: truncated output (original token count: 22)\n... 7 bytes omitted ...\n\naaaaaaa"
    )
    early = text[38:] + "b" * 60
    in_sight = formatted(early, Budget(Unit.BYTES, 80), omitted=7, total_bytes=109)
    assert "Total output lines: 3" in in_sight
    assert formatted("ab", tokens(9), omitted=7) == "... 7 bytes omitted ...\nab"


def test_the_whole_answer_stays_near_the_models_limit() -> None:
    model = tokens(100)

    def answer(output: str) -> str:
        return "x" * 200 + output

    output, budget = fit("y" * 4000, model, model, answer)
    assert approx_tokens(len(answer(output).encode())) <= 120
    assert budget.limit < 100
    tiny, none = fit("y" * 4000, tokens(1), Budget(Unit.BYTES, 10), answer)
    assert none.limit == 0
    assert "1000 tokens truncated" in tiny


def test_lines_are_counted_as_lines() -> None:
    assert [line_count(text) for text in ("", "a", "a\n", "a\nb", "\n\n")] == [0, 1, 1, 2, 2]
