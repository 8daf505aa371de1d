"""What the HTTP front end notes of traced requests (docs/reference/traces.md#trace-files).

While no request could be traced, none of this is touched. While one could, every request has an `HttpTrace`; adapters
of inference routes say by `begin` what the request is about.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...engine.request import InferenceRequest
from ...engine.tracing import Tracer
from ...engine.tracing.record import Activity, Trace, read_context


class HttpTrace:
    """One request, from before its body is read to after its answer is sent.

    Attributes:
        trace: for the request; None while it is not to be traced.
    """

    __slots__ = ("_generates", "_name", "_received_ns", "_sends_ns", "_tracer", "trace")

    def __init__(self, tracer: Tracer) -> None:
        self.trace: Trace | None = None
        self._tracer = tracer
        self._received_ns = tracer.clock.now_ns()
        self._sends_ns = 0
        self._generates = False
        self._name: str | None = None

    def begin(self, model_name: str, headers: Mapping[bytes, bytes], *, generates: bool = False) -> None:
        """The request is an inference for this model, and may be traced.

        Args:
            generates: it may have many responses: of none of them it is noted when it was sent, as in Triton.
        """
        self._generates = generates
        self._name = model_name
        tracer = self._tracer
        context = None
        if tracer.takes_contexts:
            traceparent = headers.get(b"traceparent", b"").decode("latin-1")
            context = read_context(traceparent, headers.get(b"tracestate", b"").decode("latin-1"))
        trace = self.trace = tracer.begin(model_name, context)
        if trace is not None:
            trace.note(Activity.HTTP_RECV_START, self._received_ns)
            trace.note(Activity.HTTP_RECV_END, tracer.clock.now_ns())
            trace.on_response = self._responded

    def _responded(self, ns: int, has_response: bool) -> None:
        if self.trace is not None:
            self.trace.note(Activity.INFER_RESPONSE_COMPLETE, ns)
            if self._generates and has_response:
                self.trace.note(Activity.HTTP_SEND_START, 0)
                self.trace.note(Activity.HTTP_SEND_END, 0)

    # See `pipeline.RequestTrace`.

    def decoded(self, request: InferenceRequest) -> None:
        request.trace = self.trace

    def forget(self) -> None:
        if self._name is not None:
            self._tracer.forget(self._name, self.trace)
            self.trace = None

    def sending(self) -> None:
        if self.trace is not None:
            self._sends_ns = self._tracer.clock.now_ns()

    def sent(self) -> None:
        if self.trace is not None and not self._generates:
            self.trace.note(Activity.HTTP_SEND_START, self._sends_ns)
            self.trace.note(Activity.HTTP_SEND_END, self._tracer.clock.now_ns())

    def finish(self) -> None:
        trace, self.trace = self.trace, None
        if trace is not None:
            trace.leave()
