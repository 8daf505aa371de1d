"""What gRPC serves of an `InferenceServer`: its services, and what guards them.

It knows no connections: it is what the gRPC service hosts, as `HttpApplication` is what the HTTP service hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ..restrictions import Restriction
from .about import Health
from .context import GrpcContext, GrpcOptions
from .inference import InferenceService, paths_of
from .reflection import with_reflection

if TYPE_CHECKING:
    from ...actors import InferenceServer
    from ..logging import Log
    from .call_head import CallHead

_KEY_PREFIX = "triton-grpc-protocol-"


class RestrictedProtocols:
    """A guard: it looks at every call when it begins, so at a stream once."""

    __slots__ = ("_needed",)

    def __init__(self, restrictions: Sequence[Restriction]) -> None:
        self._needed = {
            path: (_KEY_PREFIX + restriction.key, restriction)
            for restriction in restrictions
            for category in restriction.categories
            for path in paths_of(category)
        }

    def __call__(self, head: CallHead) -> None:
        """Let the call pass.

        Raises:
            GRPCError: it lacks the key, or has it with another value.
        """
        needed = self._needed.get(head.path)
        if needed is not None:
            key, restriction = needed
            given = head.metadata.get(key.lower())
            if given is None or not restriction.admits(str(given).encode("utf-8", "surrogateescape")):
                raise GRPCError(Status.UNAVAILABLE, f"This protocol is restricted, expecting header '{key}'")

    def __repr__(self) -> str:
        return f"<RestrictedProtocols: {len(self._needed)} methods>"


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
