"""The caller's span, from the headers of a request (W3C Trace Context, level 1)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
_MAX_MEMBERS = 32
_MAX_STATE_CHARACTERS = 8192


@dataclass(frozen=True, slots=True)
class SpanContext:
    """A span of the caller's.

    Attributes:
        trace_id: 128 bits; never 0.
        span_id: 64 bits; never 0.
        flags: 8 bits; the lowest says that the caller keeps its span.
        state: ``key=value`` pairs of tracing systems, to be passed on.
    """

    trace_id: int
    span_id: int
    flags: int = 0
    state: tuple[tuple[str, str], ...] = ()


def read_context(traceparent: str | None, tracestate: str = "") -> SpanContext | None:
    """The span that ``traceparent`` names, with what ``tracestate`` says; None if it names none. A state that cannot be
    read is dropped, and the context holds without it, as the standard has it."""
    found = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent else None
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or int(trace, 16) == 0 or int(span, 16) == 0:
        return None
    return SpanContext(int(trace, 16), int(span, 16), int(flags, 16), _read_state(tracestate))


def _read_state(text: str) -> tuple[tuple[str, str], ...]:
    if len(text) > _MAX_STATE_CHARACTERS:
        return ()
    members = [member.strip() for member in text.split(",") if member.strip()]
    pairs: dict[str, str] = {}
    for member in members:
        key, _, value = member.partition("=")
        if _MEMBER.fullmatch(member) is None or key in pairs:
            return ()
        pairs[key] = value
    return tuple(pairs.items()) if len(pairs) <= _MAX_MEMBERS else ()
