"""That a request is to be traced, as it goes over a link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..engine.tracing.record import SpanContext
from .values import broken, read_integer, read_list, read_text, write_text


@dataclass(frozen=True, slots=True)
class TraceWish:
    """The front end notes a request, should it be traced.

    Attributes:
        context: the caller's span.
        model: whose setting decides.
    """

    context: SpanContext | None
    model: str


def write_wish(wish: TraceWish) -> list[Any]:
    context = wish.context
    if context is None:
        return [write_text(wish.model)]
    ids = [f"{context.trace_id:x}", f"{context.span_id:x}", context.flags]
    return [write_text(wish.model), *ids, [list(pair) for pair in context.state]]


def read_wish(value: Any) -> TraceWish:
    """See `write_wish`. Raises LinkError: it is none."""
    parts = read_list(value, 1, 5)
    model = read_text(parts[0])
    if len(parts) == 1:
        return TraceWish(None, model)
    trace_id, span_id, flags, state = read_list(parts[1:], 4, 4)
    pairs = tuple((read_text(read_list(pair, 2, 2)[0]), read_text(pair[1])) for pair in read_list(state, 0, 32))
    context = SpanContext(_read_hex(trace_id, 32), _read_hex(span_id, 16), read_integer(flags, 0, 256), pairs)
    return TraceWish(context, model)


def _read_hex(value: Any, digits: int) -> int:
    """An identity, which is not 0."""
    text = read_text(value)
    try:
        number = int(text, 16) if text.isalnum() and len(text) <= digits else 0
    except ValueError:
        number = 0
    if not number:
        raise broken(f"an identity of up to {digits} digits", value)
    return number
