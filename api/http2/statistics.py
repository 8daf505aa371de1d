"""What a connection is doing, as a record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Http2Statistics:
    """What a connection is doing.

    Attributes:
        open_streams: announced, and neither fully answered nor reset.
        requests: announced so far.
        refused: streams beyond the limit, or after GOAWAY.
        resets_received: by the client.
        resets_sent: to the client, for whatever reason.
        held_bytes: incomplete frames and header blocks.
        unconsumed_bytes: data delivered and not yet consumed.
        pending_bytes: data that the client's windows hold back.
        cached_heads: header blocks whose meaning is remembered.
    """

    open_streams: int
    requests: int
    refused: int
    resets_received: int
    resets_sent: int
    held_bytes: int
    unconsumed_bytes: int
    pending_bytes: int
    cached_heads: int
