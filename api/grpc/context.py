"""What all calls share: the server, and what the front end was told at start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...engine.errors import UnavailableError
from ..pipeline import Pipeline
from ..request_parameters import compile_forward_pattern
from ..restrictions import Restriction
from .infer_reader import InferReader
from .options import NO_DELAYS, GrpcDelays

if TYPE_CHECKING:
    from ...actors import InferenceServer
    from ..logging import Log


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """Options of a `GrpcApplication`; the flag's name where it is not obvious.

    Attributes:
        header_forward_pattern: ``--grpc-header-forward-pattern``, a regular expression; metadata whose keys it matches
            become request parameters (docs/reference/grpc.md#header-forwarding). Empty: none does.
        allow_client_shm: whether clients may register shared-memory regions (docs/reference/shared-memory.md#regions).
        restrictions: ``--grpc-restricted-protocol``: which calls need which metadata
            (docs/reference/grpc.md#restricted-protocols).
        delays: what is held up, for tests of clients.
    """

    header_forward_pattern: str = ""
    allow_client_shm: bool = False
    restrictions: tuple[Restriction, ...] = ()
    delays: GrpcDelays = NO_DELAYS


class GrpcContext:
    """The server, the options, the reader of infer requests, their way to the server.

    Attributes:
        draining: no new inference is taken on, while those in flight are finished.
        log: whose settings clients may see and change; None where they may not.

    Raises:
        InvalidArgumentError: the header pattern is not a regular expression.
    """

    def __init__(self, server: InferenceServer, options: GrpcOptions, log: Log | None = None) -> None:
        self.server = server
        self.log = log
        self.options = options
        self.reader = InferReader(server.shared_memory, server.options.tensor_limits, server.offload)
        self.pipeline = Pipeline(server, compile_forward_pattern(options.header_forward_pattern))
        self.draining = False

    def refuse_when_draining(self) -> None:
        """New inferences are refused as soon as the front end has begun to stop.

        Raises:
            UnavailableError: it has.
        """
        if self.draining or self.server.exiting:
            raise UnavailableError("GRPC server is shutting down and has stopped accepting new requests.")
