"""HTTP/2 frames of the load client, which come from the test."""

from __future__ import annotations

import struct

import hpack
import pytest

from trireme.clients.connections import RefusedError
from trireme.clients.grpc_connection import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    GrpcLoadConnection,
    frame,
)

OK = b"\x88"


class Unconnected(GrpcLoadConnection):
    """A gRPC connection without a socket; the first request has the stream 1."""

    def __init__(self, asked: tuple[bytes, ...] = (b"request",)) -> None:
        self.status, self.reason, self.message = 0, "", b""
        self._stream = -1
        self._received = bytearray()
        self._leaving = False
        self._consumed = 0
        self._window = self._initial_window = 65_535
        self._block = b""
        self.sent = b""
        self.ask(asked)

    def send(self, *parts: bytes) -> None:
        self.sent += b"".join(parts)

    def sent_data(self) -> tuple[bytes, bool]:
        """The message as far as it was sent, and whether it is complete."""
        data, ended, at = b"", False, 0
        while at < len(self.sent):
            high, low, kind, flags, _ = HEADER.unpack_from(self.sent, at)
            end = at + 9 + (high << 16 | low)
            if kind == DATA:
                assert end - at - 9 <= 16_384
                data += self.sent[at + 9 : end]
                ended |= bool(flags & END_STREAM)
            at = end
        return data, ended


def test_answers_are_complete_with_their_trailers_however_they_arrive() -> None:
    message = b"\0" + struct.pack(">L", 3) + b"abc"
    answer = frame(HEADERS, END_HEADERS, 1, OK) + frame(DATA, 0, 1, message)
    answer += frame(HEADERS, END_HEADERS | END_STREAM, 1, OK)
    for cut in range(len(answer)):
        connection = Unconnected()
        connection.keeps_messages = True
        assert not connection.take(memoryview(answer[:cut]))
        assert connection.take(memoryview(answer[cut:]))
        assert (connection.status, connection.message) == (0, message)


def test_an_answer_without_a_message_says_why() -> None:
    fields = [("grpc-status", "14"), ("grpc-message", "not%20ready")]
    block = OK + hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*field) for field in fields])
    connection = Unconnected()
    assert connection.take(memoryview(frame(HEADERS, END_HEADERS | END_STREAM, 1, block)))
    assert (connection.status, connection.reason) == (14, "not ready")
    assert connection.take(memoryview(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff" * 40)))
    assert (connection.status, connection.reason) == (2, "the call was answered with an error")


def test_an_answer_of_http_is_none_of_grpc() -> None:
    """A port of HTTP speaks HTTP/2 as well, and says 404 in a body without trailers."""
    connection = Unconnected()
    answer = frame(HEADERS, END_HEADERS, 1, b"\x8d") + frame(DATA, END_STREAM, 1, b'{"error":"Not Found"}')
    assert connection.take(memoryview(answer))
    assert (connection.status, connection.reason) == (
        2,
        "what answers does not speak gRPC: there are no trailers",
    )


def test_a_stream_that_is_reset_is_an_answer() -> None:
    connection = Unconnected()
    assert connection.take(memoryview(frame(RST_STREAM, 0, 1, struct.pack(">L", 7))))
    assert (connection.status, connection.reason) == (2, "the server ended the stream with code 7")


def test_a_server_that_leaves_is_asked_nothing_more() -> None:
    """What it has taken, it answers; what it has not is lost."""
    connection = Unconnected()
    assert not connection.take(memoryview(frame(GOAWAY, 0, 0, struct.pack(">LL", 1, 0))))
    assert not connection.usable
    with pytest.raises(RefusedError, match="the server ended the connection: bye"):
        Unconnected().take(memoryview(frame(GOAWAY, 0, 0, struct.pack(">LL", 0, 0) + b"bye")))


def test_settings_and_pings_are_acknowledged() -> None:
    connection = Unconnected()
    connection.sent = b""
    assert not connection.take(memoryview(frame(SETTINGS, 0, 0) + frame(6, 0, 0, b"12345678")))
    assert connection.sent == frame(SETTINGS, 1, 0) + frame(6, 1, 0, b"12345678")


def test_large_messages_wait_for_the_server_to_make_room() -> None:
    parts = bytes(40_000), b"a" * 40_000, b"b" * 5
    whole = b"\0" + struct.pack(">L", 80_005) + b"".join(parts)
    connection = Unconnected(parts)
    assert connection.sent_data() == (whole[:65_535], False)
    connection.take(memoryview(frame(SETTINGS, 0, 0, struct.pack(">HL", 4, 100_000))))
    assert connection.sent_data() == (whole[:65_535], False)
    connection.take(memoryview(frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 10))))
    assert connection.sent_data() == (whole[:65_545], False)
    connection.take(memoryview(frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 100_000))))
    assert connection.sent_data() == (whole, True)


def test_room_is_given_back_for_what_was_received() -> None:
    connection = Unconnected()
    connection._consumed = (1 << 30) - 3
    connection.sent = b""
    connection.take(memoryview(frame(DATA, 0, 1, b"abc")))
    assert connection.sent == frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 1 << 30))
