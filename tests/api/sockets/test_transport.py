"""How a connection sends what is large."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from trireme.actors.socket_readiness import Readiness
from trireme.api.sockets.transport import PlainTransport
from trireme.engine.tensor import Buffer

MIB = 1 << 20
SLACK = 1 << 16


class Sink(socket.socket):
    """Takes all that it is given, and remembers how much each call gave."""

    calls: list[int]
    taken: bytes

    def send(self, data: Any, *_: Any) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Any, *_: Any) -> int:
        size = sum(map(len, buffers))
        self.calls.append(size)
        self.taken += b"".join(buffers)
        return size


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([10], 1),
        ([MIB], 1),
        ([3 * MIB + SLACK], 3),
        ([3 * MIB + SLACK + 1], 4),
        ([100, 4 * MIB, 98], 4),
        ([MIB - 1, 1, SLACK], 1),
        ([MIB // 2, MIB, MIB], 3),
    ],
    ids=str,
)
async def test_a_call_sends_no_more_than_others_can_wait_for(sizes: list[int], calls: int) -> None:
    """What little is left at the end goes along with what is before it, such as the trailers of an answer over gRPC."""
    buffers: list[Buffer] = [bytes([number]) * size for number, size in enumerate(sizes)]
    whole = b"".join(buffers)
    sink = Sink()
    sink.calls, sink.taken = [], b""
    transport = PlainTransport(sink, Readiness(use_epoll=False))
    rest = buffers
    while rest:
        rest = transport.send_now(rest)
    assert sink.taken == whole
    assert max(sink.calls) <= MIB + SLACK
    assert len(sink.calls) == calls
    transport.close()
