"""Every bound of an HTTP/2 connection, in one place, and the budgets that hold the bounds of how often."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .frames import ConnectionFault, ErrorCode


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something may happen: `burst` times at once, and `per_s` times a second in the long run."""

    burst: int
    per_s: float


@dataclass(frozen=True, slots=True)
class KeepaliveOptions:
    """gRPC's keepalive (gRPC proposals A8 and A9), with the defaults of the Triton command line
    (docs/reference/grpc.md#keepalive).

    Attributes:
        time_s: without anything received for so long, the server asks by a PING whether the client is still there.
        timeout_s: without anything received for so long after that PING, the connection is given up.
        permit_without_calls: whether to ask, and to be asked, on a connection without open streams.
        max_pings_without_data: PINGs that the server sends before it has data or headers to send again; 0: any number.
        min_recv_ping_interval_without_data_s: PINGs of a client that come faster than this, with no data or headers
            sent by the server in between, are strikes. Without open streams, and unless `permit_without_calls`, two
            hours count instead.
        max_ping_strikes: strikes that are forgiven; 0 for any number.
        max_connection_age_s: how old a connection gets before it is wound up.
        max_connection_age_grace_s: how long its open streams then may still take.
    """

    time_s: float = 7200.0
    timeout_s: float = 20.0
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_without_data_s: float = 300.0
    max_ping_strikes: int = 2
    max_connection_age_s: float = math.inf
    max_connection_age_grace_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Bounds of one connection. What a client may need for honest work fits well within the defaults.

    Attributes:
        max_concurrent_streams: open streams; more are refused.
        header_list_bytes: names and values of a request, plus 32 for each field (RFC 9113 §6.5.2); a larger list costs
            its stream, one of four times the size the connection.
        header_block_bytes: the compressed form of a header list, over all its frames.
        continuation_frames: CONTINUATION frames of one header block.
        max_frame_bytes: payload of a frame, as announced to the client; at least 16,384.
        stream_window_bytes: how much of a request's data may be unconsumed, for one stream; at least 65,535.
        connection_window_bytes: the same, for all streams together; at least 65,535.
        remembered_resets: closed streams on which the client may still be sending, because the server closed them.
        cached_heads: different header blocks whose meaning is remembered.
        cached_block_bytes: the largest header block that is remembered.
        control_backlog_bytes: control frames that the client has provoked and not yet read.
        unread_pieces: pieces of output that the client has not read when it asks for still more; a small answer is one.
        frames_at_once: frames that one call of `Http2Server.receive` takes in; one that opens a stream counts as 16.
        settings_in_frame: settings in one SETTINGS frame.
        goaway_ack_timeout_s: how long a graceful GOAWAY waits for a sign that the client has read it.
        idle_goaway_ack_timeout_s: the same, if nothing is open.
        resets: streams reset by the client, or because of it.
        pings: PINGs between which the server sent neither data nor headers.
        settings: SETTINGS frames.
        empty_frames: DATA frames without data and without END_STREAM.
        meaningless_frames: PRIORITY, and frames of unknown types.
        tiny_data: DATA frames of less than 64 bytes that do not end their streams. Streams of gRPC have such.
        tiny_frames: DATA frames of less than 1 KiB to which a small window forces the server.
        keepalive: see there.
    """

    max_concurrent_streams: int = 4096
    header_list_bytes: int = 16_384
    header_block_bytes: int = 32_768
    continuation_frames: int = 8
    max_frame_bytes: int = 1 << 20
    stream_window_bytes: int = 1 << 20
    connection_window_bytes: int = 1 << 26
    remembered_resets: int = 1024
    cached_heads: int = 128
    cached_block_bytes: int = 2048
    control_backlog_bytes: int = 65_536
    unread_pieces: int = 65_536
    frames_at_once: int = 1024
    settings_in_frame: int = 64
    goaway_ack_timeout_s: float = 5.0
    idle_goaway_ack_timeout_s: float = 1.0
    resets: Rate = Rate(8192, 1000.0)
    pings: Rate = Rate(1000, 100.0)
    settings: Rate = Rate(100, 10.0)
    empty_frames: Rate = Rate(1000, 100.0)
    meaningless_frames: Rate = Rate(1000, 100.0)
    tiny_data: Rate = Rate(65_536, 50_000.0)
    tiny_frames: Rate = Rate(4096, 1000.0)
    keepalive: KeepaliveOptions = field(default_factory=KeepaliveOptions)

    def __post_init__(self) -> None:
        if not 16_384 <= self.max_frame_bytes < 1 << 24:
            raise ValueError(f"max_frame_bytes is {self.max_frame_bytes}, expected 16384 to 16777215")
        for name in ("stream_window_bytes", "connection_window_bytes"):
            if not 65_535 <= getattr(self, name) < 1 << 31:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 65535 to 2147483647")


class Budget:
    """A token bucket. `spend` takes a token; without one the connection is at fault.

    Args:
        rate: burst and refill.
        what: the debug text of the GOAWAY.
        now_s: when the bucket is full.
    """

    __slots__ = ("_rate", "_tokens", "_updated_s", "_what")

    def __init__(self, rate: Rate, what: str, now_s: float) -> None:
        self._rate = rate
        self._what = what
        self._tokens = float(rate.burst)
        self._updated_s = now_s

    def spend(self, now_s: float) -> None:
        """Raises `ConnectionFault` (ENHANCE_YOUR_CALM) if the budget is used up."""
        passed_s = max(0.0, now_s - self._updated_s)
        self._updated_s = now_s
        self._tokens = min(float(self._rate.burst), self._tokens + passed_s * self._rate.per_s)
        if self._tokens < 1.0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, self._what)
        self._tokens -= 1.0
