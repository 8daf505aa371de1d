"""The RPCs about the server and its models: health, metadata, configuration, statistics (docs/reference/grpc.md#calls);
and gRPC's standard health service (docs/reference/grpc.md#health-service).

That one tells of the server as a whole, whichever service is asked about. Watch is not part of it: as in Triton, the
dispatcher answers that there is no such method.
"""

from __future__ import annotations

from ...engine.config import config_protobuf
from ...proto.messages import inference as pb
from ...proto.messages.grpc.health import v1 as health
from .. import about
from .context import GrpcContext
from .infer_parameters import parse_version


def server_live(context: GrpcContext, _message: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
    about.refuse_when_exiting(context.server)
    return pb.ServerLiveResponse(live=context.server.live())


async def server_ready(context: GrpcContext, _message: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
    """A server that is not ready is no error."""
    about.refuse_when_exiting(context.server)
    return pb.ServerReadyResponse(ready=await context.server.check_ready())


def server_metadata(context: GrpcContext, _message: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
    return pb.ServerMetadataResponse.from_dict(about.server_metadata(context.server))


async def model_ready(context: GrpcContext, message: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
    """A model that is not ready, or that there is not, is no error."""
    version = parse_version(message.version)
    about.refuse_when_exiting(context.server)
    return pb.ModelReadyResponse(ready=await context.server.check_model_ready(message.name, version))


def model_metadata(context: GrpcContext, message: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
    version = parse_version(message.version)
    one_version = bool(message.version)
    return pb.ModelMetadataResponse.from_dict(
        about.model_metadata(context.server, message.name, version, one_version=one_version)
    )


def model_config(context: GrpcContext, message: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
    model = context.server.describe(message.name, parse_version(message.version))
    return pb.ModelConfigResponse(config=pb.ModelConfig.parse(config_protobuf(model.config)))


def statistics(context: GrpcContext, message: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
    """Of all models, if none is named."""
    version = parse_version(message.version)
    return pb.ModelStatisticsResponse.from_dict(about.model_statistics(context.server, message.name, version))


class Health(health.HealthBase):
    """`grpc.health.v1.Health` of an `InferenceServer`."""

    def __init__(self, context: GrpcContext) -> None:
        self._context = context

    async def check(self, message: health.HealthCheckRequest) -> health.HealthCheckResponse:
        """Whether the server is ready; that it is not is no error."""
        about.refuse_when_exiting(self._context.server)
        status = health.HealthCheckResponseServingStatus
        ready = await self._context.server.check_ready()
        return health.HealthCheckResponse(status=status.SERVING if ready else status.NOT_SERVING)
