"""gRPC's standard health service (docs/reference/grpc.md#health-service).

It tells of the server as a whole, whichever service is asked about. Watch is not part of it: as in Triton, the
dispatcher answers that there is no such method.
"""

from __future__ import annotations

from ...proto.messages.grpc.health.v1 import (
    HealthBase,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)
from .context import GrpcContext


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
