"""gRPC streams for the load client: the requests of a connection go over one stream, each when the one before was
answered. The server's headers are not looked at unless the stream ends: then they say why."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Sequence

from ..proto.messages import inference
from .connections import RefusedError
from .grpc_connection import DATA, END_HEADERS, END_STREAM, HEADERS, WINDOW_UPDATE, GrpcLoadConnection, frame

STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"

WANTS_FINAL = "triton_enable_empty_final_response"
"""The parameter of a request that is answered many times."""

_IS_FINAL = b"\x0a\x15triton_final_response\x12\x02\x08\x01"
"""In the last one of its answers."""

_PREFIX = struct.Struct(">BL")
_GIVE_BACK_BYTES = 1 << 30


class StreamLoadConnection(GrpcLoadConnection):
    """Requests of `ModelStreamInfer`; the parts of one are those of its message. A request has one answer, unless it
    says that it wants to be told of the last one (`WANTS_FINAL`)."""

    _ends_stream = 0

    def __init__(
        self,
        port: int,
        number: int,
        host: str = "127.0.0.1",
        path: str = STREAM_PATH,
        metadata: Sequence[tuple[str, str]] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(port, number, host, path, metadata, tls)
        self._answer = bytearray()
        self._many = False
        self._given_back = 0

    def ask(self, request: Sequence[bytes]) -> None:
        """See `LoadConnection`."""
        begun = b""
        self._many = bool(request) and WANTS_FINAL.encode() in request[0]
        if self._stream < 0:
            self._stream, self._stream_window = 1, self._initial_window
            begun = frame(HEADERS, END_HEADERS, self._stream, self._block)
        prefix = _PREFIX.pack(0, sum([len(part) for part in request]))
        self._unframed = [memoryview(part) for part in (prefix, *request) if part]
        self.send(begun, *self._framed())

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        if stream != self._stream or kind not in (DATA, HEADERS):
            return super()._take_frame(kind, flags, stream, payload)
        if flags & END_STREAM:
            super()._take_frame(kind, flags, stream, payload)
            raise RefusedError(f"the server ended the stream: {self.reason or 'without a reason'}")
        if kind == HEADERS:
            return False
        self._consume(len(payload))
        self._give_back_stream(len(payload))
        self._answer += payload
        while len(self._answer) >= _PREFIX.size:
            end = _PREFIX.size + _PREFIX.unpack_from(self._answer)[1]
            if len(self._answer) < end:
                return False
            # A good answer begins with its second member; one with an error is short.
            good = self._answer[_PREFIX.size : _PREFIX.size + 1] != b"\x0a"
            self.status, self.reason = (0, "") if good else _failure(bytes(self._answer[_PREFIX.size : end]))
            final = not (self._many and good) or self._answer.find(_IS_FINAL, 0, end) >= 0
            del self._answer[:end]
            if final:
                return True
        return False

    def _give_back_stream(self, nbytes: int) -> None:
        """Windows are those of streams, too."""
        self._given_back += nbytes
        if self._given_back >= _GIVE_BACK_BYTES:
            self.send(frame(WINDOW_UPDATE, 0, self._stream, struct.pack(">L", self._given_back)))
            self._given_back = 0


def _failure(message: bytes) -> tuple[int, str]:
    """Status and reason of an answer with an error: the protocol has no status for each of a stream's."""
    return 2, inference.ModelStreamInferResponse.parse(message).error_message
