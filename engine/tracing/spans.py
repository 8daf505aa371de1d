"""A trace as spans of OpenTelemetry (docs/reference/traces.md#opentelemetry).

    InferRequest                the front end's notes, as events
      <model>                   REQUEST_START … REQUEST_END; those of an ensemble's steps hang under it
        compute                 COMPUTE_START … COMPUTE_END
        X                       X_START … X_END, if a backend has noted such a pair

Times are those of the server's clock. What has no times (a note of Triton's that says 0, a trace without any) has no
place in a span.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .record import Activity, Identities, Subject, Timestamp, Trace

ROOT_NAME = "InferRequest"
COMPUTE_NAME = "compute"

_FRONT_END = ("HTTP_", "GRPC_")
_COMPUTE = (
    Activity.COMPUTE_START,
    Activity.COMPUTE_INPUT_END,
    Activity.COMPUTE_OUTPUT_START,
    Activity.COMPUTE_END,
)
_REQUEST = (Activity.REQUEST_START, Activity.QUEUE_START, Activity.REQUEST_END)


@dataclass(slots=True)
class Span:
    """One span.

    Attributes:
        trace_id, span_id: of 128 and 64 bits.
        parent_id: the span above; None for none.
        is_entry: the span above, if there is one, is the caller's.
        state: the caller's tracing systems' pairs.
        events: (name, time), in order.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    is_entry: bool
    state: tuple[tuple[str, str], ...]
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)


class _Maker:
    def __init__(self, trace: Trace, identities: Identities) -> None:
        context = trace.context
        self._trace_id = trace.trace_id or (identities.new_trace_id() if context is None else context.trace_id)
        self._state = () if context is None else context.state
        self._new_span_id = identities.new_span_id
        self._caller_id = None if context is None else context.span_id
        self._root = trace
        self._model_spans: dict[int, int] = {}
        self.spans: list[Span] = []

    def make(self) -> None:
        """All of them, those below before those above, as they end."""
        stamps = [stamp for stamp in _stamps(self._root) if _is_front_end(stamp)]
        everything = [stamp.ns for each in (self._root, *self._root.descendants) for stamp in _stamps(each)]
        if not everything:
            return
        root = self._span(ROOT_NAME, self._caller_id, min(everything), max(everything), stamps)
        root.is_entry = True
        for trace in (self._root, *self._root.descendants):
            above = self._model_spans.get(trace.parent_id, root.span_id)
            self._make_model_spans(trace, above)
        self.spans.reverse()

    def _make_model_spans(self, trace: Trace, above: int) -> None:
        subject = next((element for element in trace.elements if isinstance(element, Subject)), None)
        stamps = [stamp for stamp in _stamps(trace) if not _is_front_end(stamp)]
        if subject is None or not stamps:
            return
        times = [stamp.ns for stamp in stamps]
        own = [stamp for stamp in stamps if stamp.name in _REQUEST]
        span = self._span(subject.model_name, above, min(times), max(times), own)
        span.span_id = trace.span_id or span.span_id
        self._model_spans[trace.id] = span.span_id
        span.attributes = {
            "triton.model_name": subject.model_name,
            "triton.model_version": subject.model_version,
            "triton.trace_id": trace.id,
            "triton.trace_parent_id": trace.parent_id,
        }
        if subject.request_id:
            span.attributes["triton.request_id"] = subject.request_id
        compute = [stamp for stamp in stamps if stamp.name in _COMPUTE]
        if compute:
            self._span(COMPUTE_NAME, span.span_id, compute[0].ns, compute[-1].ns, compute)
        self._make_custom_spans(span, [stamp for stamp in stamps if stamp.name not in (*_REQUEST, *_COMPUTE)])

    def _make_custom_spans(self, above: Span, stamps: list[Timestamp]) -> None:
        """What a backend noted: pairs are spans, all else are events of the model's span."""
        open_starts: dict[str, Timestamp] = {}
        for stamp in stamps:
            if stamp.name.endswith("_START"):
                open_starts[stamp.name.removesuffix("_START")] = stamp
                continue
            start = open_starts.pop(stamp.name.removesuffix("_END"), None) if stamp.name.endswith("_END") else None
            if start is None:
                above.events.append(stamp)
            else:
                name = stamp.name.removesuffix("_END")
                self._span(name, above.span_id, start.ns, stamp.ns, [start, stamp])
        above.events += open_starts.values()

    def _span(self, name: str, above: int | None, start_ns: int, end_ns: int, events: list[Timestamp]) -> Span:
        span = Span(name, self._trace_id, self._new_span_id(), above, False, self._state, start_ns, end_ns)
        span.events += events
        self.spans.append(span)
        return span


def spans_of(trace: Trace, identities: Identities) -> list[Span]:
    """The spans of a complete trace; none, if it has no times."""
    maker = _Maker(trace, identities)
    maker.make()
    return maker.spans


def _stamps(trace: Trace) -> list[Timestamp]:
    return [element for element in trace.elements if isinstance(element, Timestamp) and element.ns > 0]


def _is_front_end(stamp: Timestamp) -> bool:
    return stamp.name.startswith(_FRONT_END) or stamp.name == Activity.INFER_RESPONSE_COMPLETE
