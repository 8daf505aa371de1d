"""Spans, sent to an OpenTelemetry collector by OTLP over HTTP. To be used on a thread: it waits for the collector."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from ..clock import Clock, unix_offset_ns
from .settings import ExportOptions
from .spans import Span

_SCOPE = InstrumentationScope("triton-server")


class SpanExport:
    """The library's exporter, and spans in its terms.

    Args:
        clock: that of the times in traces.
    """

    def __init__(self, options: ExportOptions, clock: Clock) -> None:
        self._offset_ns = unix_offset_ns(clock)
        self._resource = Resource.create(dict(options.resource))
        self._exporter = OTLPSpanExporter(endpoint=_with_scheme(options.url))

    def send(self, spans: Sequence[Span]) -> bool:
        """Whether the collector took them."""
        return self._exporter.export([self._readable(span) for span in spans]) is SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        """A span in the library's terms."""
        state = TraceState(span.state)
        above = None
        if span.parent_id is not None:
            above = SpanContext(span.trace_id, span.parent_id, span.is_entry, TraceFlags(TraceFlags.SAMPLED), state)
        return ReadableSpan(
            name=span.name,
            context=SpanContext(span.trace_id, span.span_id, False, TraceFlags(TraceFlags.SAMPLED), state),
            parent=above,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(name, timestamp=ns + self._offset_ns) for name, ns in span.events],
            kind=SpanKind.SERVER,
            instrumentation_scope=_SCOPE,
            start_time=span.start_ns + self._offset_ns,
            end_time=span.end_ns + self._offset_ns,
        )


def _with_scheme(url: str) -> str:
    """The URL of a collector; ``http`` if it names no scheme, as in ``localhost:4318/v1/traces``."""
    return url if "://" in url else f"http://{url}"
