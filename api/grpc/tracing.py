"""What the gRPC front end notes of traced requests (docs/reference/traces.md#trace-files).

As in Triton, its notes come behind those of the request itself: they are kept back until the call is over.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...engine.request import InferenceRequest
from ...engine.tracing import Tracer
from ...engine.tracing.record import MAX_ELEMENTS, Activity, Timestamp, Trace, read_context


class GrpcTrace:
    """One request that may be traced, of a call of its own or on a stream. See `pipeline.RequestTrace`.

    Args:
        metadata: of the call.
    """

    __slots__ = ("_metadata", "_name", "_notes", "_responded", "_trace", "_tracer", "_waited_ns")

    def __init__(self, tracer: Tracer, metadata: Mapping[str, str | bytes]) -> None:
        self._metadata = metadata
        self._name: str | None = None
        self._notes: list[Timestamp] = []
        self._responded = False
        self._trace: Trace | None = None
        self._tracer = tracer
        self._waited_ns = tracer.clock.now_ns()

    def decoded(self, request: InferenceRequest) -> None:
        tracer = self._tracer
        context = None
        if tracer.takes_contexts:
            parent, state = self._metadata.get("traceparent"), self._metadata.get("tracestate", "")
            context = read_context(parent if isinstance(parent, str) else None, state if isinstance(state, str) else "")
        self._name = request.model_name
        trace = self._trace = request.trace = tracer.begin(request.model_name, context)
        if trace is not None:
            self._notes = [
                Timestamp(Activity.GRPC_WAITREAD_START, self._waited_ns),
                Timestamp(Activity.GRPC_WAITREAD_END, tracer.clock.now_ns()),
            ]
            trace.on_response = self._hear

    def forget(self) -> None:
        if self._name is not None:
            self._tracer.forget(self._name, self._trace)
            self._trace = None

    def _hear(self, ns: int, _has_response: bool) -> None:
        if not self._responded:  # on a stream, only the first of several
            self._responded = True
            self._notes.append(Timestamp(Activity.INFER_RESPONSE_COMPLETE, ns))

    def sending(self) -> None:
        self._note(Activity.GRPC_SEND_START)

    def sent(self) -> None:
        self._note(Activity.GRPC_SEND_END)

    def _note(self, activity: Activity) -> None:
        if self._trace is not None and len(self._notes) < MAX_ELEMENTS:
            self._notes.append(Timestamp(activity, self._tracer.clock.now_ns()))

    def finish(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            for note in self._notes:
                trace.note(*note)
            trace.leave()
