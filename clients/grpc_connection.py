"""gRPC for the load client: calls with one request message, one at a time, on a connection of HTTP/2 that does no more
than that takes.

The server is told that its headers may refer to no table (SETTINGS_HEADER_TABLE_SIZE 0), so that headers need to be
decoded only where an answer has no message: there they say why.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Sequence
from urllib.parse import unquote

import hpack

from .connections import LoadConnection, RefusedError

HEADER = struct.Struct(">BHBBL")
PREFIX = struct.Struct(">xL")
"""In front of a message: that it is not compressed, and its length."""
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER_PATH = "/inference.GRPCInferenceService/ModelInfer"

_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65_535
_FRAME_BYTES = 16_384
_GIVE_BACK_BYTES = 1 << 30
_TABLE_SIZE, _INITIAL_WINDOW = 1, 4
_LAST_STREAM = (1 << 31) - 3
NO_GRPC = "what answers does not speak gRPC: there are no trailers"
"""The reason of an answer that is no gRPC."""
_UNKNOWN = 2


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return frame_header(kind, flags, stream, len(payload)) + payload


def frame_header(kind: int, flags: int, stream: int, nbytes: int) -> bytes:
    """What stands in front of so many bytes."""
    return HEADER.pack(nbytes >> 16, nbytes & 0xFFFF, kind, flags, stream)


class GrpcLoadConnection(LoadConnection):
    """Calls of one method; the parts of a request are those of its message.

    Args:
        metadata: of each call, names in lower case.

    Attributes:
        message: what has come of the last answer and was not taken, if `keeps_messages`; with prefixes.
    """

    keeps_messages = False
    _ends_stream = END_STREAM
    """Flag of the last frame of a request."""

    def __init__(
        self,
        port: int,
        number: int,
        host: str = "127.0.0.1",
        path: str = INFER_PATH,
        metadata: Sequence[tuple[str, str]] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(port, number, host, tls)
        self.message = b""
        self._stream = -1
        self._received = bytearray()
        self._has_data = self._leaving = False
        self._consumed = 0
        self._window, self._stream_window, self._initial_window = _FIRST_WINDOW, 0, _FIRST_WINDOW
        self._unframed: list[memoryview] = []
        self._block = _request_block("http" if tls is None else "https", f"{host}:{port}", path, metadata)
        settings = struct.pack(">HLHL", _TABLE_SIZE, 0, _INITIAL_WINDOW, _WINDOW)
        more = struct.pack(">L", _WINDOW - _FIRST_WINDOW)
        self.send(PREFACE, frame(SETTINGS, 0, 0, settings), frame(WINDOW_UPDATE, 0, 0, more))

    @property
    def usable(self) -> bool:
        """See `LoadConnection`."""
        return not self._leaving and self._stream < _LAST_STREAM

    def ask(self, request: Sequence[bytes]) -> None:
        """See `LoadConnection`."""
        self._stream += 2
        self._has_data = False
        self.message = b""
        self._stream_window = self._initial_window
        prefix = b"\0" + struct.pack(">L", sum([len(part) for part in request]))
        self._unframed = [memoryview(part) for part in (prefix, *request) if part]
        self.send(frame(HEADERS, END_HEADERS, self._stream, self._block), *self._framed())

    def next_message(self) -> bytes | None:
        """Take the first message of the answer off `message`; None if it has not come as a whole."""
        if len(self.message) < PREFIX.size:
            return None
        end = PREFIX.size + PREFIX.unpack_from(self.message)[0]
        if len(self.message) < end:
            return None
        taken, self.message = self.message[PREFIX.size : end], self.message[end:]
        return taken

    def _framed(self) -> list[bytes]:
        """As much of the message as the windows let out."""
        parts: list[bytes] = []
        unframed = self._unframed
        while unframed:
            room = min(_FRAME_BYTES, self._window, self._stream_window)
            if room <= 0:
                break
            chunk: list[bytes] = []
            nbytes = 0
            while unframed and nbytes < room:
                piece = unframed[0][: room - nbytes]
                chunk.append(bytes(piece))
                nbytes += len(piece)
                unframed[0] = unframed[0][len(piece) :]
                if not unframed[0]:
                    unframed.pop(0)
            self._window -= nbytes
            self._stream_window -= nbytes
            parts += [frame_header(DATA, 0 if unframed else self._ends_stream, self._stream, nbytes), *chunk]
        return parts

    def take(self, data: memoryview) -> bool:
        """See `LoadConnection`."""
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
        """Whether the answer is complete with this frame."""
        if kind == DATA:
            self._consume(len(payload))
        elif kind == SETTINGS and not flags & ACK:
            self._take_settings(payload)
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._take_room(stream, int.from_bytes(payload[:4], "big"))
        elif kind == GOAWAY:
            self._leaving = True
            if self._stream < 0 or int.from_bytes(payload[:4], "big") < self._stream:
                raise RefusedError(f"the server ended the connection: {payload[8:308].decode(errors='replace')}")
        elif kind == CONTINUATION:
            raise RefusedError("the server's headers are longer than a frame, which this client does not read")
        if stream != self._stream:
            return False
        if kind == RST_STREAM:
            code = int.from_bytes(payload[:4], "big")
            self.status, self.reason = _UNKNOWN, f"the server ended the stream with code {code}"
            return True
        if kind == DATA:
            self._has_data |= len(payload) > 0
            if self.keeps_messages:
                self.message += payload
        if not (kind in (DATA, HEADERS) and flags & END_STREAM):
            return False
        if kind == DATA:
            self.status, self.reason = _UNKNOWN, NO_GRPC
        else:
            self.status, self.reason = (0, "") if self._has_data else _status(payload)
        return True

    def _take_settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HL", payload):
            if name == _INITIAL_WINDOW:
                self._stream_window += value - self._initial_window
                self._initial_window = value
        self.send(frame(SETTINGS, ACK, 0), *self._framed())

    def _take_room(self, stream: int, more: int) -> None:
        if not stream:
            self._window += more
        elif stream == self._stream:
            self._stream_window += more
        if self._unframed:
            self.send(*self._framed())

    def _consume(self, nbytes: int) -> None:
        self._consumed += nbytes
        if self._consumed >= _GIVE_BACK_BYTES:
            self.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", self._consumed)))
            self._consumed = 0


def _request_block(scheme: str, authority: str, path: str, metadata: Sequence[tuple[str, str]]) -> bytes:
    """The headers of a call, which refer to no table either."""
    encoder = hpack.Encoder()
    fields = [
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *metadata,
    ]
    return encoder.encode([hpack.NeverIndexedHeaderTuple(name, value) for name, value in fields])


def _status(block: bytes) -> tuple[int, str]:
    """Why there is no message."""
    try:
        fields = {str(name): str(value) for name, value in hpack.Decoder().decode(block)}
    except hpack.HPACKError:
        return _UNKNOWN, "the call was answered with an error"
    code = fields.get("grpc-status", "")
    text = unquote(fields.get("grpc-message", "")) or "the call was answered with an error"
    return (int(code) if code.isdecimal() and int(code) else _UNKNOWN), text
