"""What the gRPC front end is told at start: plain values (docs/reference/command-line.md#flags,
docs/reference/grpc.md#keepalive). Delays are for tests of clients: time-outs, cancellation, slow answers. The
environment asks for them, as with Triton; without them nothing is looked at, and nothing waits."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from ..http2.limits import Http2Limits
from ..request_parameters import Restriction
from ..sockets.service import ServiceOptions
from .compression import CompressionLevel
from .framing import INT32_MAX

_log = logging.getLogger(__name__)

_NUMBER = re.compile(r"\s*([+-]?\d{1,9})")


@dataclass(frozen=True, slots=True)
class GrpcDelays:
    """How long what is held up; seconds each, 0 for not at all. The variables that ask for it are in milliseconds, but
    for the first.

    Attributes:
        answer_s: the answers of all calls other than inference (``TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC``).
        notification_s: that a call of inference hears of its cancellation (``TRITONSERVER_DELAY_GRPC_NOTIFICATION``).
        response_s: each answer of a decoupled model on a stream (``TRITONSERVER_DELAY_GRPC_RESPONSE``).
        process_s: a call of ModelInfer that has come (``TRITONSERVER_DELAY_GRPC_PROCESS``).
        enqueue_s: the end of a call of ModelInfer that was cancelled (``TRITONSERVER_DELAY_GRPC_ENQUEUE``).
        complete_s: that a request on a stream counts as answered (``TRITONSERVER_DELAY_GRPC_COMPLETE``).
        response_completion_s: the answer to a call of ModelInfer (``TRITONSERVER_DELAY_RESPONSE_COMPLETION``).
    """

    answer_s: float = 0.0
    notification_s: float = 0.0
    response_s: float = 0.0
    process_s: float = 0.0
    enqueue_s: float = 0.0
    complete_s: float = 0.0
    response_completion_s: float = 0.0

    @property
    def of_model_infer(self) -> bool:
        """A call of ModelInfer is held up somewhere, and needs a task to wait in."""
        return any((self.notification_s, self.process_s, self.enqueue_s, self.response_completion_s))


NO_DELAYS = GrpcDelays()


def read_delays(environment: Mapping[str, str]) -> GrpcDelays:
    """What the environment asks for. What is no number counts as 0, as with Triton."""

    def seconds(name: str, unit_s: float = 1e-3) -> float:
        match = _NUMBER.match(environment.get(f"TRITONSERVER_{name}", ""))
        return 0.0 if match is None else max(0, int(match[1])) * unit_s

    return GrpcDelays(
        seconds("SERVER_DELAY_GRPC_RESPONSE_SEC", 1.0),
        seconds("DELAY_GRPC_NOTIFICATION"),
        seconds("DELAY_GRPC_RESPONSE"),
        seconds("DELAY_GRPC_PROCESS"),
        seconds("DELAY_GRPC_ENQUEUE"),
        seconds("DELAY_GRPC_COMPLETE"),
        seconds("DELAY_RESPONSE_COMPLETION"),
    )


async def delay(seconds: float, what: str) -> None:
    if seconds:
        _log.info("Delaying %s by %d ms...", what, round(seconds * 1000))
        await trio.sleep(seconds)


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
        max_compression_ratio: ``--grpc-max-compression-ratio``, see `compression.Unpacking`.
        max_waiting_bytes: most bytes of messages that wait for room in the server-wide budget (`host.WaitingRoom`).
        compression_level: ``--grpc-infer-response-compression-level``.
        infer_paths: the methods of inference, to which it applies.
    """

    name: str = "GRPC"
    http2: Http2Limits = field(default_factory=Http2Limits)
    max_message_bytes: int = INT32_MAX
    max_management_bytes: int = 1 << 20
    max_compression_ratio: int = 1000
    max_waiting_bytes: int = 1 << 30
    compression_level: CompressionLevel = CompressionLevel.NONE
    infer_paths: frozenset[str] = _INFER_PATHS

    def message_limit(self, path: str) -> int:
        """The largest request message of a method, in bytes."""
        if path.startswith(_OUR_SERVICES) and path not in _DATA_PATHS:
            return min(self.max_message_bytes, self.max_management_bytes)
        return self.max_message_bytes
