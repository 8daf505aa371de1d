"""What lines of a request log have of generated text (`request_log.LoggedRequest`, `request_log.LoggedResult`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..generation.records import GenerationRecord

_Value = Callable[[int, GenerationRecord], Any]

_REQUEST: dict[str, tuple[Any, _Value]] = {
    "prompt_tokens": (0, lambda _at, its: its.prompt),
    "found_tokens": (0, lambda _at, its: its.found),
    "max_tokens": (0, lambda _at, its: its.most_new),
    "choices": (1, lambda _at, its: its.choices),
    "generated_tokens": (0, lambda _at, its: its.generated),
}
_RESULT: dict[str, tuple[Any, _Value]] = {
    "first_token_us": (0.0, lambda at_ns, its: round((its.first_ns - at_ns) / 1e3, 3) if its.first_ns >= 0 else 0.0),
    "paused_us": (0.0, lambda _at, its: round(its.paused_ns / 1e3, 3)),
    "preemptions": (0, lambda _at, its: its.preemptions),
    "step_pieces": (0, lambda _at, its: its.steps.pieces),
    "step_share": (0.0, lambda _at, its: round(its.steps.share, 4)),
    "step_tokens": (0.0, lambda _at, its: _part(its.steps.tokens, its.steps.share)),
    "kv": (0.0, lambda _at, its: _part(its.steps.memory, its.steps.share)),
    "between_us": ("", lambda _at, its: its.between.text()),
}
"""By field: what stands there if nothing is known, and what a record says, with the time when its request came."""


def generation_columns(records: Sequence[tuple[int, GenerationRecord | None]], *, results: bool) -> dict[str, Any]:
    """Columns for arrivals, each with when it came, in nanoseconds; None for one of which nothing is known. A column
    that has the same value everywhere is that value, one that tells nothing is left out.

    Args:
        results: what came of them is told, too.
    """
    columns: dict[str, Any] = {}
    for name, (default, value) in {**_REQUEST, **(_RESULT if results else {})}.items():
        column = [default if each is None else value(at_ns, each) for at_ns, each in records]
        if len(set(column)) > 1:
            columns[name] = column
        elif column[0] != default:
            columns[name] = column[0]
    return columns


def _part(total: float, share: float) -> float:
    return round(total / share, 4) if share else 0.0
