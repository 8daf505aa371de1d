"""The RPCs about the server as a whole: is it alive, is it ready, what is it (docs/reference/grpc.md#calls)."""

from __future__ import annotations

from ...proto.messages.inference import ServerLiveResponse, ServerMetadataResponse, ServerReadyResponse
from .context import GrpcContext


def live(context: GrpcContext) -> ServerLiveResponse:
    """ServerLive."""
    context.refuse_when_exiting()
    return ServerLiveResponse(live=context.server.live())


async def ready(context: GrpcContext) -> ServerReadyResponse:
    """ServerReady: a server that is not ready is no error."""
    context.refuse_when_exiting()
    return ServerReadyResponse(ready=await context.server.check_ready())


def metadata(context: GrpcContext) -> ServerMetadataResponse:
    """ServerMetadata."""
    about = context.server.metadata()
    return ServerMetadataResponse(name=about.name, version=about.version, extensions=list(about.extensions))
