"""A gateway whose sockets are prepared bytes: what it does for a request, without the system, and turn by turn.

Clients and replicas are no processes and no tasks: `PreparedSocket` has what is to be read, and keeps what was written.
Nothing happens by itself: who drives it (`PreparedGateway.turn_of`) says who has something to read.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import orjson
import trio
import trio.testing
from fleet_world import ONE, report

from trireme.actors.actor import Turn
from trireme.actors.offload import Offload
from trireme.actors.socket_readiness import Readiness
from trireme.actors.tracing import Tracing
from trireme.api.grpc import blocks
from trireme.api.grpc.application import GrpcApplication
from trireme.api.grpc.framing import prefix
from trireme.api.grpc.infer_writer import FINAL
from trireme.api.grpc.options import GrpcOptions, GrpcServiceOptions
from trireme.api.grpc.replica.link import GrpcReplicaLink
from trireme.api.grpc.service import GrpcService
from trireme.api.grpc.wire_writer import delimited, text_field
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.http2 import frames
from trireme.api.http2.headers import encode_block
from trireme.api.sockets.limits import Limits
from trireme.api.sockets.roster import Roster
from trireme.api.sockets.service import ServiceOptions
from trireme.api.sockets.transport import PlainTransport, Transport
from trireme.engine.clock import SystemClock
from trireme.engine.fleet.router import FleetRouter
from trireme.engine.fleet.types import FleetSettings
from trireme.engine.options import ServerOptions
from trireme.engine.tracing import TraceConfig
from trireme.gateway.links import LinkEvents
from trireme.gateway.server import FleetServer

REPLICAS = ("a", "b")
_HEAD = struct.Struct(">I")


def _tensor_field(number: int, name: str) -> bytes:
    return delimited(number, text_field(1, name) + text_field(2, "FP32") + delimited(3, b"\x01\x04"))


DATA = struct.pack("<4f", 0.0, 1.0, 2.0, 3.0)
ANSWER = text_field(1, "one") + text_field(2, "1") + _tensor_field(5, "OUT") + delimited(6, DATA)
"""A ``ModelInferResponse``."""
REQUEST = text_field(1, "one") + _tensor_field(5, "IN") + delimited(7, DATA)
"""A ``ModelInferRequest``, as clients write it."""

_TENSOR = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": len(DATA)}}
_JSON = orjson.dumps({"inputs": [_TENSOR], "parameters": {"binary_data_output": True}})
HTTP_REQUEST = b"".join(
    (
        b"POST /v2/models/one/infer HTTP/1.1\r\nHost: x\r\n",
        b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (len(_JSON) + len(DATA), len(_JSON)),
        _JSON,
        DATA,
    )
)
_CALLS = {
    protocol: encode_block(
        (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/inference.GRPCInferenceService/" + method),
            (b":authority", b"x"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )
    for protocol, method in (("grpc", b"ModelInfer"), ("stream", b"ModelStreamInfer"))
}
_WIDE = frames.settings(
    (
        (frames.MAX_CONCURRENT_STREAMS, 1 << 20),
        (frames.INITIAL_WINDOW_SIZE, 1 << 30),
        (frames.MAX_FRAME_SIZE, (1 << 24) - 1),
    )
) + frames.window_update(0, (1 << 31) - 1 - 65_535)
"""Whose windows hold nothing back."""


class PreparedSocket(socket.socket):
    """A socket, connected to nothing that speaks. Of the system it has a number, and that it can be closed.

    Attributes:
        incoming: what is to be read.
        written: pieces that were written.
        watch: of who reads.
    """

    def __init__(self) -> None:
        one, self._other = socket.socketpair()
        super().__init__(fileno=one.detach())
        self.setblocking(False)
        self.incoming = b""
        self.written: list[bytes] = []
        self.watch: Any = None

    def recv_into(self, buffer: Any, *_more: int) -> int:  # type: ignore[override]
        data = self.incoming
        if not data:
            raise BlockingIOError
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        self.incoming = data[count:]
        return count

    def send(self, data: Any, *_flags: int) -> int:  # type: ignore[override]
        self.written.append(data)
        return len(data)

    def sendmsg(self, buffers: Any, *_more: Any) -> int:  # type: ignore[override]
        self.written += buffers
        return sum(map(len, buffers))

    def take(self) -> bytes:
        """All that was written."""
        written = b"".join(self.written)
        self.written.clear()
        return written

    def close(self) -> None:
        super().close()
        self._other.close()


class PreparedReplica:
    """Answers each request that it finds with the same message.

    Attributes:
        sock: the gateway's.
        writes: pieces that the gateway has written.
        requests: what was in them, without heads of frames.
    """

    def __init__(self, message: bytes) -> None:
        self.sock = PreparedSocket()
        self.writes = 0
        self.requests: list[bytes] = []
        framed = prefix(False, len(message)) + message
        ok = blocks.OK["identity"]
        self._pieces = (
            frames.frame_head(len(ok.headers), frames.HEADERS, frames.END_HEADERS),
            ok.headers + frames.frame_head(len(framed), frames.DATA, 0),
            framed + frames.frame_head(len(ok.trailers), frames.HEADERS, frames.END_HEADERS | frames.END_STREAM),
            ok.trailers,
        )
        self._ok = ok

    def report(self, document: dict[str, Any]) -> bytes:
        """A report of itself, on the first stream."""
        message = delimited(1, orjson.dumps(document))
        framed = prefix(False, len(message)) + message
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, self._ok.headers)
        return head + frames.frame(frames.DATA, 0, 1, framed)

    def answer(self) -> bool:
        """Answer what was written; whether there was something."""
        self.writes += len(self.sock.written)
        data = self.sock.take()
        at, ids = 0, []
        while at < len(data):
            (head,) = _HEAD.unpack_from(data, at)
            end = at + 9 + (head >> 8)
            if head & 0xFF == frames.DATA and data[at + 4] & frames.END_STREAM:
                ids.append(data[at + 5 : at + 9])
                self.requests.append(data[at + 9 : end])
            at = end
        first, second, third, last = self._pieces
        self.sock.incoming += b"".join([p for its in ids for p in (first, its, second, its, third, its, last)])
        return bool(ids)


class PreparedClient:
    """A client's connection, and what it asks: the same each time.

    Args:
        protocol: ``http``, ``grpc``, or ``stream`` for one call on which all is asked.

    Attributes:
        message: what it asks over gRPC.
    """

    def __init__(self, protocol: str) -> None:
        self.sock = PreparedSocket()
        self.message = REQUEST
        self._protocol = protocol
        self._next_id = 1

    def ask(self) -> None:
        if self._protocol == "http":
            self.sock.incoming = HTTP_REQUEST
            return
        is_stream, stream_id = self._protocol == "stream", self._next_id
        message = prefix(False, len(self.message)) + self.message
        if is_stream and stream_id > 1:
            self.sock.incoming += frames.frame(frames.DATA, 0, 1, message)
            return
        self._next_id += 2
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, _CALLS[self._protocol])
        self.sock.incoming += head + frames.frame(
            frames.DATA, 0 if is_stream else frames.END_STREAM, stream_id, message
        )

    def answered(self) -> bool:
        """Whether a good answer has come since it was asked last."""
        expected = {"http": b" 200 OK", "grpc": prefix(False, len(ANSWER)) + ANSWER, "stream": FINAL.encode()}
        data = self.sock.take()
        return DATA in data and expected[self._protocol] in data


class PreparedLink(GrpcReplicaLink):
    replica: PreparedReplica

    async def _open(self) -> Transport:
        transport = PlainTransport(self.replica.sock, self._readiness, self.address)
        self.replica.sock.watch = transport.watch
        return transport


class PreparedGateway:
    """Attributes:
    server: the gateway.
    replicas: in order.
    """

    def __init__(self, server: FleetServer, replicas: list[PreparedReplica], nursery: trio.Nursery) -> None:
        self.server = server
        self.replicas = replicas
        self._nursery = nursery
        self._roster = Roster(Limits(), server.client_accounts, server.refusals)
        self._http = HttpService(HttpApplication(server, HttpOptions()), ServiceOptions(bind=()))
        self._http.open(server.turn)
        application = GrpcApplication(server, GrpcOptions())
        self._grpc = GrpcService(
            application.services, GrpcServiceOptions(bind=()), guards=application.guards, readiness=server.readiness
        )
        self._grpc.open(server.turn)

    async def connect(self, protocol: str = "http") -> PreparedClient:
        """A client, whose first request was answered."""
        client = PreparedClient(protocol)
        transport = PlainTransport(client.sock, self.server.readiness, "client")
        client.sock.watch = transport.watch
        service = self._http if protocol == "http" else self._grpc
        connection = service.connection(transport, ("127.0.0.1", 1), self._roster)
        self._roster.add(connection)
        self._nursery.start_soon(connection.run)
        if protocol != "http":
            client.sock.incoming = frames.PREFACE + _WIDE
        client.ask()
        await trio.testing.wait_all_tasks_blocked()
        self.turn_of(client)
        await trio.testing.wait_all_tasks_blocked()
        self.replicas_answer()
        await trio.testing.wait_all_tasks_blocked()
        assert client.answered()
        return client

    def ask(self, *clients: PreparedClient) -> None:
        """One turn in which these ask, and one in which the replicas answer."""
        for client in clients:
            client.ask()
        self.turn_of(*clients)
        self.replicas_answer()

    def turn_of(self, *ends: PreparedClient | PreparedReplica) -> None:
        """A turn in which there is something to read on these connections."""
        with self.server.turn:
            for end in ends:
                end.sock.watch.edge(select.EPOLLIN)

    def replicas_answer(self) -> None:
        ready = [each for each in self.replicas if each.answer()]
        if ready:
            self.turn_of(*ready)


@asynccontextmanager
async def prepared_gateway() -> AsyncIterator[PreparedGateway]:
    """A gateway over two replicas that have the model ``one``."""
    turn = Turn()
    clock = SystemClock(trio.lowlevel.current_clock().current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.keep_running)
        readiness = Readiness(nursery.start_soon, turn)
        replicas = {name: PreparedReplica(ANSWER) for name in REPLICAS}

        def start_link(address: str, events: LinkEvents) -> PreparedLink:
            link = PreparedLink(address, turn, readiness, events, Random(1))
            link.replica = replicas[address[0]]
            return link

        router = FleetRouter(FleetSettings(silent_s=1e9, slow_start_s=0.0), Random(1))
        tracer = Tracing(TraceConfig(), clock).tracer
        server = FleetServer(router, turn, readiness, Offload(), ServerOptions(), tracer, clock, start_link)
        await nursery.start(server.run)
        for name in REPLICAS:
            await server.join(name, f"{name}:1", 1.0)
        gateway = PreparedGateway(server, list(replicas.values()), nursery)
        await trio.testing.wait_all_tasks_blocked()
        for each in gateway.replicas:
            each.sock.take()
            for said in (_WIDE, each.report(report(ONE))):
                each.sock.incoming = said
                gateway.turn_of(each)
        await trio.testing.wait_all_tasks_blocked()
        for each in gateway.replicas:
            each.sock.take()
        yield gateway
        nursery.cancel_scope.cancel()
