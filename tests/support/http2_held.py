"""What HTTP/2 connections hold at one moment, as their tests look at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trireme.api.grpc.service import GrpcService
from trireme.api.http2.server import Http2Server


@dataclass(frozen=True)
class Held:
    """What one connection holds.

    Attributes:
        open_streams: announced, and neither fully answered nor reset.
        held_bytes: incomplete frames and header blocks.
        unconsumed_bytes: data delivered and not yet consumed.
        pending_bytes: data that the client's windows hold back.
        cached_heads: header blocks whose meaning is remembered.
    """

    open_streams: int
    held_bytes: int
    unconsumed_bytes: int
    pending_bytes: int
    cached_heads: int


def held(server: Http2Server[Any]) -> Held:
    streams = server._open.values()
    return Held(
        open_streams=len(streams),
        held_bytes=server._reader.held_bytes + len(server._unread),
        unconsumed_bytes=sum(stream.unconsumed for stream in streams),
        pending_bytes=sum(stream.queue.pending for stream in streams if stream.queue is not None),
        cached_heads=len(server._headers.heads),
    )


@dataclass(frozen=True)
class Watched:
    """All connections of a gRPC service.

    Attributes:
        calls: open now.
        deadlines: calls that have one.
        streams: open HTTP/2 streams, which answered calls hold until their answer has gone out.
        pending_bytes: responses held back by clients' windows.
        unconsumed_bytes: requests that handlers have not taken.
        blocked: connections whose clients do not read.
    """

    calls: int
    deadlines: int
    streams: int
    pending_bytes: int
    unconsumed_bytes: int
    blocked: int


def watch(service: GrpcService) -> Watched:
    connections = service._group.connections
    cores = [held(connection.core) for connection in connections]
    return Watched(
        calls=sum(len(connection.calls) for connection in connections),
        deadlines=len(service._deadlines),
        streams=sum(core.open_streams for core in cores),
        pending_bytes=sum(core.pending_bytes for core in cores),
        unconsumed_bytes=sum(core.unconsumed_bytes for core in cores),
        blocked=sum(connection.blocked for connection in connections),
    )
