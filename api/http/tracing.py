"""What the HTTP front end notes of traced requests (docs/reference/traces.md#trace-files).

While no request could be traced, none of this is touched. While one could, every request has an `HttpTrace`, which
stands between the application and the connection's `send`; handlers of inference routes say by `begin_trace` what the
request is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from ...engine.tracing.propagation import read_context
from ...engine.tracing.record import Activity, Trace
from .asgi import Message, Scope, Send

if TYPE_CHECKING:
    from ...engine.tracing import Tracer

_KEY = "trireme.trace"


class HttpTrace:
    """One request, from before its body is read to after its answer is sent, as a `with` block.

    Args:
        send: the connection's.
    """

    __slots__ = ("_generates", "_received_ns", "_send", "_sends_ns", "_tracer", "trace")

    def __init__(self, tracer: Tracer, scope: Scope, send: Send) -> None:
        self.trace: Trace | None = None
        self._tracer = tracer
        self._received_ns = tracer.clock.now_ns()
        self._sends_ns = 0
        self._generates = False
        self._send = send
        scope[_KEY] = self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    def begin(self, model_name: str, headers: Mapping[bytes, bytes], generates: bool) -> Trace | None:
        """The request is an inference for this model; its trace, if it is to be traced.

        Args:
            generates: it may have many responses: of none of them it is noted when it was sent, as in Triton.
        """
        self._generates = generates
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
        return trace

    def _responded(self, ns: int, has_response: bool) -> None:
        if self.trace is not None:
            self.trace.note(Activity.INFER_RESPONSE_COMPLETE, ns)
            if self._generates and has_response:
                self.trace.note(Activity.HTTP_SEND_START, 0)
                self.trace.note(Activity.HTTP_SEND_END, 0)

    async def send(self, message: Message) -> None:
        """The ASGI callable, with an eye on when the answer begins and ends."""
        trace = self.trace
        if trace is None:
            await self._send(message)
            return
        clock = self._tracer.clock
        if message["type"] == "http.response.start":
            self._sends_ns = clock.now_ns()
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            if not self._generates:
                trace.note(Activity.HTTP_SEND_START, self._sends_ns)
                trace.note(Activity.HTTP_SEND_END, clock.now_ns())
            self.leave()

    def leave(self) -> None:
        """The front end has nothing more to note, whatever is still sent."""
        trace, self.trace = self.trace, None
        if trace is not None:
            trace.leave()


def is_watched(scope: Scope) -> bool:
    """Whether a request has an `HttpTrace`."""
    return _KEY in scope


def begin_trace(
    scope: Scope, model_name: str, headers: Mapping[bytes, bytes], *, generates: bool = False
) -> Trace | None:
    """The trace of an inference request, if it is to be traced. It is left when the answer has been sent, when the
    client is gone, or by `leave_trace`."""
    found = scope.get(_KEY)
    return None if found is None else cast(HttpTrace, found).begin(model_name, headers, generates)


def leave_trace(scope: Scope) -> None:
    """The request was refused: its answer is not noted."""
    found = scope.get(_KEY)
    if found is not None:
        cast(HttpTrace, found).leave()
