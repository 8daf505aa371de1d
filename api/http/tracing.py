"""What the HTTP front end notes of traced requests (docs/reference/traces.md#trace-files)."""

from __future__ import annotations

from collections.abc import Mapping

from ...engine.request import InferenceRequest
from ...engine.tracing import Tracer
from ...engine.tracing.record import Activity
from ..pipeline import RequestTrace


class HttpTrace(RequestTrace):
    """One request, from before its body is read to after its answer is sent."""

    __slots__ = ("_generates", "_sends_ns")

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self._generates = False
        self._sends_ns = 0

    def begin(self, model_name: str, headers: Mapping[bytes, bytes], *, generates: bool = False) -> None:
        """The request is an inference for this model, and may be traced.

        Args:
            generates: it may have many responses: of none of them it is noted when it was sent, as in Triton.
        """
        self._generates = generates
        trace = self._begin(model_name, lambda name: headers.get(name.encode(), b"").decode("latin-1"))
        if trace is not None:
            trace.note(Activity.HTTP_RECV_START, self._came_ns)
            trace.note(Activity.HTTP_RECV_END, self._tracer.clock.now_ns())

    def _responded(self, ns: int, has_response: bool) -> None:
        if self.trace is not None:
            self.trace.note(Activity.INFER_RESPONSE_COMPLETE, ns)
            if self._generates and has_response:
                self.trace.note(Activity.HTTP_SEND_START, 0)
                self.trace.note(Activity.HTTP_SEND_END, 0)

    def decoded(self, request: InferenceRequest) -> None:
        request.trace = self.trace

    def sending(self) -> None:
        if self.trace is not None:
            self._sends_ns = self._tracer.clock.now_ns()

    def sent(self) -> None:
        if self.trace is not None and not self._generates:
            self.trace.note(Activity.HTTP_SEND_START, self._sends_ns)
            self.trace.note(Activity.HTTP_SEND_END, self._tracer.clock.now_ns())
