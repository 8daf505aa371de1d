"""Leaving: gracefully, at once, and when the client leaves. Open streams are finished or told."""

from __future__ import annotations

import math

import pytest
from http2_peer import TRAILERS, RawPeer, call, data, headers, respond

from trireme.api.http2 import frames
from trireme.api.http2.frames import GOAWAY, MAX_STREAM_ID, ErrorCode, RequestReceived, Terminated
from trireme.api.http2.limits import Http2Limits
from trireme.api.http2.server import PING_PAYLOAD

PING_ACK = frames.ping(PING_PAYLOAD, ack=True)


def test_graceful() -> None:
    """Streams on their way are still served; after the client has read the warning, new ones are refused."""
    peer = RawPeer()
    peer.say(headers(1))
    peer.server.go_away(10.0)
    warning, ping = peer.sent()
    assert (warning.kind, warning.word, warning.code) == (GOAWAY, MAX_STREAM_ID, ErrorCode.NO_ERROR)
    assert (ping.kind, ping.payload) == (frames.PING, PING_PAYLOAD)
    assert peer.server.next_timer_s == 15.0
    assert isinstance(peer.say(headers(3))[0], RequestReceived)
    assert peer.say(PING_ACK) == []
    (final,) = peer.sent()
    assert (final.kind, final.word, final.code) == (GOAWAY, 3, ErrorCode.NO_ERROR)
    assert peer.server.next_timer_s == 7200.0
    assert peer.say(headers(5), data(5, b"x", end_stream=True)) == []
    (refused,) = peer.sent()
    assert (refused.kind, refused.stream_id, refused.code) == (frames.RST_STREAM, 5, ErrorCode.REFUSED_STREAM)
    assert len(peer.say(data(1, b"x", end_stream=True), data(3, b"y", end_stream=True))) == 2
    respond(peer.server, 1, b"answer")
    assert not peer.server.idle_after_goaway
    respond(peer.server, 3, b"answer")
    assert peer.server.idle_after_goaway
    assert not peer.server.terminated
    assert [frame.kind for frame in peer.sent()] == [1, 0, 1, 1, 0, 1]


def test_idle_connection_waits_for_the_client_to_know() -> None:
    peer = RawPeer()
    peer.server.go_away(0.0)
    assert not peer.server.idle_after_goaway
    peer.say(PING_ACK)
    assert peer.server.idle_after_goaway
    assert [frame.word for frame in peer.of_kind(GOAWAY)] == [MAX_STREAM_ID, 0]


def test_silent_client_is_waited_for_shortly_if_it_asks_nothing() -> None:
    """Shorter than for one whose answers are still to come."""
    idle, busy = RawPeer(), RawPeer()
    busy.say(headers(1))
    for peer in (idle, busy):
        peer.server.go_away(10.0)
    assert (idle.server.next_timer_s, busy.server.next_timer_s) == (11.0, 15.0)
    idle.server.tick(11.0)
    assert idle.server.idle_after_goaway


def test_last_answer_makes_it_definite() -> None:
    """When nothing is open any more there is no need to wait; a call that comes now can be tried elsewhere."""
    peer = RawPeer()
    peer.say(call(1))
    peer.server.go_away(0.0)
    peer.sent()
    respond(peer.server, 1, b"answer")
    assert [frame.word for frame in peer.of_kind(GOAWAY)] == [1]
    assert peer.server.idle_after_goaway
    assert peer.server.next_timer_s == 7200.0
    peer.say(PING_ACK)
    assert peer.sent() == []


def test_client_that_does_not_answer() -> None:
    peer = RawPeer(Http2Limits(goaway_ack_timeout_s=2.0))
    peer.say(headers(1))
    peer.server.go_away(10.0)
    peer.sent()
    assert peer.server.tick(11.0) == []
    assert peer.sent() == []
    assert peer.server.tick(12.0) == []
    assert [frame.word for frame in peer.of_kind(GOAWAY)] == [1]


def test_asking_twice_is_asking_once() -> None:
    peer = RawPeer()
    peer.server.go_away(0.0)
    peer.server.go_away(1.0)
    assert len(peer.of_kind(GOAWAY)) == 1


def test_error_while_leaving_does_not_take_back_what_was_said() -> None:
    """The last id of a GOAWAY never rises (RFC 9113 §6.8)."""
    peer = RawPeer()
    peer.say(headers(1))
    peer.server.go_away(0.0)
    peer.say(PING_ACK, headers(7))
    peer.sent()
    peer.say(frames.window_update(0, 0))
    goaway = peer.goaway()
    assert (goaway.word, goaway.code) == (1, ErrorCode.PROTOCOL_ERROR)


def test_abort() -> None:
    """Open streams are over at once; what was framed before still goes out."""
    peer = RawPeer(INITIAL_WINDOW_SIZE=4)
    peer.say(call(1), call(3))
    respond(peer.server, 1, b"answer")
    peer.server.abort(ErrorCode.INTERNAL_ERROR, "out of order")
    sent = peer.sent()
    assert [frame.kind for frame in sent] == [frames.HEADERS, frames.DATA, GOAWAY]
    assert (sent[-1].word, sent[-1].code, sent[-1].debug) == (3, ErrorCode.INTERNAL_ERROR, "out of order")
    assert peer.server.terminated
    assert len(peer.server._open) == 0
    respond(peer.server, 3, b"answer")
    peer.server.go_away(0.0)
    peer.server.abort(ErrorCode.CANCEL)
    assert peer.say(call(5)) == []
    assert not peer.server.has_output


@pytest.mark.parametrize("code", [ErrorCode.NO_ERROR, ErrorCode.INTERNAL_ERROR])
def test_client_leaves_with_nothing_open(code: ErrorCode) -> None:
    peer = RawPeer()
    (event,) = peer.say(frames.goaway(0, code, "bye"))
    assert isinstance(event, Terminated)
    assert peer.server.terminated
    assert peer.server.next_timer_s == math.inf


@pytest.mark.parametrize("last", ["respond", "trailers", "data", "reset"])
def test_client_leaves_with_open_streams(last: str) -> None:
    """They are finished; with the last one the connection is over."""
    peer = RawPeer()
    assert len(peer.say(call(1), call(3), frames.goaway(0, ErrorCode.NO_ERROR))) == 4
    respond(peer.server, 1, b"answer")
    assert not peer.server.terminated
    match last:
        case "respond":
            respond(peer.server, 3, b"answer")
        case "trailers":
            peer.server.send_headers(3, TRAILERS, end_stream=True)
        case "data":
            peer.server.send_data(3, (b"answer",), end_stream=True)
        case "reset":
            peer.server.reset(3, ErrorCode.CANCEL)
    assert peer.server.terminated
    assert {frame.stream_id for frame in peer.sent()} == {1, 3}, "what was said is still sent"


def test_client_leaves_and_cancels() -> None:
    peer = RawPeer()
    peer.say(headers(1), frames.goaway(0, ErrorCode.NO_ERROR))
    events = peer.say(frames.rst_stream(1, ErrorCode.CANCEL))
    assert isinstance(events[-1], Terminated)
    assert peer.server.terminated


def test_client_leaves_while_its_window_holds_an_answer_back() -> None:
    peer = RawPeer(INITIAL_WINDOW_SIZE=0)
    peer.say(call(1), frames.goaway(0, ErrorCode.NO_ERROR))
    respond(peer.server, 1, b"answer")
    assert not peer.server.terminated
    events = peer.say(frames.window_update(1, 6))
    assert isinstance(events[-1], Terminated)
    assert [frame.kind for frame in peer.sent()] == [1, 0, 1]
