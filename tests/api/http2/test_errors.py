"""Every way to break the rules, and the error that it earns (RFC 9113)."""

from __future__ import annotations

import pytest
from http2_held import held
from http2_peer import (
    BLOCK,
    EMPTY_SETTINGS,
    REQUEST,
    TRAILERS,
    RawPeer,
    call,
    data,
    headers,
    respond,
    settings,
)

from trireme.api.http2 import frames
from trireme.api.http2.frames import DataReceived, ErrorCode, RequestReceived, StreamReset, Terminated, frame
from trireme.api.http2.headers import encode_block
from trireme.api.http2.limits import Http2Limits

LIMITS = Http2Limits(max_frame_bytes=20_000, header_block_bytes=3_000, header_list_bytes=1_000)
PAYLOAD_OF_8 = b"12345678"
REQUEST_ON_5 = headers(5)


def block_without(*names: bytes) -> bytes:
    return encode_block([(name, value) for name, value in REQUEST if name not in names])


def block_with(*fields: tuple[bytes, bytes]) -> bytes:
    return encode_block([*REQUEST, *fields])


CONNECTION_ERRORS: dict[str, tuple[bytes, ErrorCode]] = {
    "HEADERS on stream 0": (headers(0), ErrorCode.PROTOCOL_ERROR),
    "HEADERS on an even stream": (headers(2), ErrorCode.PROTOCOL_ERROR),
    "HEADERS on a lower stream": (REQUEST_ON_5 + headers(3), ErrorCode.PROTOCOL_ERROR),
    "HEADERS padded beyond its end": (frame(frames.HEADERS, 0x0C, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
    "HEADERS without room for padding": (frame(frames.HEADERS, 0x0C, 1), ErrorCode.FRAME_SIZE_ERROR),
    "HEADERS without room for priority": (frame(frames.HEADERS, 0x24, 1, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
    "HEADERS that cannot be decoded": (headers(1, b"\x40\x7f\xff"), ErrorCode.COMPRESSION_ERROR),
    "HEADERS with index 0": (headers(1, b"\x80"), ErrorCode.COMPRESSION_ERROR),
    "HEADERS with an unknown index": (headers(1, b"\xfe"), ErrorCode.COMPRESSION_ERROR),
    "HEADERS with a late table size": (headers(1, BLOCK + b"\x20\x01x\x01y"), ErrorCode.COMPRESSION_ERROR),
    "HEADERS with too large a table size": (headers(1, b"\x3f\xe2\x1f" + BLOCK), ErrorCode.COMPRESSION_ERROR),
    "header block too large": (headers(1, BLOCK + bytes(3_000)), ErrorCode.ENHANCE_YOUR_CALM),
    "header list far too large": (
        headers(1, block_with((b"x", b"y" * 900)) + b"\x82" * 300),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "DATA on stream 0": (data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA on an idle stream": (data(1, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA on an even stream": (REQUEST_ON_5 + data(2, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA all padding": (headers(1) + frame(frames.DATA, frames.PADDED, 1, b"\x04abc"), ErrorCode.PROTOCOL_ERROR),
    "DATA without room for padding": (headers(1) + frame(frames.DATA, frames.PADDED, 1), ErrorCode.FRAME_SIZE_ERROR),
    "DATA too large": (headers(1) + data(1, bytes(20_001)), ErrorCode.FRAME_SIZE_ERROR),
    "unknown frame too large": (frame(0x77, 0, 0, bytes(20_001)), ErrorCode.FRAME_SIZE_ERROR),
    "PRIORITY of 4 bytes": (frame(frames.PRIORITY, 0, 1, b"1234"), ErrorCode.FRAME_SIZE_ERROR),
    "PRIORITY on stream 0": (frame(frames.PRIORITY, 0, 0, b"12345"), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on stream 0": (frames.rst_stream(0, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (frames.rst_stream(1, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM of 3 bytes": (headers(1) + frame(frames.RST_STREAM, 0, 1, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frame(frames.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "SETTINGS of 5 bytes": (frame(frames.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS acknowledged with values": (frame(frames.SETTINGS, frames.ACK, 0, b"123456"), ErrorCode.FRAME_SIZE_ERROR),
    "ENABLE_PUSH of 2": (settings(ENABLE_PUSH=2), ErrorCode.PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE of 2^31": (settings(INITIAL_WINDOW_SIZE=2**31), ErrorCode.FLOW_CONTROL_ERROR),
    "MAX_FRAME_SIZE of 16383": (settings(MAX_FRAME_SIZE=16_383), ErrorCode.PROTOCOL_ERROR),
    "MAX_FRAME_SIZE of 2^24": (settings(MAX_FRAME_SIZE=1 << 24), ErrorCode.PROTOCOL_ERROR),
    "too many settings": (frames.settings([(0x99, 1)] * 65), ErrorCode.ENHANCE_YOUR_CALM),
    "PUSH_PROMISE": (headers(1) + frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\2" + BLOCK), ErrorCode.PROTOCOL_ERROR),
    "PING of 7 bytes": (frame(frames.PING, 0, 0, b"1234567"), ErrorCode.FRAME_SIZE_ERROR),
    "PING on a stream": (frame(frames.PING, 0, 1, PAYLOAD_OF_8), ErrorCode.PROTOCOL_ERROR),
    "GOAWAY of 7 bytes": (frame(frames.GOAWAY, 0, 0, b"1234567"), ErrorCode.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (frame(frames.GOAWAY, 0, 1, PAYLOAD_OF_8), ErrorCode.PROTOCOL_ERROR),
    "GOAWAY of 17000 bytes": (frame(frames.GOAWAY, 0, 0, bytes(17_000)), ErrorCode.ENHANCE_YOUR_CALM),
    "WINDOW_UPDATE of 3 bytes": (frame(frames.WINDOW_UPDATE, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE by 0": (frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond 2^31-1": (frames.window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE on an idle stream": (frames.window_update(1, 5), ErrorCode.PROTOCOL_ERROR),
    "CONTINUATION of nothing": (frame(frames.CONTINUATION, 4, 1, BLOCK), ErrorCode.PROTOCOL_ERROR),
    "CONTINUATION of another stream": (
        headers(1, b"", end_headers=False) + frame(frames.CONTINUATION, 4, 3, BLOCK),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "CONTINUATION that does not come": (headers(1, b"", end_headers=False) + EMPTY_SETTINGS, ErrorCode.PROTOCOL_ERROR),
    "DATA instead of CONTINUATION": (
        headers(1) + headers(3, b"", end_headers=False) + data(1),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "too many CONTINUATIONs": (
        headers(1, b"", end_headers=False) + frame(frames.CONTINUATION, 0, 1) * 9,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "CONTINUATIONs too large": (
        headers(1, bytes(2_000), end_headers=False) + frame(frames.CONTINUATION, 0, 1, bytes(1_001)),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize(("said", "code"), CONNECTION_ERRORS.values(), ids=CONNECTION_ERRORS)
def test_connection_error(said: bytes, code: ErrorCode) -> None:
    """GOAWAY with the right code, after which nothing is understood any more."""
    peer = RawPeer(LIMITS)
    events = peer.say(said, call(99))
    assert isinstance(events[-1], Terminated)
    assert events[-1].code is code
    assert sum(isinstance(event, Terminated) for event in events) == 1
    goaway = peer.goaway()
    assert goaway.code is code
    assert goaway.debug == events[-1].debug != ""
    assert peer.say(call(101)) == []
    assert len(peer.server._open) == 0
    assert not peer.server.has_output


@pytest.mark.parametrize(("said", "code"), CONNECTION_ERRORS.values(), ids=CONNECTION_ERRORS)
def test_connection_error_byte_by_byte(said: bytes, code: ErrorCode) -> None:
    """The same error, and it comes before anything of a wrong frame is held in memory."""
    peer = RawPeer(LIMITS)
    for byte in said:
        peer.say(bytes((byte,)))
        assert held(peer.server).held_bytes <= 3_000 + 16_384
    assert peer.goaway().code is code


def test_goaway_tells_which_streams_were_taken() -> None:
    peer = RawPeer()
    peer.say(call(1), call(7), frames.window_update(0, 0))
    assert peer.goaway().word == 7


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        frames.PREFACE + frames.ping(PAYLOAD_OF_8),
        frames.PREFACE + frames.SETTINGS_ACK,
        frames.PREFACE + call(1),
        frames.PREFACE + frame(0x77, 0, 0),
    ],
)
@pytest.mark.parametrize("step", [1, 100])
def test_wrong_beginnings(greeting: bytes, step: int) -> None:
    """A client must begin with the preface and SETTINGS."""
    peer = RawPeer(greet=False)
    for at in range(0, len(greeting), step):
        peer.say(greeting[at : at + step])
    sent = peer.sent()
    assert sent[0].kind == frames.SETTINGS
    assert (sent[-1].kind, sent[-1].code) == (frames.GOAWAY, ErrorCode.PROTOCOL_ERROR)
    assert peer.server.terminated


BAD_REQUESTS: dict[str, bytes] = {
    "no method": block_without(b":method"),
    "no scheme": block_without(b":scheme"),
    "no path": block_without(b":path"),
    "nothing": b"",
    "two methods": b"\x83" + BLOCK,
    "two authorities": encode_block([(b":authority", b"x")]) + BLOCK,
    "unknown pseudo-header": encode_block([(b":protocol", b"websocket")]) + BLOCK,
    "response pseudo-header": encode_block([(b":status", b"200")]) + BLOCK,
    "pseudo-header after a field": BLOCK + encode_block([(b":authority", b"x")]),
    "upper-case name": block_with((b"X-Name", b"x")),
    "empty name": block_with((b"", b"x")),
    "name with a space": block_with((b"x y", b"x")),
    "name with a line break": block_with((b"x\ny", b"x")),
    "name with a colon": block_with((b"x:y", b"x")),
    "name beyond ASCII": block_with((b"x\xe9", b"x")),
    "value with a line break": block_with((b"x", b"a\r\nb")),
    "value with NUL": block_with((b"x", b"a\0b")),
    "path with a line break": encode_block([(b":path", b"/a\nb")]) + block_without(b":path"),
    "path of nothing": encode_block([(b":path", b"")]) + block_without(b":path"),
    "connection": block_with((b"connection", b"close")),
    "keep-alive": block_with((b"keep-alive", b"1")),
    "proxy-connection": block_with((b"proxy-connection", b"1")),
    "transfer-encoding": block_with((b"transfer-encoding", b"chunked")),
    "upgrade": block_with((b"upgrade", b"h2c")),
    "te of gzip": encode_block([*REQUEST[:4], (b"te", b"gzip")]),
}


@pytest.mark.parametrize("block", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_malformed_request(block: bytes) -> None:
    """Its stream alone is reset, unannounced; the rest of it is ignored, and the next call is served."""
    peer = RawPeer()
    events = peer.say(headers(1, block), data(1, b"x", end_stream=True), call(3))
    assert events == [RequestReceived(3, REQUEST, False), DataReceived(3, b"question", True)]
    (reset,) = peer.sent()
    assert (reset.kind, reset.stream_id, reset.code) == (frames.RST_STREAM, 1, ErrorCode.PROTOCOL_ERROR)


def test_large_header_list() -> None:
    """gRPC's clients know ENHANCE_YOUR_CALM as RESOURCE_EXHAUSTED."""
    peer = RawPeer(LIMITS)
    assert peer.say(headers(1, block_with((b"x", b"y" * 900))), call(3))[0] == RequestReceived(3, REQUEST, False)
    (reset,) = peer.sent()
    assert (reset.kind, reset.stream_id, reset.code) == (frames.RST_STREAM, 1, ErrorCode.ENHANCE_YOUR_CALM)


STREAM_ERRORS: dict[str, tuple[bytes, ErrorCode]] = {
    "second HEADERS that are no trailers": (headers(1, TRAILERS), ErrorCode.PROTOCOL_ERROR),
    "trailers with pseudo-headers": (headers(1, end_stream=True), ErrorCode.PROTOCOL_ERROR),
    "trailers with an upper-case name": (
        headers(1, encode_block([(b"X", b"y")]), end_stream=True),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "trailers too large": (
        headers(1, encode_block([(b"x", b"y" * 999)]), end_stream=True),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "DATA after the end": (data(1, b"x", end_stream=True) + data(1, b"y"), ErrorCode.STREAM_CLOSED),
    "trailers after the end": (
        data(1, b"x", end_stream=True) + headers(1, TRAILERS, end_stream=True),
        ErrorCode.STREAM_CLOSED,
    ),
    "WINDOW_UPDATE by 0": (frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond 2^31-1": (frames.window_update(1, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
}


@pytest.mark.parametrize(("said", "code"), STREAM_ERRORS.values(), ids=STREAM_ERRORS)
def test_stream_error(said: bytes, code: ErrorCode) -> None:
    """RST_STREAM and a StreamReset event; nothing more comes about the stream, and others go on."""
    peer = RawPeer(LIMITS)
    peer.say(headers(1))
    events = peer.say(said, data(1, b"more"), frames.rst_stream(1, ErrorCode.CANCEL), call(3))
    reset = next(index for index, event in enumerate(events) if isinstance(event, StreamReset))
    assert events[reset] == StreamReset(1, code)
    assert [event.stream_id for event in events[reset + 1 :] if not isinstance(event, Terminated)] == [3, 3]
    (sent,) = peer.sent()
    assert (sent.kind, sent.stream_id, sent.code) == (frames.RST_STREAM, 1, code)
    respond(peer.server, 1, b"too late")
    assert not peer.server.has_output


@pytest.mark.parametrize(
    "said",
    [
        frame(frames.PRIORITY, 0, 1, b"12345"),
        frame(frames.PRIORITY, 0, 99, b"12345"),
        frame(0x77, 0xFF, 0, b"what"),
        frame(0x77, 0xFF, 1, b""),
        frame(frames.PING, frames.ACK, 0, PAYLOAD_OF_8),
        frames.SETTINGS_ACK,
        frames.settings([(0x99, 1)]),
        data(1, b"", padding=0) + data(1, b""),
    ],
)
def test_tolerated(said: bytes) -> None:
    """PRIORITY, unknown frames and settings, unexpected acknowledgements, empty DATA: no event, no harm."""
    peer = RawPeer()
    peer.say(headers(1))
    assert peer.say(said) == []
    assert peer.say(data(1, b"x", end_stream=True)) == [DataReceived(1, b"x", True)]
    assert {frame.kind for frame in peer.sent()} <= {frames.SETTINGS}, "nothing but acknowledgements of settings"


def test_reserved_bits_are_ignored() -> None:
    peer = RawPeer()
    reserved = bytearray(call(1))
    reserved[5] |= 0x80
    assert [event.stream_id for event in peer.say(bytes(reserved)) if not isinstance(event, Terminated)] == [1, 1]
    high_bit = frame(frames.WINDOW_UPDATE, 0, 1, b"\x80\0\0\x05")
    assert peer.say(high_bit) == []
    assert peer.sent() == []


def test_padding_and_priority_are_taken_off() -> None:
    peer = RawPeer()
    payload = b"\x03" + b"prior" + BLOCK + bytes(3)
    events = peer.say(
        frame(frames.HEADERS, frames.PADDED | frames.HAS_PRIORITY | frames.END_HEADERS, 1, payload),
        data(1, b"abc", padding=255),
        data(1, b"", padding=3, end_stream=True),
    )
    assert events == [
        RequestReceived(1, REQUEST, False),
        DataReceived(1, b"abc", False),
        DataReceived(1, b"", True),
    ]


@pytest.mark.parametrize("cut", range(0, len(BLOCK) + 1, 5))
def test_continuations(cut: int) -> None:
    """A header block may be cut anywhere, and END_STREAM stands on its HEADERS."""
    peer = RawPeer()
    events = peer.say(
        headers(1, BLOCK[:cut], end_headers=False, end_stream=True),
        frame(frames.CONTINUATION, 0, 1, BLOCK[cut : cut + 7]),
        frame(frames.CONTINUATION, frames.END_HEADERS, 1, BLOCK[cut + 7 :]),
        call(3),
    )
    assert events[:2] == [RequestReceived(1, REQUEST, True), RequestReceived(3, REQUEST, False)]


def test_as_many_continuations_as_allowed() -> None:
    peer = RawPeer(Http2Limits(continuation_frames=3))
    pieces = [BLOCK[:10], BLOCK[10:20], b"", BLOCK[20:]]
    talk = [headers(1, pieces[0], end_headers=False)]
    talk += [frame(frames.CONTINUATION, frames.END_HEADERS * (n == 3), 1, pieces[n]) for n in (1, 2, 3)]
    assert peer.say(*talk) == [RequestReceived(1, REQUEST, False)]


def test_unknown_reset_code() -> None:
    """Means INTERNAL_ERROR (RFC 9113 §7)."""
    peer = RawPeer()
    peer.say(headers(1))
    assert peer.say(frame(frames.RST_STREAM, 0, 1, b"\0\0\1\0")) == [StreamReset(1, ErrorCode.INTERNAL_ERROR)]


def test_trailers_of_the_client() -> None:
    peer = RawPeer()
    assert peer.say(headers(1), headers(1, TRAILERS, end_stream=True))[1:] == [DataReceived(1, b"", True)]


@pytest.mark.parametrize("kind", [*range(10), 0x77])
def test_frame_that_is_too_large_is_refused_by_its_header(kind: int) -> None:
    """However long its payload would take, or whether it comes at all."""
    stream_id = 0 if kind in (frames.SETTINGS, frames.PING, frames.GOAWAY) else 1
    peer = RawPeer(Http2Limits(max_frame_bytes=20_000))
    peer.say(headers(1), frames.FRAME_HEADER.pack(20_001 << 8 | kind, 0, stream_id))
    assert peer.goaway().code is ErrorCode.FRAME_SIZE_ERROR
