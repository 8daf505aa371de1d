"""The stream table against the code: each frame in each state does what the table says, or is legal."""

from __future__ import annotations

import pytest
from http2_peer import TRAILERS, RawPeer, data, headers, respond

from trireme.api.http2 import frames
from trireme.api.http2.frames import ErrorCode, StreamReset, Terminated
from trireme.api.http2.limits import Http2Limits
from trireme.api.http2.reader import SHAPES
from trireme.api.http2.streams import State, Streams

FRAMES = {
    frames.DATA: data(1, b"x"),
    frames.HEADERS: headers(1, TRAILERS, end_stream=True),
    frames.RST_STREAM: frames.rst_stream(1, ErrorCode.CANCEL),
    frames.WINDOW_UPDATE: frames.window_update(1, 10),
    frames.PRIORITY: frames.frame(frames.PRIORITY, 0, 1, b"12345"),
}

EVERY_WAY_INTO: dict[State, list[str]] = {
    State.IDLE: ["nothing"],
    State.OPEN: ["request"],
    State.ENDED: ["whole request", "request in two", "request with trailers"],
    State.CUT: ["answered early", "reset by the server", "reset for an error", "malformed request"],
    State.CLOSED: ["answered", "reset by the client", "never used"],
}


def enter(way: str) -> RawPeer:
    """A connection whose stream 1 has got into its state that way."""
    peer = RawPeer()
    server = peer.server
    first = {
        "nothing": b"",
        "whole request": headers(1, end_stream=True),
        "malformed request": headers(1, TRAILERS),
        "never used": headers(3),
        "answered": headers(1, end_stream=True),
    }
    peer.say(first.get(way, headers(1)))
    match way:
        case "request in two":
            peer.say(data(1, b"x", end_stream=True))
        case "request with trailers":
            peer.say(headers(1, TRAILERS, end_stream=True))
        case "answered" | "answered early":
            respond(server, 1, b"answer")
        case "reset by the server":
            server.reset(1, ErrorCode.INTERNAL_ERROR)
        case "reset for an error":
            peer.say(frames.window_update(1, 0))
        case "reset by the client":
            peer.say(frames.rst_stream(1, ErrorCode.CANCEL))
    peer.sent()
    return peer


WAYS = [(state, way) for state, ways in EVERY_WAY_INTO.items() for way in ways]


@pytest.mark.parametrize(("state", "way"), WAYS)
def test_ways_lead_where_they_should(state: State, way: str) -> None:
    assert enter(way).server._streams.state(1) is state


MISFITS = {
    (State.IDLE, frames.DATA): "costs the connection",
    (State.IDLE, frames.RST_STREAM): "costs the connection",
    (State.IDLE, frames.WINDOW_UPDATE): "costs the connection",
    (State.ENDED, frames.DATA): "costs the stream",
    (State.ENDED, frames.HEADERS): "costs the stream",
    (State.CUT, frames.DATA): "ignored",
    (State.CUT, frames.HEADERS): "ignored",
    (State.CUT, frames.RST_STREAM): "ignored",
    (State.CUT, frames.WINDOW_UPDATE): "ignored",
    (State.CLOSED, frames.DATA): "costs the stream",
    (State.CLOSED, frames.HEADERS): "costs the stream",
    (State.CLOSED, frames.RST_STREAM): "ignored",
    (State.CLOSED, frames.WINDOW_UPDATE): "ignored",
}
"""Everything else is legal: anything on an OPEN stream, windows and resets on an ENDED one, HEADERS on an IDLE one."""


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: SHAPES[kind][0])
@pytest.mark.parametrize(("state", "way"), WAYS)
def test_table_is_what_happens(state: State, way: str, kind: int) -> None:
    peer = enter(way)
    was_open = len(peer.server._open) and state in (State.OPEN, State.ENDED)
    events = peer.say(FRAMES[kind])
    sent = [frame for frame in peer.sent() if frame.kind in (frames.RST_STREAM, frames.GOAWAY)]
    if state is State.IDLE and kind == frames.HEADERS:
        assert [frame.code for frame in sent] == [ErrorCode.PROTOCOL_ERROR], "legal, but these are only trailers"
        return
    match MISFITS.get((state, kind)):
        case None:
            assert sent == []
            assert not peer.server.terminated
        case "ignored":
            assert events == []
            assert sent == []
        case "costs the stream":
            code = ErrorCode.STREAM_CLOSED
            assert events == ([StreamReset(1, code)] if was_open else [])
            assert [(frame.kind, frame.code) for frame in sent] == [(frames.RST_STREAM, code)]
        case _:
            assert [type(event) for event in events] == [Terminated]
            assert [(frame.kind, frame.code) for frame in sent] == [(frames.GOAWAY, ErrorCode.PROTOCOL_ERROR)]


@pytest.mark.parametrize("way", [*EVERY_WAY_INTO[State.CUT], *EVERY_WAY_INTO[State.CLOSED]])
def test_ids_are_not_used_twice(way: str) -> None:
    """A request on a stream that was there before, or on a lower one, ends the connection."""
    peer = enter(way)
    assert [type(event) for event in peer.say(headers(1))] == [Terminated]
    assert peer.goaway().code is ErrorCode.PROTOCOL_ERROR


def test_even_streams_are_idle() -> None:
    """The server has never opened one."""
    streams = Streams(4)
    streams.highest = 9
    assert streams.state(4) is State.IDLE
    assert streams.state(5) is State.CLOSED


def test_memory_of_cut_streams_is_bounded() -> None:
    """The oldest is forgotten. Then its data is answered by RST_STREAM(STREAM_CLOSED), which does no harm."""
    peer = RawPeer(Http2Limits(remembered_resets=2))
    for stream_id in (1, 3, 5):
        peer.say(headers(stream_id))
        respond(peer.server, stream_id, b"answer")
    peer.sent()
    assert peer.say(data(3, b"x"), data(5, b"x")) == []
    assert peer.sent() == []
    assert peer.say(data(1, b"x")) == []
    (reset,) = peer.sent()
    assert (reset.kind, reset.stream_id, reset.code) == (frames.RST_STREAM, 1, ErrorCode.STREAM_CLOSED)
    assert len(peer.server._streams._cut) == 2


def test_late_trailers_keep_the_header_tables_equal() -> None:
    """Header blocks on streams that are gone still change the table that later blocks refer to."""
    peer = RawPeer()
    peer.say(headers(1))
    peer.server.reset(1, ErrorCode.CANCEL)
    entering = b"\x40\x01x\x01y"
    peer.say(headers(1, entering, end_stream=True))
    (event,) = peer.say(headers(3, b"\x83\x86\x04\x02/p\xbe", end_stream=True))
    assert event.head == ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/p"), (b"x", b"y"))
