"""Flow control both ways, and the order in which streams that wait get their turn."""

from __future__ import annotations

import pytest
from http2_peer import HEADERS, TRAILERS, Frame, RawPeer, call, data, headers, respond, settings

from trireme.api.http2 import frames
from trireme.api.http2.frames import (
    DATA,
    WINDOW_UPDATE,
    DataReceived,
    ErrorCode,
    StreamDrained,
    StreamReset,
    Terminated,
)
from trireme.api.http2.limits import Http2Limits

WINDOW = 65_535
SMALL = Http2Limits(stream_window_bytes=WINDOW, connection_window_bytes=WINDOW)


def sizes(sent: list[Frame], stream_id: int | None = None) -> list[int]:
    wanted = [frame for frame in sent if frame.kind == DATA and stream_id in (None, frame.stream_id)]
    return [len(frame.payload) for frame in wanted]


# ---- what the server may send ----


def test_answer_waits_for_its_window() -> None:
    """Window by window, and trailers only after the last byte."""
    peer = RawPeer(INITIAL_WINDOW_SIZE=0)
    peer.say(call(1))
    respond(peer.server, 1, b"0123456789")
    assert [frame.kind for frame in peer.sent()] == [frames.HEADERS]
    assert peer.server.pending(1) == 10
    assert peer.say(frames.window_update(1, 4)) == []
    assert [frame.payload for frame in peer.sent()] == [b"0123"]
    assert peer.server.pending(1) == 6
    assert peer.say(frames.window_update(1, 6)) == [StreamDrained(1)]
    body, trailers = peer.sent()
    assert (body.payload, trailers.payload, trailers.flags) == (b"456789", TRAILERS, 5)
    assert peer.server.pending(1) == 0


def test_empty_answer_needs_no_window() -> None:
    peer = RawPeer(INITIAL_WINDOW_SIZE=0)
    peer.say(call(1))
    respond(peer.server, 1, b"")
    assert [frame.kind for frame in peer.sent()] == [frames.HEADERS, DATA, frames.HEADERS]
    assert len(peer.server._open) == 0


def test_streamed_data_waits_in_order() -> None:
    peer = RawPeer(INITIAL_WINDOW_SIZE=0)
    peer.say(headers(1))
    peer.server.send_headers(1, HEADERS)
    for piece in (b"one", b"two", b"three"):
        peer.server.send_data(1, (piece[:1], memoryview(piece)[1:]))
    assert peer.server.pending(1) == 11
    peer.sent()
    peer.say(frames.window_update(1, 7))
    assert b"".join(frame.payload for frame in peer.sent()) == b"onetwot"
    peer.server.send_data(1, (b"four",))
    peer.server.send_headers(1, TRAILERS, end_stream=True)
    assert peer.sent() == []
    peer.say(frames.window_update(1, 8))
    assert b"".join(frame.payload for frame in peer.of_kind(DATA)) == b"hreefour"


def test_settings_change_the_windows_of_open_streams() -> None:
    """They may become negative, and then must become positive before anything is sent (RFC 9113 §6.9.2)."""
    peer = RawPeer(INITIAL_WINDOW_SIZE=100)
    peer.say(headers(1))
    peer.server.send_headers(1, HEADERS)
    peer.server.send_data(1, (b"x" * 150,))
    assert sizes(peer.sent()) == [100]
    assert peer.say(settings(INITIAL_WINDOW_SIZE=30)) == []
    assert peer.say(frames.window_update(1, 70)) == []
    assert sizes(peer.sent()) == [], "-70 + 70"
    assert peer.say(frames.window_update(1, 1)) == []
    assert sizes(peer.sent()) == [1]
    assert peer.say(settings(INITIAL_WINDOW_SIZE=79)) == [StreamDrained(1)]
    assert sizes(peer.sent()) == [49]
    peer.say(headers(3))
    peer.server.send_data(3, (b"x" * 80,))
    assert sizes(peer.sent()) == [79], "new streams begin with it"


def test_settings_may_not_overflow_a_window() -> None:
    peer = RawPeer()
    peer.say(headers(1), frames.window_update(1, 1000))
    peer.say(settings(INITIAL_WINDOW_SIZE=2**31 - 1000))
    assert peer.goaway().code is ErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.parametrize("stream_id", [0, 1])
def test_largest_window_is_legal(stream_id: int) -> None:
    peer = RawPeer()
    peer.say(headers(1))
    assert peer.say(frames.window_update(stream_id, 2**31 - 1 - WINDOW)) == []
    events = peer.say(frames.window_update(stream_id, 1))
    assert [type(event) for event in events] == [StreamReset if stream_id else Terminated]
    assert events[0].code is ErrorCode.FLOW_CONTROL_ERROR


def test_frames_are_as_large_as_allowed() -> None:
    peer = RawPeer(MAX_FRAME_SIZE=20_000)
    peer.say(call(1))
    respond(peer.server, 1, b"x" * 50_000)
    assert sizes(peer.sent()) == [20_000, 20_000, 10_000]


def test_connection_window_is_shared_in_turns() -> None:
    """Streams that wait for the connection get one frame each, round and round, whatever their length."""
    peer = RawPeer(INITIAL_WINDOW_SIZE=1 << 20)
    peer.say(call(1), call(3), call(5))
    respond(peer.server, 1, b"1" * 200_000)
    respond(peer.server, 3, b"3" * 40_000)
    respond(peer.server, 5, b"5" * 10)
    assert sizes(peer.sent(), 1) == [16_384, 16_384, 16_384, 16_383]
    events = peer.say(frames.window_update(0, 100_000))
    turns = [(frame.stream_id, len(frame.payload)) for frame in peer.of_kind(DATA)]
    assert turns[:6] == [(1, 16_384), (3, 16_384), (5, 10), (1, 16_384), (3, 16_384), (1, 16_384)]
    assert events == [StreamDrained(5), StreamDrained(3)]
    assert sum(size for _, size in turns) == 100_000


def test_stream_without_window_does_not_hold_up_others() -> None:
    peer = RawPeer(INITIAL_WINDOW_SIZE=1 << 20)
    peer.say(call(1), call(3))
    respond(peer.server, 1, b"1" * WINDOW)  # uses up the connection's window
    peer.say(settings(INITIAL_WINDOW_SIZE=0), call(5))
    respond(peer.server, 5, b"5" * 10)
    respond(peer.server, 3, b"3" * 10)
    peer.sent()
    peer.say(frames.window_update(0, 1000))
    assert sizes(peer.sent()) == []
    peer.say(frames.window_update(3, 1 << 20))
    assert sizes(peer.sent(), 3) == [10]
    peer.say(frames.window_update(5, 10))
    assert sizes(peer.sent(), 5) == [10]
    assert len(peer.server._open) == 0


def test_shrunk_stream_leaves_the_queue_and_comes_back() -> None:
    """It waits for the connection, then its own window is taken away, then given again."""
    peer = RawPeer(INITIAL_WINDOW_SIZE=1 << 20)
    peer.say(call(1), call(3))
    respond(peer.server, 1, b"1" * WINDOW)
    respond(peer.server, 3, b"3" * 5000)
    peer.say(settings(INITIAL_WINDOW_SIZE=0), frames.window_update(0, 5000))
    assert sizes(peer.sent(), 3) == []
    assert peer.say(settings(INITIAL_WINDOW_SIZE=5000)) == [StreamDrained(3)]
    assert sizes(peer.sent(), 3) == [5000]


def test_reset_stream_gives_up_its_turn() -> None:
    peer = RawPeer(INITIAL_WINDOW_SIZE=1 << 20)
    peer.say(call(1), call(3))
    respond(peer.server, 1, b"1" * 100_000)
    respond(peer.server, 3, b"3" * 10)
    peer.say(frames.rst_stream(1, ErrorCode.CANCEL))
    peer.sent()
    assert peer.say(frames.window_update(0, 10)) == [StreamDrained(3)]
    assert sizes(peer.sent()) == [10]


# ---- what the client may send ----


def test_window_of_a_stream_must_be_kept() -> None:
    """A stream that sends too much is reset; the connection, and its window, live on."""
    peer = RawPeer(Http2Limits(stream_window_bytes=WINDOW))
    peer.say(headers(1), *[data(1, bytes(16_000))] * 4)
    assert peer.say(data(1, bytes(1535))) == [DataReceived(1, bytes(1535), False)]
    assert peer.say(data(1, b"x")) == [StreamReset(1, ErrorCode.FLOW_CONTROL_ERROR)]
    (reset,) = peer.sent()
    assert (reset.stream_id, reset.code) == (1, ErrorCode.FLOW_CONTROL_ERROR)
    assert len(peer.say(call(3))) == 2


def test_window_of_the_connection_must_be_kept() -> None:
    peer = RawPeer(SMALL)
    peer.say(headers(1), headers(3), *[data(1, bytes(16_000))] * 4)
    assert len(peer.say(data(3, bytes(1535)))) == 1
    assert [type(event) for event in peer.say(data(3, b"x"))] == [Terminated]
    assert peer.goaway().code is ErrorCode.FLOW_CONTROL_ERROR


def test_whole_frame_counts_though_only_a_part_has_come() -> None:
    """A frame that would exceed the window is refused before its first byte is delivered."""
    peer = RawPeer(Http2Limits(stream_window_bytes=WINDOW))
    peer.say(headers(1))
    assert peer.say(data(1, bytes(WINDOW + 1))[:100]) == [StreamReset(1, ErrorCode.FLOW_CONTROL_ERROR)]
    assert peer.say(data(1, bytes(WINDOW + 1))[100:]) == []
    assert len(peer.say(call(3))) == 2


def test_windows_reopen_by_halves() -> None:
    """Not for every message: only when half of a window has been used up."""
    peer = RawPeer(SMALL)
    peer.say(headers(1), *[data(1, bytes(8_000))] * 4)
    for _ in range(4):
        peer.server.consumed(1, 8_000)
    assert peer.sent() == []
    peer.say(data(1, bytes(800)))
    peer.server.consumed(1, 800)
    connection, stream = peer.sent()
    assert (connection.kind, connection.stream_id, connection.word) == (WINDOW_UPDATE, 0, 32_800)
    assert (stream.kind, stream.stream_id, stream.word) == (WINDOW_UPDATE, 1, 32_800)
    assert len(peer.say(*[data(1, bytes(13_107))] * 5)) == 5


def test_nothing_more_for_a_stream_that_has_ended() -> None:
    """Its own window is of no use any more; the connection's is."""
    peer = RawPeer(SMALL)
    peer.say(headers(1), data(1, bytes(40_000), end_stream=True))
    peer.server.consumed(1, 40_000)
    assert [(frame.stream_id, frame.word) for frame in peer.sent()] == [(0, 40_000)]


def test_more_than_was_delivered_cannot_be_consumed() -> None:
    """A mistake of the owner does not open the windows too far."""
    peer = RawPeer(SMALL)
    peer.say(headers(1), data(1, bytes(40_000)))
    peer.server.consumed(1, 10**9)
    peer.server.consumed(1, 10**9)
    assert [frame.word for frame in peer.sent()] == [40_000, 40_000]


@pytest.mark.parametrize("end", ["answered", "reset", "cancelled", "broken"])
def test_unconsumed_data_of_a_closed_stream_is_given_back(end: str) -> None:
    peer = RawPeer(SMALL)
    peer.say(headers(1), data(1, bytes(40_000)))
    match end:
        case "answered":
            respond(peer.server, 1)
        case "reset":
            peer.server.reset(1, ErrorCode.CANCEL)
        case "cancelled":
            peer.say(frames.rst_stream(1, ErrorCode.CANCEL))
        case "broken":
            peer.say(frames.window_update(1, 0))
    assert [frame.word for frame in peer.of_kind(WINDOW_UPDATE)] == [40_000]
    peer.server.consumed(1, 40_000)
    assert peer.sent() == [], "it is not given back twice"


def test_padding_is_given_back_at_once() -> None:
    """It counts against the windows, and is not consumed."""
    peer = RawPeer(SMALL)
    peer.say(headers(1))
    for _ in range(1000):
        peer.say(data(1, b"x", padding=255))
        peer.server.consumed(1, 1)
    assert not peer.server.terminated
    assert sum(frame.word for frame in peer.sent() if frame.stream_id == 0) > 1000 * 257 - WINDOW


def test_data_on_closed_streams_counts_for_the_connection() -> None:
    """And is given back, or a client that is slow to understand would starve its other calls."""
    peer = RawPeer(SMALL)
    peer.say(headers(1))
    respond(peer.server, 1)
    for _ in range(20):
        assert peer.say(data(1, bytes(16_000))) == []
    assert not peer.server.terminated
    assert sum(frame.word for frame in peer.of_kind(WINDOW_UPDATE)) >= 20 * 16_000 - WINDOW


def test_data_for_an_answer_that_is_held_back_is_dropped() -> None:
    """The server has said everything, though the client's windows have not let it through yet."""
    peer = RawPeer(SMALL, INITIAL_WINDOW_SIZE=0)
    peer.say(headers(1))
    respond(peer.server, 1, b"answer")
    for _ in range(20):
        assert peer.say(data(1, bytes(16_000))) == []
    assert peer.say(data(1, b"x", end_stream=True)) == []
    assert peer.say(frames.window_update(1, 6)) == [StreamDrained(1)]
    assert peer.of_kind(frames.RST_STREAM) == [], "the client has ended, so there is nothing to cut off"


def test_data_is_delivered_as_it_arrives() -> None:
    """A large frame is not assembled, so that nothing is copied again and again; END_STREAM comes with the last."""
    peer = RawPeer()
    peer.say(headers(1))
    body = bytes(range(256)) * 400
    frame = data(1, body, end_stream=True, padding=9)
    events = [event for at in range(0, len(frame), 1000) for event in peer.say(frame[at : at + 1000])]
    assert all(isinstance(event, DataReceived) for event in events)
    assert b"".join(event.data for event in events) == body
    assert [event.end_stream for event in events] == [False] * (len(events) - 1) + [True]
    assert len(events) == 103
    assert sum(len(event.data) for event in events) == len(body)


@pytest.mark.parametrize(
    "last", [data(1, end_stream=True), data(1, end_stream=True, padding=0)], ids=["plain", "padded"]
)
def test_empty_end_is_not_held_up(last: bytes) -> None:
    """It is reported with its last byte, not with the one after it."""
    peer = RawPeer()
    peer.say(headers(1))
    events = [peer.say(bytes((byte,))) for byte in last]
    assert events[-1] == [DataReceived(1, b"", True)]


def test_stream_that_closes_in_the_middle_of_a_frame() -> None:
    """The rest of the frame is dropped and given back."""
    peer = RawPeer(SMALL)
    peer.say(headers(1), data(1, bytes(40_000))[:20_000])
    respond(peer.server, 1)
    assert peer.say(data(1, bytes(40_000))[20_000:], call(3))[0].stream_id == 3
    server = peer.server
    assert server._connection_left + server._connection_returned == WINDOW - 8, "what call 3 has sent"


def test_a_stream_that_is_held_costs_the_others_nothing() -> None:
    """Its own window stays as it is; what it has not consumed no longer counts against the connection's."""
    limits = Http2Limits(stream_window_bytes=WINDOW, connection_window_bytes=2 * WINDOW)
    peer = RawPeer(limits)
    peer.say(headers(1), headers(3), headers(5), data(1, bytes(WINDOW)), data(3, bytes(WINDOW)))
    assert peer.of_kind(WINDOW_UPDATE) == []
    peer.server.hold(1, True)
    assert [(frame.stream_id, frame.word) for frame in peer.of_kind(WINDOW_UPDATE)] == [(0, WINDOW)]
    peer.server.hold(1, True)  # once is enough
    peer.say(data(5, bytes(WINDOW)))
    peer.server.hold(5, True)
    assert [(frame.stream_id, frame.word) for frame in peer.of_kind(WINDOW_UPDATE)] == [(0, WINDOW)]
    peer.server.hold(1, False)
    peer.server.consumed(1, WINDOW)
    assert [(frame.stream_id, frame.word) for frame in peer.of_kind(WINDOW_UPDATE)] == [(1, WINDOW)]
    peer.server.consumed(3, WINDOW)
    assert [(frame.stream_id, frame.word) for frame in peer.of_kind(WINDOW_UPDATE)] == [(0, WINDOW), (3, WINDOW)]
    peer.say(data(1, bytes(100)))
    peer.server.hold(7, True)  # there is none


def test_data_that_comes_while_a_stream_is_held_is_given_back_once() -> None:
    """Whether it is consumed later, or the stream ends."""
    limits = Http2Limits(stream_window_bytes=WINDOW, connection_window_bytes=2 * WINDOW)
    for ending in (True, False):
        peer = RawPeer(limits)
        given_back = 0
        for number in range(1, 41, 2):
            peer.say(headers(number))
            peer.server.hold(number, True)
            peer.say(data(number, bytes(10_000)), data(number, bytes(30_000)))
            if ending:
                peer.server.reset(number, ErrorCode.CANCEL)
            else:
                peer.server.hold(number, False)
                peer.say(data(number, bytes(10_000)))
                peer.server.consumed(number, 50_000)
            given_back += sum(frame.word for frame in peer.of_kind(WINDOW_UPDATE) if not frame.stream_id)
        received = 20 * (40_000 if ending else 50_000)
        assert received - WINDOW <= given_back <= received
