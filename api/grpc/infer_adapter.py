"""Infer requests over gRPC as the pipeline sees them (`api.pipeline`), of calls of their own or on a stream."""

from __future__ import annotations

from ...actors.lease import Lease
from ...engine.description import ModelDescription
from ...engine.errors import UnsupportedError
from ...engine.request import InferenceRequest
from ...engine.tensor import Buffer
from ...engine.tracing import Tracer
from ..pipeline import Traced
from ..request_parameters import HeaderPattern
from .call_head import CallHead
from .context import GrpcContext
from .forwarding import forward_metadata
from .infer_request import DecodedGrpcInfer
from .streaming import StreamingCall
from .tracing import GrpcTrace


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
