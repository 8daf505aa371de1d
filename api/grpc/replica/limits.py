"""Every bound of a link to a replica, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...http2.limits import Http2Limits, KeepaliveOptions, Rate
from ..framing import INT32_MAX


def _http2() -> Http2Limits:
    return Http2Limits(
        max_concurrent_streams=1 << 16,
        stream_window_bytes=1 << 18,
        resets=Rate(1 << 16, 20_000.0),
        keepalive=KeepaliveOptions(
            time_s=10.0,
            timeout_s=10.0,
            permit_without_calls=True,
            max_pings_without_data=0,
            min_recv_ping_interval_without_data_s=0.0,
            max_ping_strikes=0,
        ),
    )


_RESETS = Rate(4096, 500.0)


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Bounds and times of a link.

    Attributes:
        connect_timeout_s: for connecting and shaking hands, TLS included.
        first_retry_s, longest_retry_s: how long to wait before connecting anew; twice as long after each failure. Each
            is varied by up to a half, so that gateways do not come all at once.
        lasting_s: a connection that was ready for so long is no failure.
        waiting_requests: requests that wait because the replica takes no more at a time; more fail.
        unsent_bytes: of requests that wait to be written; from there on the link has no room.
        max_message_bytes: of one answer.
        resets: requests that are cancelled at the replica. Of those beyond, the answers are dropped when they come: a
            server takes a client that resets too much for an attack, and here are many clients in one.
        report_interval_ms: how often the replica is to report.
        watch_retry_s: before asking anew for reports that have failed.
        http2: of each connection. A stream's window is what a slow reader keeps in memory.
    """

    connect_timeout_s: float = 5.0
    first_retry_s: float = 0.1
    longest_retry_s: float = 10.0
    lasting_s: float = 5.0
    waiting_requests: int = 1024
    unsent_bytes: int = 1 << 26
    max_message_bytes: int = INT32_MAX
    resets: Rate = _RESETS
    report_interval_ms: int = 100
    watch_retry_s: float = 1.0
    http2: Http2Limits = field(default_factory=_http2)
