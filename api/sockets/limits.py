"""Every bound of the sockets of a front end, in one place: of connections, of one address, of slow clients."""

from __future__ import annotations

import ipaddress
import resource
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one listener and its connections. ``None`` means no limit, where it is allowed.

    Times are checked by one sweep every `sweep_interval_s`, so they are met to within one interval.

    Attributes:
        head_bytes, head_fields: request line and headers together (trailers too), and their number; more: 431.
        head_timeout_s: from the first byte of a request to the end of its head (408); also for a TLS handshake.
        idle_timeout_s: between requests. None is for ever, as in Triton.
        body_timeout_s: between two reads of a body that the application waits for (408).
        body_rate, body_grace_s: see `BodyPace` (408).
        write_timeout_s: between two writes to a client that does not read its response.
        linger_timeout_s: how long a connection that is closed early still takes in what the client is sending, so that
            the client gets to read the answer instead of a reset.
        body_chunks: non-empty chunks of a chunked body (docs/reference/http.md#request-bodies).
        drain_bytes: how much of a body that the application left unread is read and dropped to keep the connection.
        max_connections: open connections; at the bound the listener stops accepting and the kernel queues.
        address_share: the part of them that one address may hold (`has_room`).
        backlog: connections that the kernel queues.
        streams: concurrent HTTP/2 streams of a connection.
    """

    head_bytes: int = 65_536
    head_fields: int = 1_024
    head_timeout_s: float = 30.0
    idle_timeout_s: float | None = None
    body_timeout_s: float = 60.0
    body_rate: int = 1024
    body_grace_s: float = 20.0
    write_timeout_s: float = 60.0
    linger_timeout_s: float = 2.0
    body_chunks: int = 65_536
    drain_bytes: int = 1 << 18
    max_connections: int = 65_536
    address_share: float = 0.5
    backlog: int = 2048
    streams: int = 100
    sweep_interval_s: float = 0.1


def within_open_files(limits: Limits, open_files: int) -> Limits:
    """The limits with no more connections than half of the files that the process may have open (below 0: without
    limit): other services, models and their processes need some, too.
    """
    if open_files < 0 or limits.max_connections <= open_files // 2:
        return limits
    return replace(limits, max_connections=max(1, open_files // 2))


def raise_open_file_limit() -> int:
    """Raises this process's soft limit of open files, usually 1,024, to its hard limit; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS calls its hard limit unlimited and refuses to go there
            return soft
    return hard


# ---- how many connections one address may hold, so that none can take the places of others. Of IPv6, the first 64 bits
# are the address: the others are chosen by the owner of those ----

_RESERVE = 0.1


def has_room(held: int, total: int, limits: Limits) -> bool:
    """Whether an address that holds `held` of `total` connections may have one more.

    Rule 1: An address that has no connection gets one, as long as there is a place.
    Rule 2: An address holds at most the part `Limits.address_share` of the places.
    Rule 3: When less than `_RESERVE` of the places are free, it holds no more than are free: the last ones are for
            those that have few.
    """
    places = limits.max_connections
    if not held:
        return True
    if held + 1 > places * limits.address_share:
        return False
    free = places - total
    return free > places * _RESERVE or held < free


def shared_address(host: str) -> str:
    """What counts as one address. `host` is numeric; anything else counts as it is."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64)) + "/64"


@dataclass(slots=True, eq=False)
class BodyPace:
    """How fast one body arrives. Times are in seconds, on any one clock.

    Rule 1: Only the time counts in which the server waits for the client. While the application does not ask for the
            body, or waits for room, a client may be as slow as it likes.
    Rule 2: When `Limits.body_grace_s` of such time have passed, the body must have come at `Limits.body_rate` on
            average.
    """

    _limits: Limits
    _nbytes: int = 0
    _waited_s: float = 0.0
    _since_s: float | None = None

    def wait(self, now_s: float) -> None:
        """The server begins to wait for more, or waits on."""
        if self._since_s is None:
            self._since_s = now_s

    def arrived(self, nbytes: int, now_s: float) -> None:
        """So many bytes have come, and the server has them to work on."""
        self._nbytes += nbytes
        if self._since_s is not None:
            self._waited_s += now_s - self._since_s
            self._since_s = None

    def is_slow(self, now_s: float) -> bool:
        """Whether the client is to be given up."""
        waited_s = self._waited_s + (0.0 if self._since_s is None else now_s - self._since_s)
        return waited_s > self._limits.body_grace_s and self._nbytes < waited_s * self._limits.body_rate
