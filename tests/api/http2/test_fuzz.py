"""Anything may come: the core neither raises nor grows, and says nothing about what is over."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from http2_held import held
from http2_peer import BLOCK, HEADERS, REQUEST, TRAILERS, Head, RawPeer, consumed, data, headers, merged, parse, respond
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trireme.api.http2 import frames
from trireme.api.http2.frames import ErrorCode, Http2Event, PeerLeaves, RequestReceived, StreamReset, Terminated
from trireme.api.http2.headers import encode_block
from trireme.api.http2.limits import Http2Limits, KeepaliveOptions, Rate

FREE = Rate(1 << 20, 1.0)
LIMITS = Http2Limits(
    max_concurrent_streams=5,
    stream_window_bytes=65_535,
    connection_window_bytes=65_535,
    header_block_bytes=600,
    header_list_bytes=500,
    max_frame_bytes=16_384,
    remembered_resets=3,
    cached_heads=3,
    control_backlog_bytes=5_000,
    keepalive=KeepaliveOptions(time_s=10.0, max_ping_strikes=20),
)

stream_ids = st.sampled_from([0, 1, 1, 1, 3, 3, 5, 7, 9, 11, 13, 2, 99, 2**31 - 1])
numbers = st.sampled_from([0, 1, 5, 16_384, 65_535, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
blocks = st.sampled_from(
    [
        BLOCK,
        TRAILERS,
        b"",
        BLOCK + b"\x40\x01x\x01y",
        BLOCK + b"\xbe",
        b"\x20" + BLOCK,
        BLOCK[:20],
        encode_block([*REQUEST, (b"Bad", b"x")]),
        encode_block([*REQUEST, (b"x", b"y" * 400)]),
    ]
) | st.binary(max_size=20)
payloads = st.binary(max_size=30) | st.sampled_from([bytes(16_000), bytes(16_385)])


@st.composite
def well_formed(draw: st.DrawFn) -> bytes:
    """A frame with the shape of its type, though not always at the right time."""
    stream_id = draw(stream_ids)
    flag = draw(st.booleans())
    match draw(st.sampled_from("HHHDDDDRWWSPGC")):
        case "H":
            return headers(stream_id, draw(blocks), end_stream=flag, end_headers=draw(st.integers(0, 5)) > 0)
        case "D":
            padding = draw(st.none() | st.integers(0, 255))
            return data(stream_id, draw(payloads), end_stream=flag, padding=padding)
        case "R":
            return frames.frame(frames.RST_STREAM, 0, stream_id, draw(numbers).to_bytes(4))
        case "W":
            return frames.frame(frames.WINDOW_UPDATE, 0, stream_id, draw(numbers).to_bytes(4))
        case "S":
            pairs = draw(st.lists(st.tuples(st.integers(0, 8), numbers), max_size=3))
            return frames.SETTINGS_ACK if flag else frames.settings(pairs)
        case "P":
            return frames.ping(b"farewell", ack=flag)
        case "G":
            return frames.goaway(stream_id, ErrorCode.NO_ERROR, "x")
        case _:
            return frames.frame(frames.CONTINUATION, draw(st.sampled_from([0, 4])), stream_id, draw(blocks))


any_frame = st.builds(frames.frame, st.integers(0, 11), st.integers(0, 255), stream_ids, payloads)
said = st.lists(well_formed() | well_formed() | well_formed() | any_frame | st.binary(max_size=12), max_size=12)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(talk=said, cuts=st.lists(st.integers(0, 2**31), max_size=10), preface=st.booleans())
def test_pieces_make_no_difference(talk: list[bytes], cuts: list[int], preface: bool) -> None:
    """The same events and the same answers, however the bytes are cut up."""
    stream = (frames.PREFACE + frames.settings(()) if preface else b"") + b"".join(talk)
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    results = []
    for pieces in ([stream], [stream[a:b] for a, b in itertools.pairwise(edges)]):
        peer = RawPeer(Http2Limits(header_block_bytes=600, header_list_bytes=500), greet=False)
        events = [event for piece in pieces for event in consumed(peer.server, peer.say(piece))]
        facts = None if peer.server.terminated else held(peer.server)
        results.append((merged(events), b"".join(peer.server.take_output()), facts))
    assert results[0] == results[1]


@settings(deadline=None, max_examples=100)
@given(talk=said)
def test_one_byte_at_a_time_makes_no_difference(talk: list[bytes]) -> None:
    stream = b"".join(talk)[:3000]
    whole, cut_up = RawPeer(LIMITS), RawPeer(LIMITS)
    events = [event for byte in stream for event in cut_up.say(bytes((byte,)))]
    assert merged(events) == merged(whole.say(stream))
    assert cut_up.sent() == whole.sent()


@settings(deadline=None, max_examples=200)
@given(pieces=st.lists(st.binary(max_size=200), max_size=5), greet=st.booleans())
@example(pieces=[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0"], greet=False)
def test_rubbish(pieces: list[bytes], greet: bool) -> None:
    """Nothing raises, and after the end there is silence."""
    peer = RawPeer(LIMITS, greet=greet)
    over = False
    for piece in pieces:
        events = peer.say(piece)
        assert not (over and events)
        over = over or any(isinstance(event, Terminated) for event in events)
        assert peer.server.terminated is over
        check_bounds(peer)
    parse(b"".join(peer.server.take_output()))


def check_bounds(peer: RawPeer) -> None:
    """What must hold at any time, whatever has been said."""
    server = peer.server
    facts = held(server)
    assert facts.held_bytes <= 600 + 16_384
    assert facts.open_streams <= 5
    assert facts.cached_heads <= 3
    assert facts.unconsumed_bytes <= 65_535
    assert len(server._streams._cut) <= 3
    assert server._connection_left >= 0
    assert server._connection_left + server._connection_returned + facts.unconsumed_bytes <= 65_535
    assert 0 <= server._sender.window < 2**31
    for stream in server._open.values():
        assert 0 <= stream.receive_left <= 65_535
        assert stream.receive_left + stream.returned + stream.unconsumed <= 65_535
        assert stream.send_window < 2**31
        assert server.pending(stream.id) == 0 or min(stream.send_window, server._sender.window) <= 0


class Owner:
    """Acts on a connection at random, and watches over what it is told and what is sent."""

    def __init__(self, draw: Callable[[st.SearchStrategy], Any]) -> None:
        self.draw = draw
        self.peer = RawPeer(LIMITS)
        self.known: set[int] = set()
        self.over: set[int] = set()
        self.highest = -1
        self.ended: set[int] = set()

    def hear(self, events: list[Http2Event[Head]]) -> None:
        for index, event in enumerate(events):
            assert not isinstance(event, PeerLeaves), "clients alone are told so"
            if isinstance(event, Terminated):
                assert index == len(events) - 1
                continue
            assert event.stream_id not in self.over
            if isinstance(event, RequestReceived):
                assert event.stream_id not in self.known
                self.known.add(event.stream_id)
            assert event.stream_id in self.known
            if isinstance(event, StreamReset):
                self.over.add(event.stream_id)

    def frame(self) -> bytes:
        """A frame that seldom ends the connection, so that talks get long."""
        draw = self.draw
        kind = draw(st.sampled_from("HHHHDDDDDDRWWWWTSP")) if self.highest > 0 else "H"
        flag = draw(st.booleans())
        if kind == "H":
            self.highest += 2
            return headers(self.highest, TRAILERS if draw(st.integers(0, 5)) == 5 else BLOCK, end_stream=flag)
        stream_id = self.highest - 2 * draw(st.integers(0, min(4, self.highest // 2)))
        match kind:
            case "T":
                return headers(stream_id, TRAILERS, end_stream=True)
            case "D":
                padding = draw(st.none() | st.integers(0, 255))
                return data(stream_id, bytes(draw(st.sampled_from([0, 9, 9_000]))), end_stream=flag, padding=padding)
            case "R":
                return frames.rst_stream(stream_id, ErrorCode.CANCEL)
            case "W":
                increment = draw(st.sampled_from([1, 10, 50_000]))
                return frames.window_update(0 if flag else stream_id, increment)
            case "S":
                window = draw(st.sampled_from([0, 10, 5_000, 70_000]))
                return frames.settings([(frames.INITIAL_WINDOW_SIZE, window)])
            case _:
                return frames.ping(b"farewell", ack=flag)

    def talk(self) -> list[bytes]:
        said = [self.frame() for _ in range(self.draw(st.integers(0, 6)))]
        if self.draw(st.integers(0, 30)) == 30:
            said.append(self.draw(well_formed()))
        return said

    def act(self) -> None:
        server, draw = self.peer.server, self.draw
        stream_id = self.highest - 2 * draw(st.integers(-1, max(0, min(4, self.highest // 2))))
        size = draw(st.sampled_from([0, 1, 10, 5_000, 40_000, 100_000]))
        match draw(st.integers(0, 11)):
            case 0 | 1 | 2:
                respond(server, stream_id, bytes(size))
            case 3:
                server.send_data(stream_id, (bytes(size), b"x"), end_stream=size == 10)
            case 4:
                server.send_headers(stream_id, HEADERS, end_stream=size == 10)
            case 5:
                server.reset(stream_id, ErrorCode.CANCEL)
            case 6 | 7:
                server.consumed(stream_id, size)
            case 8 if size == 10:
                server.go_away(self.peer.now_s)
            case 9:
                self.peer.now_s += size / 1000
                self.hear(server.tick(self.peer.now_s))
            case _:
                self.read()
        if stream_id in self.known and stream_id not in server._open:
            self.over.add(stream_id)

    def read(self) -> None:
        """What the client gets to see is legal HTTP/2."""
        for frame in self.peer.sent():
            assert len(frame.payload) <= 1 << 24
            if frame.kind in (frames.HEADERS, frames.DATA):
                assert frame.stream_id in self.known
                assert frame.stream_id not in self.ended
            if frame.kind in (frames.HEADERS, frames.DATA) and frame.flags & frames.END_STREAM:
                self.ended.add(frame.stream_id)
            if frame.kind == frames.RST_STREAM:
                self.ended.add(frame.stream_id)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_talk_with_any_owner(random: st.DataObject) -> None:
    """Frames and answers in any order: bounds hold, no stream is heard of after its end, and output stays legal."""
    owner = Owner(random.draw)
    for _ in range(random.draw(st.integers(1, 12))):
        owner.hear(owner.peer.say(*owner.talk()))
        check_bounds(owner.peer)
        for _ in range(random.draw(st.integers(0, 3))):
            owner.act()
            check_bounds(owner.peer)
    owner.read()
