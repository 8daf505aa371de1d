"""What the gRPC front end's sockets and connections are told at start: plain values (cli.md §2, grpc.md §8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..http2.limits import Http2Limits
from ..sockets.service import ServiceOptions
from .compression import CompressionLevel
from .framing import INT32_MAX

_INFER_PATHS = frozenset(f"/inference.GRPCInferenceService/{method}" for method in ("ModelInfer", "ModelStreamInfer"))


@dataclass(frozen=True, slots=True)
class GrpcServiceOptions(ServiceOptions):
    """Where and how the front end listens.

    Attributes:
        http2: bounds of a connection, and ``--grpc-keepalive-…``, ``--grpc-http2-…``, ``--grpc-max-connection-…``.
        max_message_bytes: the largest request message, as sent and unpacked.
        compression_level: ``--grpc-infer-response-compression-level``.
        compressed_paths: the methods to which it applies.
    """

    name: str = "GRPC"
    http2: Http2Limits = field(default_factory=Http2Limits)
    max_message_bytes: int = INT32_MAX
    compression_level: CompressionLevel = CompressionLevel.NONE
    compressed_paths: frozenset[str] = _INFER_PATHS
