"""What Trireme uses of hypercorn's insides: its HTTP/2.

`TCPServer`, `WorkerContext`, `ConnectionState`, `H2Protocol`, `HTTPStream` and `StreamBuffer` are internal to
hypercorn, so its version is pinned, no other module touches them, and a canary test compares them with what is assumed
here.

hypercorn's ways that are worked around:
- An app is not cancelled when its client goes away or resets the stream: its next message is ``http.disconnect``, for
  which the app has to look out by itself.
- A response that ends before its request's body has arrived breaks the connection; so the end of the response is held
  back until the body is in.
- An app that sends is made to wait while much is buffered, but not if the client's flow-control window is closed; what
  it sends then piles up. So each stream gets a buffer that looks at what it holds instead of at what was taken last.
- Sends are shielded from cancellation. Here each one has a time limit, and `Connection.abort` shuts the socket down.
- When the client has said its last, nothing is sent any more, but what was to be sent is waited for, by hypercorn too,
  and without end. So all sends of the connection are given up then, and its buffers closed.
- It breaks down over paths and methods that are not ASCII (UnicodeDecodeError), over requests without a path, such as
  an ordinary CONNECT (UnboundLocalError), and over data for a stream that is gone (KeyError). The connection is closed
  then, as one over HTTP/1.1 is after a request that is none.
- It closes a connection after 1,000 requests and after 5 s of idleness; both are switched off. Its idle timer is then
  what outlives a client that leaves; so the end of the stream tells hypercorn that this connection's context is
  terminated, which ends the timer.
"""

from __future__ import annotations

import logging
import math
import sys
import weakref
from collections.abc import Callable
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.protocol.h2 import BUFFER_LOW_WATER, H2Protocol, StreamBuffer
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from ..sockets.limits import Limits
from ..sockets.transport import PlainTransport, TlsTransport
from .asgi import AsgiApp, Message, Receive, Send

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PIECE_BYTES = 1 << 20

log = logging.getLogger(__name__)


async def serve_http2(app: AsgiApp, transport: PlainTransport | TlsTransport, replay: bytes, limits: Limits) -> None:
    """Lets hypercorn serve the rest of a connection.

    Args:
        app: the ASGI application.
        transport: the connection; with TLS, after its handshake.
        replay: bytes already read, which hypercorn is to read first.
        limits: as for the other connections.
    """
    context = WorkerContext(None)
    sends = _Sends(limits.write_timeout_s)
    wire: _ReplayStream
    if isinstance(transport, TlsTransport):
        wire = _SecureReplayStream(transport.stream, replay, limits, context, sends)
    else:
        wire = _ReplayStream(
            trio.SocketStream(trio.socket.from_stdlib_socket(transport.release())), replay, limits, context, sends
        )

    async def bridged(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await sends.hold_back(send)
            stream = _Stream(receive, send, sends, transport.shut_down)
            await app(scope, stream.receive, stream.send)
        elif scope["type"] == "websocket":  # an extended CONNECT
            await send({"type": "websocket.close"})

    # hypercorn annotates its arguments more narrowly than what it does with them.
    wrapper: Any = ASGIWrapper(bridged)  # type: ignore[arg-type]
    any_wire: Any = wire
    try:
        await TCPServer(wrapper, _config(limits), context, ConnectionState({}), any_wire).run()
    except* (UnicodeDecodeError, UnboundLocalError, KeyError) as group:
        log.debug("what an HTTP/2 client said ended its connection: %s", group.exceptions)


def _config(limits: Limits) -> Config:
    config = Config()
    config.errorlog = log
    config.accesslog = None
    config.include_date_header = False
    config.include_server_header = False
    config.keep_alive_timeout = math.inf if limits.idle_timeout_s is None else limits.idle_timeout_s
    config.keep_alive_max_requests = sys.maxsize
    config.h2_max_concurrent_streams = limits.streams
    config.h2_max_header_list_size = limits.head_bytes
    config.h11_max_incomplete_size = limits.head_bytes
    return config


class _Buffer(StreamBuffer):
    """What waits for a stream's window; at most `BUFFER_HIGH_WATER` and what the app sends at once."""

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


class _Sends:
    """What a connection's streams are sending: each send takes limited time, and none any once the client is gone.

    Sends are not cancelled. One that finds the client gone has the connection's streams closed, one after the other; if
    it were cancelled meanwhile, those after it would never hear of it, and their apps wait forever. They end by
    themselves when the client is gone, since their buffers are closed then.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._buffers: weakref.WeakSet[_Buffer] = weakref.WeakSet()
        self._over = False

    async def send(self, send: Send, message: Message) -> bool:
        """Whether it was sent."""
        if self._over:
            return False
        with trio.move_on_after(self._limit_s, shield=True) as patience:
            await send(message)
        return not patience.cancelled_caught

    async def hold_back(self, send: Any) -> None:
        """Give the stream that `send` writes to a `_Buffer`, before anything is written."""
        stream = getattr(send, "__self__", None)
        protocol = getattr(getattr(stream, "send", None), "__self__", None)
        if isinstance(stream, HTTPStream) and isinstance(protocol, H2Protocol):
            buffer = protocol.stream_buffers.get(stream.stream_id)
            if buffer is not None and not buffer.complete:
                buffer = protocol.stream_buffers[stream.stream_id] = _Buffer(protocol.context.event_class)
                self._buffers.add(buffer)
                if self._over:
                    await buffer.close()

    async def end(self) -> None:
        """The client is gone."""
        self._over = True
        for buffer in [*self._buffers]:
            await buffer.close()


class _ReplayStream:
    """A trio stream that first gives back what was read from it already, and whose sends take limited time."""

    def __init__(
        self,
        stream: trio.SocketStream | trio.SSLStream,
        replay: bytes,
        limits: Limits,
        context: WorkerContext,
        sends: _Sends,
    ) -> None:
        self._stream = stream
        self._replay = replay
        self._limits = limits
        self._context = context
        self._sends = sends

    @property
    def socket(self) -> trio.socket.SocketType:
        return self._stream.socket  # type: ignore[union-attr]

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._replay:
            replay, self._replay = self._replay, b""
            return replay
        data: bytes | bytearray = b""
        try:
            data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            if not data:  # also when this is cancelled, as the service ends
                await self._sends.end()
        if not data:
            await self._context.terminated.set()
        return data

    async def send_all(self, data: bytes) -> None:
        with trio.move_on_after(self._limits.write_timeout_s) as patience:
            await self._stream.send_all(data)
        if patience.cancelled_caught:
            raise trio.BrokenResourceError("the client does not read")

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.SocketStream):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _SecureReplayStream(_ReplayStream):
    """The same over TLS. hypercorn tells the two apart by whether there is a `do_handshake`."""

    async def do_handshake(self) -> None:
        assert isinstance(self._stream, trio.SSLStream)
        await self._stream.do_handshake()

    def selected_alpn_protocol(self) -> str | None:
        assert isinstance(self._stream, trio.SSLStream)
        return self._stream.selected_alpn_protocol()

    @property
    def transport_stream(self) -> trio.SocketStream:
        assert isinstance(self._stream, trio.SSLStream)
        return self._stream.transport_stream


class _Stream:
    """One HTTP/2 request between hypercorn and the app."""

    def __init__(self, receive: Receive, send: Send, sends: _Sends, shut_down: Callable[[], None]) -> None:
        self._receive = receive
        self._send = send
        self._sends = sends
        self._shut_down = shut_down
        self._body_ended = False
        self._given_up = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._body_ended = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            await self._send_in_time(message)
            return
        last = not message.get("more_body", False)
        while last and not self._body_ended:
            await self.receive()
        body = memoryview(message.get("body", b"")).cast("B")
        for start in range(0, max(len(body), 1), _PIECE_BYTES):
            more = not last or start + _PIECE_BYTES < len(body)
            piece = body[start : start + _PIECE_BYTES]
            await self._send_in_time({"type": message["type"], "body": piece, "more_body": more})

    async def _send_in_time(self, message: Message) -> None:
        if self._given_up:
            return
        if not await self._sends.send(self._send, message):
            self._given_up = True
            self._shut_down()
