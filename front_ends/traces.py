"""Traces of requests that come by front ends. The engine decides which requests are traced, in the order in which they
come from all of them; while any could be, a front end notes all of its own, and tells what it has noted (`kinds.NOTES`)
when it has answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..engine.clock import Clock
from ..engine.errors import RefusalReason
from ..engine.tracing import TraceConfig, TraceMode, Tracer
from ..engine.tracing.record import MAX_ELEMENTS, RefusalNote, SpanContext, Timestamp, Trace
from ..engine.tracing.settings import TraceLevel, TraceSetting
from .kinds import NOTES
from .link import LinkHead
from .trace_wishes import TraceWish, read_wish, write_wish
from .values import broken, read_integer, read_list, read_text, write_text

NO_REQUEST = 0
"""Instead of a number: the request was refused before the engine has heard of it."""

_MOST_NOTES = 1_024
_REASONS = frozenset(reason.value for reason in RefusalReason)


class _NoSink:
    """A front end's traces go to the engine."""

    def collect(self, trace: Trace) -> None:
        raise AssertionError("a front end keeps no traces")

    def retire(self, setting: TraceSetting) -> None:
        """Settings are the engine's."""


class RemoteTracer(Tracer):
    """Asks for all requests to be traced, while `active`.

    Args:
        tell: sends a message, later if there is no room.
    """

    def __init__(self, clock: Clock, tell: Callable[[LinkHead], None]) -> None:
        super().__init__(TraceConfig(), clock, _NoSink())
        self._tell = tell
        self._wishes: dict[Trace, tuple[int, TraceWish]] = {}
        config = TraceConfig(mode=TraceMode.OPENTELEMETRY)
        self._setting = TraceSetting(config, TraceLevel.TIMESTAMPS, 1, -1, 0, frozenset())
        self._last = 0

    def update(self, active: bool, takes_contexts: bool) -> None:
        """What the engine says of its tracer."""
        self.active = active
        self.takes_contexts = takes_contexts

    def begin(self, model_name: str, context: SpanContext | None = None) -> Trace:
        trace = Trace(self._setting, self._number, self._end, context=context)
        self._wishes[trace] = NO_REQUEST, TraceWish(context, model_name)
        trace.enter()
        return trace

    def forget(self, model_name: str, trace: Trace | None) -> None:
        """The request comes again, and the engine has not heard of it."""
        if trace is not None:
            self._wishes.pop(trace, None)

    def wish(self, trace: Trace) -> TraceWish | None:
        """What to ask the engine for, with a request of this trace."""
        wished = self._wishes.get(trace)
        return None if wished is None else wished[1]

    def sent(self, trace: Trace, number: int) -> None:
        """The request, of this number, is on its way."""
        self._wishes[trace] = number, self._wishes[trace][1]

    def _number(self) -> int:
        self._last += 1
        return self._last

    def _end(self, trace: Trace) -> None:
        wished = self._wishes.pop(trace, None)
        if wished is None:
            return
        number, wish = wished
        notes: list[list[Any]] = []
        for each in trace.elements:
            if isinstance(each, Timestamp):
                notes.append([write_text(each.name), each.ns])
            elif isinstance(each, RefusalNote):
                notes.append([each.reason])
        head: tuple[Any, ...] = (NOTES, number, notes[:_MOST_NOTES])
        self._tell(head if number else (*head, write_wish(wish)))


def read_notes(head: Sequence[Any]) -> tuple[int, list[Timestamp | RefusalNote], TraceWish | None]:
    """What a front end has noted: the number of the request, and, if that is `NO_REQUEST`, what it wished.

    Raises:
        LinkError: nothing.
    """
    parts = read_list(head, 3, 4)
    notes: list[Timestamp | RefusalNote] = []
    for each in read_list(parts[2], 0, min(_MOST_NOTES, MAX_ELEMENTS)):
        name, *ns = read_list(each, 1, 2)
        notes.append(Timestamp(read_text(name), read_integer(ns[0])) if ns else _read_refusal(name))
    number = read_integer(parts[1])
    if (number == NO_REQUEST) != (len(parts) == 4):
        raise broken("notes of a request, or of none and what was asked for it", parts[1])
    return number, notes, read_wish(parts[3]) if len(parts) == 4 else None


def _read_refusal(value: Any) -> RefusalNote:
    reason = read_text(value)
    if reason not in _REASONS:
        raise broken("a reason for refusals", value)
    return RefusalNote(reason)
