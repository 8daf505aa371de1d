"""Floods and greed: each ends in the right error, and none makes memory grow."""

from __future__ import annotations

import pytest
from http2_held import held
from http2_peer import BLOCK, EMPTY_SETTINGS, TRAILERS, RawPeer, call, data, headers, parse, respond, settings

from trireme.api.http2 import frames
from trireme.api.http2.frames import ConnectionFault, DataReceived, ErrorCode, RequestReceived, StreamReset, Terminated
from trireme.api.http2.limits import Budget, Http2Limits, KeepaliveOptions, Rate

FEW = Rate(10, 1.0)
PING = frames.ping(b"12345678")


def rapid_reset(stream_id: int) -> bytes:
    return headers(stream_id) + frames.rst_stream(stream_id, ErrorCode.CANCEL)


def malformed(stream_id: int) -> bytes:
    return headers(stream_id, TRAILERS)


def self_inflicted(stream_id: int) -> bytes:
    return headers(stream_id) + frames.window_update(stream_id, 0)


def data_after_end(stream_id: int) -> bytes:
    return headers(stream_id, end_stream=True) + data(stream_id, b"x")


@pytest.mark.parametrize("attack", [rapid_reset, malformed, self_inflicted, data_after_end])
def test_rapid_resets(attack) -> None:
    """Streams that are opened only to be reset, by whatever trick, end the connection when the budget is spent."""
    peer = RawPeer(Http2Limits(resets=FEW))
    peer.say(*map(attack, range(1, 21, 2)))
    assert not peer.server.terminated
    peer.say(attack(21))
    assert peer.goaway().code is ErrorCode.ENHANCE_YOUR_CALM


def test_resets_in_moderation() -> None:
    """The budget refills with time."""
    peer = RawPeer(Http2Limits(resets=FEW))
    for stream_id in range(1, 201, 2):
        peer.now_s += 1.0
        assert len(peer.say(rapid_reset(stream_id))) == 2
        peer.sent()
    assert not peer.server.terminated


def test_cancelling_all_calls_at_once_is_fine() -> None:
    """As many streams as may be open can be cancelled in one go, and again a little later."""
    peer = RawPeer()
    for begin in (1, 8193):
        ids = range(begin, begin + 8192, 2)
        peer.say(*(headers(stream_id) for stream_id in ids))
        events = peer.say(*(frames.rst_stream(stream_id, ErrorCode.CANCEL) for stream_id in ids))
        assert events == [StreamReset(stream_id, ErrorCode.CANCEL) for stream_id in ids]
        peer.now_s += 5.0
    assert len(peer.server._open) == 0


def test_too_many_streams() -> None:
    """Those over the limit are refused, and may be tried again; a place that gets free can be used."""
    peer = RawPeer(Http2Limits(max_concurrent_streams=2))
    events = peer.say(headers(1), headers(3), headers(5))
    assert [event.stream_id for event in events if isinstance(event, RequestReceived)] == [1, 3]
    (reset,) = peer.sent()
    assert (reset.stream_id, reset.code) == (5, ErrorCode.REFUSED_STREAM)
    assert peer.say(data(5, b"x", end_stream=True)) == []
    respond(peer.server, 1)
    assert len(peer.say(call(7))) == 2


def test_limits_are_announced() -> None:
    """The client learns what it may do from the server's SETTINGS and first WINDOW_UPDATE."""
    limits = Http2Limits(max_concurrent_streams=7, max_frame_bytes=20_000, stream_window_bytes=70_000)
    first, second = RawPeer(limits, greet=False).sent()
    assert dict(frames.SETTING.iter_unpack(first.payload)) == {
        frames.MAX_CONCURRENT_STREAMS: 7,
        frames.INITIAL_WINDOW_SIZE: 70_000,
        frames.MAX_FRAME_SIZE: 20_000,
        frames.MAX_HEADER_LIST_SIZE: 16_384,
    }
    assert (second.stream_id, second.word) == (0, (1 << 26) - 65_535)


def test_impossible_limits() -> None:
    with pytest.raises(ValueError, match="max_frame_bytes is 16383, expected"):
        Http2Limits(max_frame_bytes=16_383)
    with pytest.raises(ValueError, match="stream_window_bytes is 1, expected"):
        Http2Limits(stream_window_bytes=1)
    with pytest.raises(ValueError, match="connection_window_bytes is 2147483648, expected"):
        Http2Limits(connection_window_bytes=1 << 31)


@pytest.mark.parametrize(
    ("flood", "limits"),
    [
        (PING, Http2Limits(pings=FEW, keepalive=KeepaliveOptions(max_ping_strikes=0))),
        (EMPTY_SETTINGS, Http2Limits(settings=FEW)),
        (data(1), Http2Limits(empty_frames=FEW)),
        (data(1, b"", padding=200), Http2Limits(empty_frames=FEW)),
        (data(1, b"x"), Http2Limits(tiny_data=FEW)),
        (frames.frame(frames.PRIORITY, 0, 1, bytes(5)), Http2Limits(meaningless_frames=FEW)),
        (frames.frame(0xBE, 0, 7, b"what"), Http2Limits(meaningless_frames=FEW)),
    ],
    ids=["ping", "settings", "empty data", "padding", "crumbs", "priority", "unknown"],
)
def test_flood(flood: bytes, limits: Http2Limits) -> None:
    peer = RawPeer(limits)
    peer.now_s = 100.0
    peer.say(headers(1), flood * 10)
    assert not peer.server.terminated
    peer.now_s = 102.0
    peer.say(flood * 2)
    assert not peer.server.terminated, "two seconds have earned two more"
    peer.say(flood)
    assert peer.goaway().code is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("flood", [data(1), data(1, b"x")], ids=["empty data", "crumbs"])
@pytest.mark.parametrize("answered", ["cut", "held back by its window"])
def test_flood_on_a_stream_that_has_been_answered(flood: bytes, answered: str) -> None:
    """What is ignored counts as well: the budget does not depend on whether the answer or the flood came first."""
    peer = RawPeer(Http2Limits(empty_frames=FEW, tiny_data=FEW), INITIAL_WINDOW_SIZE=0)
    peer.say(headers(1))
    respond(
        peer.server,
        1,
    ) if answered == "cut" else (b"answer")
    peer.say(flood * 10)
    assert not peer.server.terminated
    peer.say(flood)
    assert peer.goaway().code is ErrorCode.ENHANCE_YOUR_CALM


def test_data_that_is_not_tiny_costs_nothing() -> None:
    """Nor does the last of a request, nor a large frame that comes in small pieces."""
    peer = RawPeer(Http2Limits(tiny_data=Rate(1, 0.0)))
    peer.say(headers(1), *[data(1, bytes(64))] * 20)
    for stream_id in range(3, 43, 2):
        peer.say(headers(stream_id), data(stream_id, b"x", end_stream=True))
    large = data(1, bytes(1000))
    for at in range(0, len(large), 60):
        peer.say(large[at : at + 60])
    assert not peer.server.terminated


@pytest.mark.parametrize("size", [1, 9, 10, 100, 1 << 20])
def test_no_more_frames_are_taken_at_once_than_may_be(size: int) -> None:
    """The rest waits, in order, for the next call."""
    server = RawPeer(Http2Limits(frames_at_once=10)).server
    said = headers(1) + b"".join(data(1, b"%04d" % number) for number in range(100)) + data(1, b"", end_stream=True)
    heard: list[bytes | memoryview] = []
    for at in range(0, len(said), size):
        events = server.receive(said[at : at + size], 0.0)
        while True:
            assert len(events) <= 10
            heard += [event.data for event in events if isinstance(event, DataReceived)]
            if not server.has_unread:
                break
            events = server.receive(b"", 0.0)
    assert b"".join(heard) == b"".join(b"%04d" % number for number in range(100))
    assert held(server).held_bytes == 0


def test_what_waits_is_forgotten_when_the_connection_is_over() -> None:
    server = RawPeer(Http2Limits(frames_at_once=10)).server
    server.receive(headers(1) + data(1, b"x") * 100, 0.0)
    assert server.has_unread
    server.abort(ErrorCode.ENHANCE_YOUR_CALM)
    assert not server.has_unread
    assert not server.receive(b"", 0.0)


@pytest.mark.parametrize("flood", [PING, EMPTY_SETTINGS, headers(1), data(1, b"x")])
def test_client_that_does_not_read(flood: bytes) -> None:
    """Replies pile up to a bound, whatever the budgets; then the connection is given up."""
    plenty = Rate(1 << 30, 1.0)
    keepalive = KeepaliveOptions(max_ping_strikes=0)
    limits = Http2Limits(pings=plenty, settings=plenty, resets=plenty, remembered_resets=1, keepalive=keepalive)
    peer = RawPeer(limits)
    peer.say(headers(1, end_stream=True), headers(3, end_stream=True), headers(5, end_stream=True))
    for round_ in range(10_000):
        peer.say(flood.replace(headers(1), malformed(7 + 2 * round_)), data(3, b"x"), data(5, b"x"))
        if peer.server.terminated:
            break
    written = b"".join(peer.server.take_output())
    assert peer.server.terminated
    assert 60_000 < len(written) < 70_000


def test_client_that_asks_without_end_and_reads_no_answer() -> None:
    """Small answers pile up to a bound; the writer can see how much it is."""
    peer = RawPeer(Http2Limits(unread_pieces=100))
    stream_id = 1
    while not peer.server.terminated:
        peer.say(call(stream_id))
        respond(peer.server, stream_id, b"answer")
        stream_id += 2
    assert stream_id == 2 * 102 + 1
    written = b"".join(peer.server.take_output())
    assert (parse(written)[-1].code, peer.server.has_output) == (ErrorCode.ENHANCE_YOUR_CALM, False)


def test_client_that_reads_may_ask_for_ever() -> None:
    """The bound is of what is not yet taken."""
    plenty = Rate(1 << 30, 1.0)
    peer = RawPeer(Http2Limits(pings=plenty, keepalive=KeepaliveOptions(max_ping_strikes=0)))
    for _ in range(100):
        peer.say(PING * 100)
        assert len(peer.of_kind(frames.PING)) == 100
    assert not peer.server.terminated


def test_crumbs() -> None:
    """Windows that open byte by byte would cost a frame each: that, too, has a budget."""
    peer = RawPeer(Http2Limits(tiny_frames=FEW), INITIAL_WINDOW_SIZE=0)
    peer.say(call(1))
    respond(peer.server, 1, b"answer" * 1000)
    peer.say(*[frames.window_update(1, 1)] * 10)
    assert not peer.server.terminated
    peer.say(frames.window_update(1, 1))
    assert peer.goaway().code is ErrorCode.ENHANCE_YOUR_CALM


def test_crumbs_of_the_connection() -> None:
    peer = RawPeer(Http2Limits(tiny_frames=FEW))
    peer.say(call(1), frames.window_update(1, 1 << 20))
    respond(peer.server, 1, b"answer" * 100_000)
    peer.say(*[frames.window_update(0, 1)] * 10)
    assert not peer.server.terminated
    peer.say(frames.window_update(0, 1))
    assert peer.goaway().code is ErrorCode.ENHANCE_YOUR_CALM


def test_last_crumb_is_free() -> None:
    """A small window that is enough for the rest is no crumb."""
    peer = RawPeer(Http2Limits(tiny_frames=Rate(1, 0.0)), INITIAL_WINDOW_SIZE=0)
    for stream_id in range(1, 101, 2):
        peer.say(call(stream_id))
        respond(peer.server, stream_id, b"answer")
        peer.say(frames.window_update(stream_id, 6))
    assert not peer.server.terminated
    assert len(peer.server._open) == 0


def test_header_bomb() -> None:
    """A small block that stands for a list of megabytes is not unfolded."""
    peer = RawPeer()
    entry = b"\x40\x01x\x7f\x81\x1e" + b"y" * 4000  # a field of 4,000 bytes enters the table
    events = peer.say(headers(1, BLOCK + entry + b"\xbe" * 20_000))
    assert [type(event) for event in events] == [Terminated]
    assert peer.goaway().code is ErrorCode.ENHANCE_YOUR_CALM


def test_remembered_heads_are_bounded() -> None:
    """A client whose every request differs does not fill the memory with header blocks."""
    peer = RawPeer(Http2Limits(cached_heads=8))
    for number in range(100):
        peer.say(headers(2 * number + 1, BLOCK + b"\x00\x01n\x03%03d" % number, end_stream=True))
        respond(peer.server, 2 * number + 1)
    assert 0 < held(peer.server).cached_heads <= 8
    peer.say(headers(201, BLOCK + b"\x00\x01n\x7f\xaf\x0f" + b"v" * 2094, end_stream=True))
    assert all(len(block) < 2048 for block in peer.server._headers.heads)


def test_many_small_settings_changes_with_many_streams() -> None:
    """Changing the window of every stream is the dearest frame; the settings budget covers it."""
    peer = RawPeer(Http2Limits(settings=FEW))
    peer.say(*(headers(stream_id) for stream_id in range(1, 2001, 2)))
    peer.say(*[settings(INITIAL_WINDOW_SIZE=size) for size in range(8)])
    assert not peer.server.terminated
    peer.say(EMPTY_SETTINGS * 10)
    assert peer.goaway().debug == "too many SETTINGS"


def test_budget_does_not_grow_beyond_its_burst() -> None:
    budget = Budget(Rate(3, 10.0), "enough", 0.0)
    for _ in range(3):
        budget.spend(1000.0)
    with pytest.raises(ConnectionFault, match="enough"):
        budget.spend(1000.0)
    with pytest.raises(ConnectionFault):
        budget.spend(999.0)  # a clock that steps back earns nothing
    budget.spend(1000.2)
