"""Infer requests over gRPC as the pipeline sees them (`api.pipeline`), of calls of their own or on a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...actors.budget import Lease
from ...engine.description import ModelDescription
from ...engine.errors import UnsupportedError
from ...engine.request import InferenceRequest
from ...engine.tensor import Buffer
from ...engine.tracing import Tracer
from ...engine.tracing.record import MAX_ELEMENTS, Activity, Timestamp, Trace, read_context
from ..pipeline import Traced
from ..request_parameters import HeaderPattern, check_forwarded_name
from .call_head import CallHead
from .context import GrpcContext
from .infer_request import DecodedGrpcInfer
from .streaming import StreamingCall

if TYPE_CHECKING:
    from .call_head import CallHead
    from .streaming import StreamingCall


def forward_metadata(call: CallHead | StreamingCall, pattern: HeaderPattern, request: InferenceRequest) -> None:
    """Make parameters of the call's metadata in whose keys `pattern` is found; as in Triton, the user agent is part of
    it. They come after the request's own parameters, and take the place of those of the same name.

    Raises:
        InvalidArgumentError: such a key means something to the server.
    """
    pairs = call.metadata.items()
    for key, value in pairs if call.user_agent is None else (("user-agent", call.user_agent), *pairs):
        if pattern.matches(key):
            check_forwarded_name(key)
            request.parameters[key] = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


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


class GrpcInfer(Traced):
    """What all of them have in common: see `pipeline.Adapter`.

    Attributes:
        context: of the front end.
        source: where the metadata are.
        message: the request; empty once it has been decoded.
    """

    __slots__ = ()
    context: GrpcContext
    source: CallHead | StreamingCall
    message: Buffer
    decoded: DecodedGrpcInfer | None
    request: InferenceRequest | None
    model: ModelDescription | None
    lease: Lease | None

    def describe(self, name: str, version: int) -> ModelDescription:
        """Find the model.

        Raises:
            TriremeError: there is none, or none that takes such requests.
        """
        return self.context.server.describe(name, version)

    def received(self, tracer: Tracer) -> None:
        self.trace = GrpcTrace(tracer, self.source.metadata)

    def decode(self) -> bool:
        context = self.context
        if context.draining or context.server.exiting:
            context.refuse_when_draining()
        decoded = context.reader.decode(self.message, self.describe)
        if decoded is None:
            return False
        self.decoded = decoded
        self.request = decoded.request
        self.model = decoded.model
        self.message = b""
        return True

    async def decode_slowly(self) -> None:
        context = self.context
        lease = self.lease = self.lease or context.server.lease()
        decoded = self.decoded = await context.reader.decode_slowly(self.message, self.describe, lease)
        self.request = decoded.request
        self.model = decoded.model
        self.message = b""

    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None:
        forward_metadata(self.source, pattern, request)

    def close(self) -> None:
        """The request is over, whatever has become of it: nothing more is noted, and a lease that no request in flight
        has is given back."""
        if self.trace is not None:
            self.trace.finish()
        if self.lease is not None and not self.lease.admitted:
            self.lease.close()
            self.lease = None


class UnaryInferRequest(GrpcInfer):
    """Of a call of ModelInfer."""

    __slots__ = ()

    def describe(self, name: str, version: int) -> ModelDescription:
        model = self.context.server.describe(name, version)
        if model.config.decoupled:
            raise UnsupportedError("ModelInfer RPC doesn't support models with decoupled transaction policy")
        return model
