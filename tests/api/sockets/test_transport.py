"""How a connection sends what is large."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio.testing

from trireme.actors.socket_readiness import Readiness
from trireme.api.sockets import transport as transport_module
from trireme.api.sockets.transport import PlainTransport
from trireme.engine.tensor import Buffer

MIB = 1 << 20
SLACK = 1 << 16


class Sink(socket.socket):
    """Takes all that it is given, but for one call after each of `full`, and remembers how much each call gave."""

    calls: list[int]
    taken: bytes
    full: set[int]

    def send(self, data: Any, *_: Any) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Any, *_: Any) -> int:
        if len(self.calls) in self.full:
            self.full.remove(len(self.calls))
            raise BlockingIOError
        size = sum(map(len, buffers))
        self.calls.append(size)
        self.taken += b"".join(buffers)
        return size


def make_sink(*full: int) -> Sink:
    sink = Sink()
    sink.calls, sink.taken, sink.full = [], b"", set(full)
    return sink


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
    sink = make_sink()
    transport = PlainTransport(sink, Readiness(use_epoll=False))
    rest = buffers
    while rest:
        rest = transport.send_now(rest)
    assert sink.taken == whole
    assert max(sink.calls) <= MIB + SLACK
    assert len(sink.calls) == calls
    transport.close()


async def test_a_socket_that_has_room_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    async def wait(sock: Sink) -> None:
        waited.append(len(sock.calls))

    monkeypatch.setattr(transport_module, "wait_writable", wait)
    sink = make_sink(2)
    transport = PlainTransport(sink, Readiness(use_epoll=False))
    rest: list[Buffer] = [bytes(5 * MIB)]
    while rest:
        with trio.testing.assert_checkpoints():
            rest = await transport.send_some(rest)
    assert len(sink.taken) == 5 * MIB
    assert waited == [2], "only when it was full"
    transport.close()
