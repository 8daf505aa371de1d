"""What the HTTP front end notes of traced requests (docs/reference/traces.md#trace-files).

While no request could be traced, none of this is touched. While one could, every request has an `HttpTrace`. A
`watched_send` stands between the application and the connection's `send`; adapters of inference routes say by `begin`
what the request is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from ...engine.request import InferenceRequest
from ...engine.tracing import Tracer
from ...engine.tracing.record import Activity, Trace, read_context
from .asgi import Message, Scope, Send

_KEY = "trireme.trace"


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


@contextmanager
def watched_send(tracer: Tracer, scope: Scope, send: Send) -> Iterator[Send]:
    """The connection's `send`, with an eye on when the answer begins and ends; the trace is finished with the block."""
    trace = scope[_KEY] = HttpTrace(tracer)

    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            trace.sending()
        await send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            trace.sent()
            trace.finish()

    try:
        yield watched
    finally:
        trace.finish()


def is_watched(scope: Scope) -> bool:
    """Whether a request has an `HttpTrace` already."""
    return _KEY in scope


def trace_of(scope: Scope) -> HttpTrace | None:
    """That of a request; None if none could be traced when it came."""
    return cast("HttpTrace | None", scope.get(_KEY))
