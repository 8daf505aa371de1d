"""A trace as spans of OpenTelemetry (docs/reference/traces.md#opentelemetry), and how they are sent to a collector.

    InferRequest                the front end's notes, as events
      <model>                   REQUEST_START … REQUEST_END; those of an ensemble's steps hang under it
        compute                 COMPUTE_START … COMPUTE_END
        X                       X_START … X_END, if a backend has noted such a pair

What has no times (a note of Triton's that says 0, a trace without any) has no place in a span. This module is imported
only where spans are exported: the library takes longer to import than a server to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from ..clock import Clock, unix_offset_ns
from .record import Activity, BatchNote, GenerationNote, Identities, RefusalNote, Subject, Timestamp, Trace
from .settings import ExportOptions

ROOT_NAME = "InferRequest"
COMPUTE_NAME = "compute"

_SCOPE = InstrumentationScope("triton-server")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_FRONT_END = ("HTTP_", "GRPC_")
_COMPUTE = (
    Activity.COMPUTE_START,
    Activity.COMPUTE_INPUT_END,
    Activity.COMPUTE_OUTPUT_START,
    Activity.COMPUTE_END,
)
_REQUEST = (Activity.REQUEST_START, Activity.QUEUE_START, Activity.REQUEST_END)


class SpanExport:
    """Makes spans, and sends them by OTLP over HTTP.

    Args:
        clock: that of the times in traces.
    """

    def __init__(self, options: ExportOptions, clock: Clock, identities: Identities) -> None:
        self._offset_ns = unix_offset_ns(clock)
        self._resource = Resource.create(dict(options.resource))
        url = options.url if "://" in options.url else f"http://{options.url}"
        self._exporter = OTLPSpanExporter(endpoint=url)
        self._identities = identities

    def spans_of(self, trace: Trace) -> list[ReadableSpan]:
        """The spans of a complete trace; none, if it has no times."""
        return spans_of(trace, self._identities, self._resource, self._offset_ns)

    def send(self, spans: Sequence[ReadableSpan]) -> bool:
        """Whether the collector took them. To be called on a thread: this waits for the collector."""
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._exporter.shutdown()


def spans_of(
    trace: Trace, identities: Identities, resource: Resource | None = None, offset_ns: int = 0
) -> list[ReadableSpan]:
    """The spans of a complete trace, those below before those above, as they end; none, if it has no times.

    Args:
        offset_ns: what is added to the times of the trace.
    """
    return _Maker(trace, identities, resource, offset_ns).make()


class _Maker:
    def __init__(self, trace: Trace, identities: Identities, resource: Resource | None, offset_ns: int) -> None:
        context = trace.context
        self._trace_id = trace.trace_id or (identities.new_trace_id() if context is None else context.trace_id)
        self._state = TraceState(() if context is None else context.state)
        self._identities = identities
        self._resource = resource
        self._offset_ns = offset_ns
        self._root = trace
        self._spans: list[ReadableSpan] = []

    def make(self) -> list[ReadableSpan]:
        traces = (self._root, *self._root.descendants)
        everything = [stamp for each in traces for stamp in _stamps(each)]
        if not everything:
            return []
        caller = self._root.context
        above = None if caller is None else self._context(caller.span_id, is_remote=True)
        own = [stamp for stamp in _stamps(self._root) if _is_front_end(stamp)]
        root = self._span(ROOT_NAME, above, everything, own, _reasons(self._root, of_batch=False))
        of_models: dict[int, SpanContext] = {}
        for trace in traces:
            self._make_model_spans(trace, of_models.get(trace.parent_id, root), of_models)
        return self._spans[::-1]

    def _make_model_spans(self, trace: Trace, above: SpanContext, of_models: dict[int, SpanContext]) -> None:
        subject = next((element for element in trace.elements if isinstance(element, Subject)), None)
        stamps = [stamp for stamp in _stamps(trace) if not _is_front_end(stamp)]
        if subject is None or not stamps:
            return
        attributes: dict[str, str | int] = {
            "triton.model_name": subject.model_name,
            "triton.model_version": subject.model_version,
            "triton.trace_id": trace.id,
            "triton.trace_parent_id": trace.parent_id,
        }
        if subject.request_id:
            attributes["triton.request_id"] = subject.request_id
        attributes.update(_reasons(trace))
        pairs, alone = _pairs([stamp for stamp in stamps if stamp.name not in (*_REQUEST, *_COMPUTE)])
        events = [stamp for stamp in stamps if stamp.name in _REQUEST] + alone
        span = self._span(subject.model_name, above, stamps, events, attributes, trace.span_id)
        of_models[trace.id] = span
        compute = [stamp for stamp in stamps if stamp.name in _COMPUTE]
        if compute:
            self._span(COMPUTE_NAME, span, compute, compute)
        for pair in pairs:
            self._span(pair[1].name.removesuffix("_END"), span, pair, pair)

    def _context(self, span_id: int, *, is_remote: bool = False) -> SpanContext:
        return SpanContext(self._trace_id, span_id, is_remote, _SAMPLED, self._state)

    def _span(
        self,
        name: str,
        above: SpanContext | None,
        within: Iterable[Timestamp],
        events: Iterable[Timestamp],
        attributes: Mapping[str, str | int] | None = None,
        span_id: int = 0,
    ) -> SpanContext:
        """Make a span that lasts from the first to the last of the times that are `within` it."""
        times = [stamp.ns + self._offset_ns for stamp in within]
        context = self._context(span_id or self._identities.new_span_id())
        self._spans.append(
            ReadableSpan(
                name=name,
                context=context,
                parent=above,
                resource=self._resource,
                attributes=attributes,
                events=[Event(stamp.name, timestamp=stamp.ns + self._offset_ns) for stamp in events],
                kind=SpanKind.SERVER,
                instrumentation_scope=_SCOPE,
                start_time=min(times),
                end_time=max(times),
            )
        )
        return context


def _reasons(trace: Trace, *, of_batch: bool = True) -> dict[str, str | int]:
    """Attributes: why the batch of the request was closed, what text was generated, or why the request was refused."""
    found: dict[str, str | int] = {}
    for element in trace.elements:
        if isinstance(element, RefusalNote):
            found["trireme.refused"] = element.reason
        elif isinstance(element, BatchNote) and of_batch:
            found["trireme.batch.reason"] = element.reason
            found["trireme.batch.rows"] = element.rows
            found["trireme.batch.requests"] = element.requests
            found["trireme.batch.instance"] = element.instance
        elif isinstance(element, GenerationNote) and of_batch:
            found |= {f"trireme.generation.{name}": value for name, value in element._asdict().items()}
    return found


def _pairs(stamps: list[Timestamp]) -> tuple[list[tuple[Timestamp, Timestamp]], list[Timestamp]]:
    """What a backend noted: the pairs of a start and an end, and all else."""
    pairs: list[tuple[Timestamp, Timestamp]] = []
    alone: list[Timestamp] = []
    open_starts: dict[str, Timestamp] = {}
    for stamp in stamps:
        name, _, what = stamp.name.rpartition("_")
        if what == "START":
            open_starts[name] = stamp
        elif what == "END" and name in open_starts:
            pairs.append((open_starts.pop(name), stamp))
        else:
            alone.append(stamp)
    return pairs, [*alone, *open_starts.values()]


def _stamps(trace: Trace) -> list[Timestamp]:
    return [element for element in trace.elements if isinstance(element, Timestamp) and element.ns > 0]


def _is_front_end(stamp: Timestamp) -> bool:
    return stamp.name.startswith(_FRONT_END) or stamp.name == Activity.INFER_RESPONSE_COMPLETE
