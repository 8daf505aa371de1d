"""A replica whose every frame the test decides: the server's half of HTTP/2 behind a listening socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from trireme.api.grpc import blocks
from trireme.api.grpc.call_head import CallHead, parse_head
from trireme.api.grpc.framing import prefix
from trireme.api.http2.frames import DataReceived, RequestReceived, StreamReset, Terminated
from trireme.api.http2.limits import Http2Limits
from trireme.api.http2.server import Http2Server
from trireme.engine.tensor import Buffer

PATIENCE_S = 30.0
WATCH = "/trireme.Fleet/Watch"


class FakeConnection:
    """One that a link has made.

    Attributes:
        core: the protocol.
        heads: of the requests that have come, by their streams; without calls of Watch.
        messages: what has come of each, with gRPC's prefix.
        complete: streams whose requests are complete.
        resets: streams that were reset, and why.
        watches: streams of Watch.
        ended: it was closed, by either side.
    """

    def __init__(self, stream: trio.SocketStream, limits: Http2Limits) -> None:
        self.core: Http2Server[CallHead] = Http2Server(limits, parse_head, trio.current_time())
        self.heads: dict[int, CallHead] = {}
        self.messages: dict[int, bytes] = {}
        self.complete: set[int] = set()
        self.resets: dict[int, Any] = {}
        self.watches: list[int] = []
        self.ended = False
        self.reads = trio.Event()  # set: it takes in what is sent
        self.reads.set()
        self._stream = stream
        self._sending = trio.Lock()
        self._change = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        try:
            await self.say()
            while True:
                await self.reads.wait()
                data = await self._stream.receive_some(65_536)
                if not data:
                    break
                for event in self.core.receive(data, trio.current_time()):
                    self._take(event)
                await self.say()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.ended = True
            self._change.unpark_all()

    def _take(self, event: Any) -> None:
        match event:
            case RequestReceived(stream_id, head, _, data) if head.path == WATCH:
                self.watches.append(stream_id)
            case RequestReceived(stream_id, head, end_stream, data):
                self.heads[stream_id] = head
                self.messages[stream_id] = data
                if end_stream:
                    self.complete.add(stream_id)
            case DataReceived(stream_id, data, end_stream):
                self.core.consumed(stream_id, len(data))
                if stream_id in self.messages:
                    self.messages[stream_id] += data
                    if end_stream:
                        self.complete.add(stream_id)
            case StreamReset(stream_id, code):
                self.resets[stream_id] = code
            case Terminated():
                self.ended = True
        self._change.unpark_all()

    async def until(self, condition: Callable[[FakeConnection], object]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition(self):
                await self._change.park()

    async def requests(self, count: int) -> list[int]:
        """The streams of the first complete requests, so many."""
        await self.until(lambda connection: len(connection.complete) >= count)
        return sorted(self.complete)[:count]

    async def say(self, *raw: bytes) -> None:
        """Send what the core has to say, then these bytes."""
        async with self._sending:
            for piece in (*self.core.take_output(), *raw):
                await self._stream.send_all(piece)

    async def answer(self, stream_id: int, *parts: Buffer) -> None:
        """With a message, in so many parts."""
        size = sum(map(len, parts))
        self.core.respond(stream_id, blocks.OK["identity"], [prefix(False, size), *parts], 5 + size)
        await self.say()

    async def close(self) -> None:
        await self._stream.aclose()


class FakeReplica:
    """Attributes:
    address: where it listens.
    connections: made so far.
    """

    def __init__(self, limits: Http2Limits, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._listening = trio.CancelScope()
        self.address = ""
        self.connections: list[FakeConnection] = []
        self._limits = limits
        self._change = trio.lowlevel.ParkingLot()

    async def serve(self, task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        with self._listening:
            try:
                await trio.serve_listeners(
                    self._handle, listeners, handler_nursery=self._nursery, task_status=task_status
                )
            finally:
                for listener in listeners:
                    listener.socket.close()

    def stop(self) -> None:
        """Accept no more."""
        self._listening.cancel()

    async def _handle(self, stream: trio.SocketStream) -> None:
        connection = FakeConnection(stream, self._limits)
        self.connections.append(connection)
        self._change.unpark_all()
        await connection.run()

    async def connection(self, number: int = 0) -> FakeConnection:
        with trio.fail_after(PATIENCE_S):
            while len(self.connections) <= number:
                await self._change.park()
        return self.connections[number]


@asynccontextmanager
async def fake_replica(limits: Http2Limits | None = None) -> AsyncIterator[FakeReplica]:
    async with trio.open_nursery() as nursery:
        replica = FakeReplica(limits or Http2Limits(), nursery)
        listeners: list[trio.SocketListener] = await nursery.start(replica.serve)
        host, port = listeners[0].socket.getsockname()
        replica.address = f"{host}:{port}"
        yield replica
        nursery.cancel_scope.cancel()
