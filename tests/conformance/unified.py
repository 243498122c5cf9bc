"""Cases of the pure parts of unified exec: waiting, pruning, buffers, budgets, texts."""

from __future__ import annotations

from typing import Any

from handrail.executor.output.head_tail import HeadTail
from handrail.unified_exec.answer import response_text
from handrail.unified_exec.events import emit_boundary
from handrail.unified_exec.prune import Entry, pick
from handrail.unified_exec.truncate import (
    Budget,
    Unit,
    approx_tokens,
    effective_budget,
    formatted,
    truncate,
)
from handrail.unified_exec.yield_time import exec_yield, poll_yield, write_yield
from tests.conformance.comparison import difference


def _budget(policy: dict[str, Any]) -> Budget:
    return Budget(Unit(policy["mode"]), policy["limit"])


def truncation(case: dict[str, Any]) -> str | None:
    expected = case["expect"]
    if case["op"] == "approx_tokens":
        return difference(tokens=(expected["tokens"], approx_tokens(case["bytes"])))
    text = case["text"]
    if case["op"] == "truncate":
        budget = _budget(case["policy"])
        return difference(
            truncated=(expected["truncated"], truncate(text, budget)),
            formatted=(expected["formatted"], formatted(text, budget)),
        )
    if case["op"] == "exec_output":
        wish = case["max_output_tokens"]
        model = _budget(case["model_policy"])
        budget = model if wish is None else effective_budget(wish, model)
        return difference(
            original_token_count=(
                expected["original_token_count"],
                approx_tokens(len(text.encode())),
            ),
            output=(expected["output"], formatted(text, budget)),
        )
    return f"unknown op {case['op']}"


def head_tail(case: dict[str, Any]) -> str | None:
    buffer = HeadTail(case["max_bytes"])
    joined = HeadTail(case["max_bytes"])
    for chunk in case["chunks"]:
        buffer.append(chunk.encode())
        part = HeadTail(case["max_bytes"])
        part.append(chunk.encode())
        joined.extend(part)
    expected = case["expect"]
    return difference(
        retained_bytes=(expected["retained_bytes"], buffer.retained),
        omitted_bytes=(expected["omitted_bytes"], buffer.omitted),
        total_bytes=(expected["total_bytes"], buffer.total),
        bytes=(expected["bytes"].encode(), buffer.content()),
        with_marker=(expected["with_marker"].encode(), buffer.rendered()),
        joined=(expected["with_marker"].encode(), joined.rendered()),
    )


def unified_exec(case: dict[str, Any]) -> str | None:
    expected = case["expect"]
    match case["op"]:
        case "exec_yield":
            found: object = exec_yield(case["requested_ms"])
            return difference(effective_ms=(expected["effective_ms"], found))
        case "poll_yield":
            found = poll_yield(case["requested_ms"], case["max_background_ms"])
            return difference(effective_ms=(expected["effective_ms"], found))
        case "write_yield":
            found = write_yield(case["requested_ms"])
            return difference(effective_ms=(expected["effective_ms"], found))
        case "prune_pick":
            entries = [Entry(*entry) for entry in case["entries_id_lastused_exited"]]
            return difference(pruned=(expected["pruned"], pick(entries)))
        case "utf8_emit_boundary":
            found = emit_boundary(bytes.fromhex(case["bytes_hex"]))
            return difference(emit_len=(expected["emit_len"], found))
        case "response_text":
            found = response_text(
                chunk_id=case["chunk_id"],
                wall_time_s=case["wall_time_s"],
                exit_code=case["exit_code"],
                session_id=case["session_id"],
                original_token_count=case["original_token_count"],
                output=case["output"],
            )
            return difference(text=(expected["text"], found))
        case other:
            return f"unknown op {other}"
