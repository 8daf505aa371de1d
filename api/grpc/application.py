"""What gRPC serves of an `InferenceServer`: its services, and what guards them.

It knows no connections: it is what the gRPC service hosts, as the ASGI application is what the HTTP service hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .context import GrpcContext, GrpcOptions
from .health import Health
from .inference import InferenceService
from .reflection import with_reflection
from .restricted import RestrictedProtocols

if TYPE_CHECKING:
    from ...actors import InferenceServer
    from ..logging import Log


class GrpcApplication:
    """The KServe/Triton gRPC interface (docs/reference/grpc.md).

    Args:
        server: the facade that does the work.
        options: of this front end.
        log: whose settings clients may see and change; None where they may not.

    Attributes:
        services: grpclib services; the inference service also has ``immediate``.
        guards: each is asked about every call when it begins, and raises what the call is refused with.

    Raises:
        InvalidArgumentError: the options name a header pattern that is none.
    """

    def __init__(self, server: InferenceServer, options: GrpcOptions, log: Log | None = None) -> None:
        self._context = GrpcContext(server, options, log)
        self.services = with_reflection((InferenceService(self._context), Health(self._context)))
        self.guards = (RestrictedProtocols(options.restrictions),) if options.restrictions else ()

    def stop_accepting(self) -> None:
        """Refuse new inferences, on open streams too; those in flight go on
        (docs/reference/command-line.md#shutdown)."""
        self._context.draining = True
