"""What the gRPC front end notes of traced requests (docs/reference/traces.md#trace-files).

As in Triton, its notes come behind those of the request itself: they are kept back until the call is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...engine.tracing.propagation import read_context
from ...engine.tracing.record import MAX_ELEMENTS, Activity, Timestamp, Trace

if TYPE_CHECKING:
    from ...engine.tracing import Tracer


class GrpcTrace:
    """One traced request, of a call of its own or on a stream.

    Args:
        waited_ns, read_ns: when waiting for the request began, and when it had been read.

    Attributes:
        trace: for the request.
    """

    __slots__ = ("_is_over", "_notes", "_responded", "_tracer", "trace")

    def __init__(self, tracer: Tracer, trace: Trace, waited_ns: int, read_ns: int) -> None:
        self.trace = trace
        self._tracer = tracer
        self._is_over = False
        self._responded = False
        self._notes = [
            Timestamp(Activity.GRPC_WAITREAD_START, waited_ns),
            Timestamp(Activity.GRPC_WAITREAD_END, read_ns),
        ]
        trace.on_response = self._hear

    def _hear(self, ns: int, _has_response: bool) -> None:
        if not self._responded:  # on a stream, only the first of several
            self._responded = True
            self._notes.append(Timestamp(Activity.INFER_RESPONSE_COMPLETE, ns))

    def sending(self) -> None:
        """A response is about to be sent."""
        self._note(Activity.GRPC_SEND_START)

    def sent(self) -> None:
        """It has been."""
        self._note(Activity.GRPC_SEND_END)

    def _note(self, activity: Activity) -> None:
        if len(self._notes) < MAX_ELEMENTS:
            self._notes.append(Timestamp(activity, self._tracer.clock.now_ns()))

    def finish(self) -> None:
        """The call is over, or was refused. Only the first time counts."""
        if self._is_over:
            return
        self._is_over = True
        for note in self._notes:
            self.trace.note(*note)
        self.trace.leave()


def begin_trace(
    tracer: Tracer, model_name: str, metadata: Mapping[str, str | bytes], waited_ns: int
) -> GrpcTrace | None:
    """The trace of a request that has been read, if it is to be traced.

    Args:
        waited_ns: when waiting for it began.
    """
    context = None
    if tracer.takes_contexts:
        parent, state = metadata.get("traceparent"), metadata.get("tracestate", "")
        context = read_context(parent if isinstance(parent, str) else None, state if isinstance(state, str) else "")
    trace = tracer.begin(model_name, context)
    return None if trace is None else GrpcTrace(tracer, trace, waited_ns, tracer.clock.now_ns())
