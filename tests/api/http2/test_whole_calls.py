"""A call that comes whole, and is like those before it, is one event; and nothing else about it differs."""

from __future__ import annotations

import itertools

import pytest
from http2_held import held
from http2_peer import BLOCK, REQUEST, RawPeer, consumed, data, headers, merged, respond
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.http2 import frames
from trireme.api.http2.frames import MAX_WINDOW_BYTES, WINDOW_UPDATE, DataReceived, ErrorCode, RequestReceived
from trireme.api.http2.limits import Http2Limits


def call(stream_id: int, message: bytes = b"question", block: bytes = BLOCK, increment: int | None = None) -> bytes:
    """With the WINDOW_UPDATE that gRPC's own clients send, or without one."""
    update = b"" if increment is None else frames.window_update(stream_id, increment)
    return headers(stream_id, block) + update + data(stream_id, message, end_stream=True)


def used_to_calls(limits: Http2Limits | None = None, increment: int | None = None) -> RawPeer:
    """A connection that has seen two calls."""
    peer = RawPeer(limits)
    peer.say(call(1, increment=increment), call(3, increment=increment))
    return peer


@pytest.mark.parametrize("increment", [None, 5])
def test_a_call_like_those_before_is_one_event(increment: int | None) -> None:
    peer = used_to_calls(increment=increment)
    events = peer.say(call(5, b"answer??", increment=increment), call(7, increment=increment))
    assert events == [RequestReceived(5, REQUEST, True, b"answer??"), RequestReceived(7, REQUEST, True, b"question")]
    respond(peer.server, 5, b"!")
    assert [frame.kind for frame in peer.sent()] == [frames.HEADERS, frames.DATA, frames.HEADERS]


def test_its_window_is_wider_by_what_it_says() -> None:
    peer = used_to_calls(increment=5)
    peer.say(call(5, increment=7), frames.window_update(0, 1_000))
    respond(peer.server, 5, bytes(65_535 + 8))
    assert peer.server.pending(5) == 1


@pytest.mark.parametrize("message", [b"", b"a longer question", bytes(5_000)])
def test_other_calls_are_told_in_parts(message: bytes) -> None:
    """Those of another length, those without data, and large ones however often they come."""
    peer = used_to_calls()
    for stream_id in (5, 7, 9):
        parts = [RequestReceived(stream_id, REQUEST, False), DataReceived(stream_id, message, True)]
        if stream_id == 9 and 0 < len(message) < 4096:
            parts = [RequestReceived(stream_id, REQUEST, True, message)]
        assert peer.say(call(stream_id, message)) == parts


def test_its_data_need_not_be_consumed() -> None:
    """The client may go on sending, though nobody reports it as consumed, nor answers."""
    peer = used_to_calls(Http2Limits(connection_window_bytes=65_535))
    granted = 0
    for stream_id in (5, 7):
        consumed(peer.server, peer.say(call(stream_id, bytes(4_000))))
    for stream_id in range(9, 109, 2):
        assert peer.say(call(stream_id, bytes(4_000))) == [RequestReceived(stream_id, REQUEST, True, bytes(4_000))]
        granted += sum(frame.word for frame in peer.of_kind(WINDOW_UPDATE))
    assert granted >= 50 * 4_000 - 65_535
    assert not peer.server.terminated


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Http2Limits(max_concurrent_streams=2), ErrorCode.REFUSED_STREAM),
        (Http2Limits(unread_pieces=0), ErrorCode.ENHANCE_YOUR_CALM),
    ],
)
def test_it_is_refused_as_any_other(limits: Http2Limits, code: ErrorCode) -> None:
    peer = used_to_calls(limits)
    if limits.unread_pieces == 0:
        respond(peer.server, 1, b"not read")
    peer.say(call(5))
    assert peer.sent()[-1].code is code


def test_its_stream_is_a_clients() -> None:
    peer = used_to_calls()
    peer.say(call(6))
    assert peer.goaway().code is ErrorCode.PROTOCOL_ERROR


odd_calls = st.builds(
    call,
    st.sampled_from([5, 5, 5, 7, 7, 9, 11, 3, 6]),
    st.sampled_from([b"question", b"question", b"question", b"other"]),
    st.sampled_from([BLOCK, BLOCK, BLOCK, BLOCK[::-1]]),
    st.sampled_from([5, 5, 5, 0, MAX_WINDOW_BYTES, None]),
)
tight = Http2Limits(max_concurrent_streams=4, connection_window_bytes=65_535, unread_pieces=3)


@settings(max_examples=150, deadline=None)
@given(st.lists(odd_calls, min_size=1, max_size=8), st.sampled_from([None, 5]), st.lists(st.integers(0, 900)))
def test_nothing_else_differs(talk: list[bytes], usual: int | None, cuts: list[int]) -> None:
    """The same events, answers and state as if each byte came alone: ids used twice, windows that overflow, unknown
    header blocks, too many streams."""
    stream = b"".join(talk)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    results = []
    for pieces in ([stream[a:b] for a, b in itertools.pairwise(edges)], [bytes([each]) for each in stream]):
        peer = RawPeer(tight)
        events = consumed(peer.server, peer.say(call(1, increment=usual), call(3, increment=usual)))
        for piece in pieces:
            events += consumed(peer.server, peer.say(piece))
        facts = None if peer.server.terminated else held(peer.server)
        results.append((merged(events), b"".join(peer.server.take_output()), facts))
    assert results[0] == results[1]
