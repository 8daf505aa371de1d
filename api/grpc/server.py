"""The RPCs about the server as a whole: is it alive, is it ready, what is it (docs/reference/grpc.md#calls); and gRPC's
standard health service (docs/reference/grpc.md#health-service).

That one tells of the server as a whole, whichever service is asked about. Watch is not part of it: as in Triton, the
dispatcher answers that there is no such method.
"""

from __future__ import annotations

from ...proto.messages.grpc.health.v1 import (
    HealthBase,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)
from ...proto.messages.inference import (
    ServerLiveRequest,
    ServerLiveResponse,
    ServerMetadataRequest,
    ServerMetadataResponse,
    ServerReadyRequest,
    ServerReadyResponse,
)
from .context import GrpcContext


def live(context: GrpcContext, _message: ServerLiveRequest) -> ServerLiveResponse:
    """ServerLive."""
    context.refuse_when_exiting()
    return ServerLiveResponse(live=context.server.live())


async def ready(context: GrpcContext, _message: ServerReadyRequest) -> ServerReadyResponse:
    """ServerReady: a server that is not ready is no error."""
    context.refuse_when_exiting()
    return ServerReadyResponse(ready=await context.server.check_ready())


def metadata(context: GrpcContext, _message: ServerMetadataRequest) -> ServerMetadataResponse:
    """ServerMetadata."""
    about = context.server.metadata()
    return ServerMetadataResponse(name=about.name, version=about.version, extensions=list(about.extensions))


class Health(HealthBase):
    """`grpc.health.v1.Health` of an `InferenceServer`."""

    def __init__(self, context: GrpcContext) -> None:
        self._context = context

    async def check(self, message: HealthCheckRequest) -> HealthCheckResponse:
        """Whether the server is ready; that it is not is no error."""
        self._context.refuse_when_exiting()
        if await self._context.server.check_ready():
            return HealthCheckResponse(status=HealthCheckResponseServingStatus.SERVING)
        return HealthCheckResponse(status=HealthCheckResponseServingStatus.NOT_SERVING)
