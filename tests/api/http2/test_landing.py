"""Large data is received where it belongs, and the client may send all of it at once."""

from __future__ import annotations

import pytest
from http2_peer import RawPeer, data, headers

from trireme.api.http2 import frames
from trireme.api.http2.frames import WINDOW_UPDATE, DataReceived, ErrorCode, StreamReset, Terminated

LARGE = 3 << 20
WINDOW = 1 << 20


def begun(place: memoryview, size: int = 100_000) -> RawPeer:
    """A peer that has said so much of a frame's header on stream 1, and nothing of its data, which has a place."""
    peer = RawPeer()
    peer.say(headers(1))
    peer.server.land(1, place)
    peer.sent()
    assert peer.say(data(1, bytes(size))[: frames.FRAME_HEADER_BYTES]) == []
    return peer


def pieces(events: list) -> list[memoryview]:
    assert all(isinstance(event, DataReceived) for event in events)
    return [event.data for event in events]


def test_what_is_received_in_its_place_is_not_copied() -> None:
    memory = memoryview(bytearray(LARGE))
    peer = begun(memory)
    landing = peer.server.landing()
    assert landing is not None
    assert (len(landing), landing.obj) == (100_000, memory.obj)
    landing[:60_000] = b"a" * 60_000
    (piece,) = pieces(peer.server.landed(landing[:60_000], 0.0))
    assert (piece.obj, len(piece)) == (memory.obj, 60_000)
    rest = peer.server.landing()
    assert rest is not None
    assert len(rest) == 40_000
    rest[:] = b"b" * 40_000
    peer.server.landed(rest, 0.0)
    assert peer.server.landing() is None, "a frame's header comes next"
    assert bytes(memory[:100_001]) == b"a" * 60_000 + b"b" * 40_000 + b"\0"


def test_what_comes_with_other_frames_is_put_there() -> None:
    memory = memoryview(bytearray(LARGE))
    peer = begun(memory, 20_000)
    (first, second) = pieces(peer.say(b"c" * 20_000 + data(1, b"d" * 10)))
    assert bytes(memory[:20_011]) == b"c" * 20_000 + b"d" * 10 + b"\0"
    assert first.obj is second.obj is memory.obj


def test_others_have_their_turn_meanwhile() -> None:
    """A read takes no more than 256 KiB, and a few bytes are read with what follows."""
    landing = begun(memoryview(bytearray(LARGE)), 1 << 20).server.landing()
    assert landing is not None
    assert len(landing) == 1 << 18
    assert begun(memoryview(bytearray(LARGE)), 16_383).server.landing() is None
    assert begun(memoryview(bytearray(16_383)), 16_384).server.landing() is None


def test_more_than_has_a_place_is_given_as_it_comes() -> None:
    """The end of one message, and the beginning of another."""
    memory = memoryview(bytearray(10))
    peer = begun(memory, 15)
    (piece,) = pieces(peer.say(b"e" * 15))
    assert (piece, type(piece)) == (b"e" * 15, bytes)
    assert bytes(memory) == bytes(10)


def test_the_client_may_send_all_of_it_at_once() -> None:
    """And is given the same window as ever for what comes after it."""
    peer = RawPeer()
    peer.say(headers(1))
    peer.server.land(1, memoryview(bytearray(LARGE)))
    (grant,) = [frame for frame in peer.sent() if frame.kind == WINDOW_UPDATE]
    assert (grant.stream_id, int.from_bytes(grant.payload, "big")) == (1, LARGE - WINDOW)
    for _ in range(3):
        peer.say(data(1, bytes(1 << 20)))
    peer.server.consumed(1, LARGE)
    (update,) = [frame for frame in peer.sent() if frame.kind == WINDOW_UPDATE]
    assert int.from_bytes(update.payload, "big") == WINDOW
    peer.say(data(1, bytes(1 << 20)))
    assert peer.say(data(1, b"x")) == [StreamReset(1, ErrorCode.FLOW_CONTROL_ERROR)]


def test_a_place_that_fits_the_window_changes_nothing() -> None:
    peer = RawPeer()
    peer.say(headers(1))
    peer.server.land(1, memoryview(bytearray(WINDOW)))
    assert peer.sent() == []


@pytest.mark.parametrize("end", [True, False])
def test_streams_that_are_over_have_no_place(end: bool) -> None:
    peer = begun(memoryview(bytearray(LARGE)))
    if end:
        peer.server.reset(1, ErrorCode.CANCEL)
    else:
        peer.server.abort(ErrorCode.NO_ERROR)
    assert peer.server.landing() is None
    peer.server.land(1, memoryview(bytearray(LARGE)))
    assert peer.server.landing() is None


def test_an_offence_in_what_has_landed_ends_the_connection() -> None:
    peer = begun(memoryview(bytearray(LARGE)))
    landing = peer.server.landing()
    assert landing is not None
    peer.server._connection_left = 10
    (event,) = peer.server.landed(landing, 0.0)
    assert isinstance(event, Terminated)
