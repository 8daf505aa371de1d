"""Connections of the closed-loop client: each sends a request, and says when its answer is there."""

from __future__ import annotations

import select
import socket
import struct
from abc import ABC, abstractmethod

import hpack
import httptools

BUFFER_BYTES = 1 << 18
SOURCES = 200
"""Addresses of the loopback interface that connections come from: each has ports of its own."""


class RefusedError(Exception):
    """A request was not answered as it must be."""


class Connection(ABC):
    """A connection with at most one request in flight."""

    def __init__(self, port: int, number: int) -> None:
        source = (f"127.0.0.{number % SOURCES + 1}", 0)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=source)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.began_s = 0.0
        self._unsent = memoryview(b"")

    @property
    def wanted(self) -> int:
        """The events that the poller must report."""
        return select.EPOLLIN | select.EPOLLOUT if self._unsent else select.EPOLLIN

    def send(self, data: bytes) -> None:
        """Begin to send."""
        self._unsent = memoryview(data)
        self.flush()

    def flush(self) -> None:
        """Send on, as far as the socket takes it."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return

    def receive(self, buffer: memoryview) -> bool:
        """Take in what has come; whether the answer is complete.

        Raises:
            RefusedError: the server refuses the request or closes the connection.
        """
        try:
            count = self.socket.recv_into(buffer)
        except BlockingIOError:
            return False
        except ConnectionError as error:
            raise RefusedError(f"the connection broke: {error}") from error
        if not count:
            raise RefusedError("the server closed the connection")
        return self.take(buffer[:count])

    @abstractmethod
    def ask(self, request: bytes) -> None:
        """Send a request."""

    @abstractmethod
    def take(self, data: memoryview) -> bool:
        """Whether the answer is complete with this data."""

    def close(self) -> None:
        self.socket.close()


class HttpConnection(Connection):
    """HTTP/1.1; a request is the whole of its bytes."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port, number)
        self._parser = httptools.HttpResponseParser(self)
        self._complete = False
        self._error = bytearray()

    def ask(self, request: bytes) -> None:
        self._complete = False
        self.send(request)

    def take(self, data: memoryview) -> bool:
        self._parser.feed_data(data)
        if self._complete and self._error:
            status = self._parser.get_status_code()
            raise RefusedError(f"answered with {status}: {self._error[:300].decode(errors='replace')}")
        return self._complete

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._error += body

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            self._error += b" "
        self._complete = True


HEADER = struct.Struct(">BHBBL")
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
WINDOW = (1 << 31) - 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_MESSAGE = 16_000
"""Bytes: a message goes into one frame, and into the window of a stream."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


class GrpcConnection(Connection):
    """gRPC, one small call of ModelInfer at a time; a request is the bytes of its message."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port, number)
        settings = struct.pack(">HL", 4, WINDOW)
        more = struct.pack(">L", WINDOW - 65_535)
        self.send(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(8, 0, 0, more))
        self._headers = hpack.Encoder()
        self._block = b""
        self._stream = -1
        self._received = bytearray()
        self._has_data = False

    def ask(self, request: bytes) -> None:
        if len(request) > MAX_MESSAGE:
            raise RefusedError(f"this client sends messages of up to {MAX_MESSAGE} bytes")
        self._stream += 2
        self._has_data = False
        block = self._block or self._headers.encode(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/inference.GRPCInferenceService/ModelInfer"),
                (":authority", "localhost"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            ]
        )
        if self._stream > 1:  # from the second time on, all fields are in the table, and the block stays the same
            self._block = block
        message = b"\0" + struct.pack(">L", len(request)) + request
        head = frame(HEADERS, END_HEADERS, self._stream, block)
        self.send(bytes(self._unsent) + head + frame(DATA, END_STREAM, self._stream, message))

    def take(self, data: memoryview) -> bool:
        self._received += data
        complete, at = False, 0
        while len(self._received) - at >= 9:
            high, low, kind, flags, stream = HEADER.unpack_from(self._received, at)
            end = at + 9 + (high << 16 | low)
            if end > len(self._received):
                break
            complete |= self._take_frame(kind, flags, stream, bytes(self._received[at + 9 : end]))
            at = end
        del self._received[:at]
        return complete

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        if kind in {RST_STREAM, GOAWAY}:
            raise RefusedError(f"the server ended the stream or the connection: {payload!r}")
        if kind in {SETTINGS, PING} and not flags & ACK:
            self.send(bytes(self._unsent) + frame(kind, ACK, 0, b"" if kind == SETTINGS else payload))
        if stream != self._stream:
            return False
        self._has_data |= kind == DATA and len(payload) > 0
        if not (kind in {DATA, HEADERS} and flags & END_STREAM):
            return False
        if not self._has_data:
            raise RefusedError("the call was answered with an error")
        return True


TRANSPORTS: dict[str, type[Connection]] = {"http": HttpConnection, "grpc": GrpcConnection}
