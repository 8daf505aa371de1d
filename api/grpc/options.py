"""What the gRPC front end's sockets and connections are told at start: plain values
(docs/reference/command-line.md#flags, docs/reference/grpc.md#keepalive)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..http2.limits import Http2Limits
from ..sockets.service import ServiceOptions
from .compression import CompressionLevel
from .framing import INT32_MAX

_SERVICE = "/inference.GRPCInferenceService/"
_INFER_PATHS = frozenset((f"{_SERVICE}ModelInfer", f"{_SERVICE}ModelStreamInfer"))
_DATA_PATHS = _INFER_PATHS | {f"{_SERVICE}RepositoryModelLoad"}
"""Of our methods, those whose messages carry a client's data: tensors, or files."""
_OUR_SERVICES = (_SERVICE, "/grpc.")


@dataclass(frozen=True, slots=True)
class GrpcServiceOptions(ServiceOptions):
    """Where and how the front end listens.

    Attributes:
        http2: bounds of a connection, and ``--grpc-keepalive-…``, ``--grpc-http2-…``, ``--grpc-max-connection-…``.
        max_message_bytes: ``--grpc-max-receive-bytes``: the largest request message, as sent and unpacked.
        max_management_bytes: the same for methods whose messages carry no data.
        max_compression_ratio: ``--grpc-max-compression-ratio``, see `compression.UnpackLimits`.
        max_waiting_bytes: most bytes of messages that wait for room in the server-wide budget (`waiting`).
        compression_level: ``--grpc-infer-response-compression-level``.
        compressed_paths: the methods to which it applies.
    """

    name: str = "GRPC"
    http2: Http2Limits = field(default_factory=Http2Limits)
    max_message_bytes: int = INT32_MAX
    max_management_bytes: int = 1 << 20
    max_compression_ratio: int = 1000
    max_waiting_bytes: int = 1 << 30
    compression_level: CompressionLevel = CompressionLevel.NONE
    compressed_paths: frozenset[str] = _INFER_PATHS

    def message_limit(self, path: str) -> int:
        """The largest request message of a method, in bytes."""
        if path.startswith(_OUR_SERVICES) and path not in _DATA_PATHS:
            return min(self.max_message_bytes, self.max_management_bytes)
        return self.max_message_bytes
