"""Calls of an honest client, the h2 library: what is asked arrives, and so does what is answered."""

from __future__ import annotations

import h2.events
import pytest
from h2.settings import SettingCodes
from http2_held import Held, held
from http2_peer import HEADERS, REQUEST, TRAILERS, Answer, H2Peer, RawPeer, call, data, headers, parse, respond
from http2_peer import settings as settings_frame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trireme.api.http2 import frames
from trireme.api.http2.frames import DataReceived, ErrorCode, RequestReceived, StreamDrained, StreamReset
from trireme.api.http2.headers import encode_block
from trireme.api.http2.limits import Http2Limits, Rate

OK = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK_TRAILERS = [(b"grpc-status", b"0")]


def finished(data: bytes = b"") -> Answer:
    return Answer(OK, bytearray(data), OK_TRAILERS, True)


@pytest.mark.parametrize("read_bytes", [65_536, 7, 1])
def test_unary_call(read_bytes: int) -> None:
    """Request and answer arrive whole, in whatever pieces."""
    peer = H2Peer(read_bytes=read_bytes)
    stream_id = peer.call(b"question")
    peer.pump()
    assert peer.server_events[0] == RequestReceived(stream_id, REQUEST, False)
    assert peer.requests[stream_id] == b"question"
    assert peer.complete == {stream_id}
    respond(peer.server, stream_id, b"ans", memoryview(b"wer"))
    assert len(peer.server._sender.out) == 1, "a small answer is one piece"
    peer.pump()
    assert peer.answers[stream_id] == finished(b"answer")
    assert len(peer.server._open) == 0


def test_small_output_is_one_piece() -> None:
    """Answers of several calls in one read leave in one write."""
    peer = H2Peer()
    ids = [peer.call() for _ in range(20)]
    peer.pump()
    for stream_id in ids:
        respond(peer.server, stream_id, b"answer")
    (written,) = peer.server.take_output()
    assert isinstance(written, bytes)
    assert not peer.server.has_output
    assert peer.server.take_output() == []


def test_trailers_only_answer() -> None:
    """An error is one HEADERS frame that ends the stream."""
    peer = H2Peer()
    stream_id = peer.call()
    peer.pump()
    peer.server.send_headers(stream_id, encode_block([(b":status", b"200"), (b"grpc-status", b"5")]), end_stream=True)
    peer.pump()
    assert peer.answers[stream_id] == Answer([(b":status", b"200"), (b"grpc-status", b"5")], ended=True)
    assert len(peer.server._open) == 0


def test_answer_before_the_request_is_complete() -> None:
    """The client is told to stop sending by RST_STREAM(NO_ERROR); what is under way is taken in silence."""
    peer = H2Peer(Http2Limits(connection_window_bytes=65_535))
    stream_id = peer.call(b"a" * 100, end_stream=False)
    peer.pump()
    respond(peer.server, stream_id, b"no more, please")
    seen = len(peer.server_events)
    for _ in range(4):  # before the client has read the answer
        peer.client.send_data(stream_id, b"x" * 16_000)
        for event in peer.server.receive(peer.client.data_to_send(), 0.0):
            peer._at_server(event)
    peer.pump()
    assert peer.answers[stream_id] == Answer(OK, bytearray(b"no more, please"), OK_TRAILERS, True, ErrorCode.NO_ERROR)
    assert len(peer.server_events) == seen
    assert peer.client.outbound_flow_control_window > 30_000, "its bytes are given back to the connection"
    other = peer.call(b"next")
    peer.pump()
    assert peer.requests[other] == b"next"


def test_request_without_data() -> None:
    peer = H2Peer()
    stream_id = peer.client.get_next_available_stream_id()
    peer.client.send_headers(stream_id, REQUEST, end_stream=True)
    peer.pump()
    assert peer.server_events == [RequestReceived(stream_id, REQUEST, True)]


@pytest.mark.parametrize("read_bytes", [65_536, 1])
def test_empty_last_data(read_bytes: int) -> None:
    """A stream that is half closed by an empty DATA frame ends with an event of its own, at once."""
    peer = H2Peer(read_bytes=read_bytes)
    stream_id = peer.call(b"a", end_stream=False)
    peer.client.end_stream(stream_id)
    peer.pump()
    assert peer.server_events[1:] == [DataReceived(stream_id, b"a", False), DataReceived(stream_id, b"", True)]


def test_request_that_ends_in_trailers() -> None:
    peer = H2Peer()
    stream_id = peer.call(b"a", end_stream=False)
    peer.client.send_headers(stream_id, [(b"x-checksum", b"1")], end_stream=True)
    peer.pump()
    assert peer.server_events[2:] == [DataReceived(stream_id, b"", True)]


def test_client_cancels() -> None:
    """Its stream is gone: answers are ignored, unread data is given back."""
    peer = H2Peer(Http2Limits(connection_window_bytes=65_535))
    peer.consume = False
    stream_id = peer.call(b"x" * 40_000, end_stream=False)
    peer.pump()
    peer.client.reset_stream(stream_id, ErrorCode.CANCEL)
    peer.pump()
    assert peer.server_events[-1] == StreamReset(stream_id, ErrorCode.CANCEL)
    respond(peer.server, stream_id, b"too late")
    peer.server.consumed(stream_id, 40_000)
    peer.server.reset(stream_id, ErrorCode.INTERNAL_ERROR)
    assert not peer.server.has_output
    assert peer.client.outbound_flow_control_window == 65_535
    assert len(peer.server._open) == 0


def test_server_resets() -> None:
    peer = H2Peer()
    stream_id = peer.call(b"x", end_stream=False)
    peer.pump()
    peer.server.reset(stream_id, ErrorCode.INTERNAL_ERROR)
    peer.pump()
    assert peer.answers[stream_id].reset == ErrorCode.INTERNAL_ERROR
    assert len(peer.server._open) == 0


def test_huge_messages_both_ways() -> None:
    """Megabytes over many frames, through windows of 64 KiB, without a copy of the answer's parts."""
    peer = H2Peer(Http2Limits(stream_window_bytes=65_535, connection_window_bytes=65_535))
    question = bytes(range(256)) * 20_000
    stream_id = peer.call(b"", end_stream=False)
    sent = 0
    while sent < len(question):
        room = min(peer.client.local_flow_control_window(stream_id), peer.client.max_outbound_frame_size)
        piece = question[sent : sent + room]
        peer.client.send_data(stream_id, piece)
        sent += len(piece)
        peer.pump()
    peer.client.end_stream(stream_id)
    peer.pump()
    assert peer.requests[stream_id] == question
    answer = bytes(reversed(question))
    respond(peer.server, stream_id, answer[:1000], memoryview(answer)[1000:], b"")
    assert peer.server.pending(stream_id) == len(answer) - 65_535
    views = [part.obj for part in peer.server.take_output() if isinstance(part, memoryview)]
    assert views
    assert all(view is answer for view in views)


def test_huge_answer_arrives() -> None:
    peer = H2Peer()
    stream_id = peer.call()
    peer.pump()
    answer = bytes(range(256)) * 20_000
    respond(peer.server, stream_id, answer)
    peer.pump()
    assert peer.answers[stream_id] == finished(answer)
    assert StreamDrained(stream_id) in peer.server_events
    assert peer.server.pending(stream_id) == 0


def test_interleaved_streams() -> None:
    """A server that answers many streams piece by piece gives each its own."""
    peer = H2Peer()
    ids = [peer.call(b"q%d" % number) for number in range(50)]
    peer.pump()
    for stream_id in ids:
        peer.server.send_headers(stream_id, HEADERS)
    for number in range(10):
        for stream_id in ids:
            peer.server.send_data(stream_id, (b"%d/%d " % (stream_id, number),))
        peer.pump()
    for stream_id in ids:
        peer.server.send_headers(stream_id, TRAILERS, end_stream=True)
    peer.pump()
    for stream_id in ids:
        assert peer.answers[stream_id] == finished(b"".join(b"%d/%d " % (stream_id, number) for number in range(10)))


def test_data_that_ends_the_stream() -> None:
    """HTTP/2 without trailers: the last DATA frame carries END_STREAM, even if it waits or is empty."""
    peer = H2Peer()
    long, empty = peer.call(), peer.call()
    peer.pump()
    for stream_id, parts in ((long, (b"y" * 100_000,)), (empty, ())):
        peer.server.send_headers(stream_id, HEADERS)
        peer.server.send_data(stream_id, parts, end_stream=True)
    peer.pump()
    assert peer.answers[long] == Answer(OK, bytearray(b"y" * 100_000), None, True)
    assert peer.answers[empty] == Answer(OK, ended=True)
    assert len(peer.server._open) == 0


def test_said_after_the_end_is_ignored() -> None:
    """Whether or not windows hold the end back."""
    peer = H2Peer()
    stream_id = peer.call()
    peer.pump()
    respond(peer.server, stream_id, b"y" * 100_000)
    assert peer.server.pending(stream_id) > 0
    peer.server.send_data(stream_id, (b"more",))
    peer.server.send_headers(stream_id, TRAILERS, end_stream=True)
    peer.pump()
    assert peer.answers[stream_id] == finished(b"y" * 100_000)


def test_large_headers_go_out_in_continuations() -> None:
    peer = H2Peer()
    stream_id = peer.call()
    peer.pump()
    block = [*OK, (b"grpc-message", b"m" * 40_000)]
    peer.client.decoder.max_header_list_size = 100_000
    peer.server.send_headers(stream_id, encode_block(block), end_stream=True)
    peer.pump()
    assert peer.answers[stream_id] == Answer(block, ended=True)


def test_smaller_header_table_of_the_client() -> None:
    """The first block after it, and only that, says that the table is not used (RFC 7541 §4.2); h2 insists on that."""
    raw = RawPeer(HEADER_TABLE_SIZE=100)
    raw.say(call(1), settings_frame(HEADER_TABLE_SIZE=50))
    respond(raw.server, 1, b"answer")
    assert [frame.payload for frame in raw.of_kind(frames.HEADERS)] == [b"\x20" + HEADERS, TRAILERS]
    peer = H2Peer(HEADER_TABLE_SIZE=100)
    stream_id = peer.call()
    peer.pump()
    respond(peer.server, stream_id, b"answer")
    peer.pump()
    assert peer.answers[stream_id] == finished(b"answer")


def test_larger_frames_are_used_when_allowed() -> None:
    peer = H2Peer()
    peer.client.update_settings({SettingCodes.MAX_FRAME_SIZE: 40_000})
    stream_id = peer.call()
    peer.pump()
    respond(peer.server, stream_id, b"y" * 50_000)
    largest = max(parse(b"".join(peer.server.take_output())), key=lambda frame: len(frame.payload))
    assert (largest.kind, len(largest.payload)) == (frames.DATA, 40_000)


def test_statistics() -> None:
    """Each number is of what it says."""
    raw = RawPeer(Http2Limits(max_concurrent_streams=4), INITIAL_WINDOW_SIZE=0)
    raw.say(call(1), call(3), data_of(5), headers(7), headers(9), frames.rst_stream(7, ErrorCode.CANCEL))
    raw.server.reset(5, ErrorCode.CANCEL)
    respond(raw.server, 1, b"x" * 30)
    raw.server.consumed(3, 3)
    raw.say(data_of(11)[:-5])
    assert held(raw.server) == Held(
        open_streams=3,
        held_bytes=0,
        unconsumed_bytes=8 + 5 + 15,
        pending_bytes=30,
        cached_heads=1,
    )
    raw.say(b"last5", headers(13)[: 9 + 11])
    assert held(raw.server).held_bytes == 11
    assert repr(raw.server) == "<Http2Server: serving, 3 open>"


def data_of(stream_id: int) -> bytes:
    return headers(stream_id) + data(stream_id, b"y" * 20)


class Conversation:
    """Random talk between h2 and the server; afterwards both must have the same."""

    def __init__(self, draw: st.DataObject) -> None:
        self.draw = draw
        window = draw.draw(st.sampled_from([0, 1_000, 65_535]))
        patient = Rate(1 << 20, 1.0)  # with the tiny windows below
        limits = Http2Limits(stream_window_bytes=65_535, connection_window_bytes=65_535, tiny_frames=patient)
        read_bytes = draw.draw(st.sampled_from([1000, 65_536]))
        self.peer = H2Peer(limits, read_bytes=read_bytes, INITIAL_WINDOW_SIZE=window)
        self.asked: dict[int, bytearray] = {}
        self.told: dict[int, bytearray] = {}
        self.reset: set[int] = set()

    def step(self) -> None:
        peer, client = self.peer, self.peer.client
        unfinished = [each for each in self.asked if each not in peer.complete and each not in self.reset]
        untold = [each for each in peer.requests if each not in self.told and each not in self.reset]
        match self.draw.draw(st.integers(0, 7)):
            case 0:
                self.asked[peer.call(b"", end_stream=False)] = bytearray()
            case 1 | 2 if unfinished:
                stream_id = self.draw.draw(st.sampled_from(unfinished))
                room = min(client.local_flow_control_window(stream_id), client.max_outbound_frame_size)
                piece = b"q" * min(room, self.draw.draw(st.integers(0, 20_000)))
                padding = self.draw.draw(st.none() | st.integers(0, 255))
                if padding is not None and len(piece) + padding + 1 > room:
                    padding = None
                client.send_data(stream_id, piece, pad_length=padding)
                self.asked[stream_id] += piece
            case 3 if unfinished:
                client.end_stream(self.draw.draw(st.sampled_from(unfinished)))
                peer.pump()
            case 4 if untold:
                stream_id = self.draw.draw(st.sampled_from(untold))
                self.told[stream_id] = bytearray(
                    b"a" * self.draw.draw(st.sampled_from([0, 10, 3_000, 70_000, 200_000]) | st.integers(0, 100_000))
                )
                parts = (self.told[stream_id][:5], memoryview(self.told[stream_id])[5:])
                respond(peer.server, stream_id, *parts)
                peer.pump() if stream_id not in peer.complete else None
                self.reset.update({stream_id} - peer.complete)
            case 5 if unfinished:
                stream_id = self.draw.draw(st.sampled_from(unfinished))
                client.reset_stream(stream_id)
                self.reset.add(stream_id)
            case 6:
                size = self.draw.draw(st.sampled_from([0, 1_000, 70_000]))
                client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: size})
            case _:
                peer.pump()

    def finish(self) -> None:
        peer = self.peer
        peer.pump()
        for stream_id in self.asked.keys() - peer.complete - self.reset:
            peer.client.end_stream(stream_id)
        peer.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
        peer.client.increment_flow_control_window(1 << 20)
        peer.pump()
        for stream_id in self.asked.keys() - self.told.keys() - self.reset:
            self.told[stream_id] = bytearray(b"last")
            respond(peer.server, stream_id, self.told[stream_id])
        peer.pump()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_random_conversations(draw: st.DataObject) -> None:
    """Whatever both say, in whatever order: what one has sent is what the other gets, and nothing is left over."""
    talk = Conversation(draw)
    for _ in range(draw.draw(st.integers(5, 25))):
        talk.step()
    talk.finish()
    peer = talk.peer
    for stream_id in talk.asked.keys() - talk.reset:
        assert peer.requests[stream_id] == talk.asked[stream_id]
        assert peer.answers[stream_id].data == talk.told[stream_id]
        assert peer.answers[stream_id].trailers == OK_TRAILERS
    assert not peer.server.terminated
    assert len(peer.server._open) == 0
    left_over = held(peer.server)
    assert (left_over.unconsumed_bytes, left_over.pending_bytes, left_over.held_bytes) == (0, 0, 0)
    assert peer.server._connection_left + peer.server._connection_returned == 65_535, "no byte of the window is lost"


def test_events_are_typed_by_h2_too() -> None:
    """The helper looks at what h2 reports; it must report the end of a connection if there is one."""
    peer = H2Peer()
    peer.server.abort(ErrorCode.INTERNAL_ERROR, "no")
    peer.pump()
    assert isinstance(peer.client_events[-1], h2.events.ConnectionTerminated)
