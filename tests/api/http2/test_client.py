"""The client's half of HTTP/2: against frames made by hand, the house's server, and the h2 library."""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from http2_peer import HEADERS, REQUEST, TRAILERS, Frame, Head, as_head, data, headers, new_server, parse, settings
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from trireme.api.http2 import frames
from trireme.api.http2.client import Http2Client
from trireme.api.http2.frames import (
    AnswerBlocks,
    AnswerReceived,
    DataReceived,
    ErrorCode,
    HeadReceived,
    PeerLeaves,
    RequestBlock,
    RequestReceived,
    StreamReset,
    Terminated,
)
from trireme.api.http2.headers import encode_block
from trireme.api.http2.limits import Http2Limits, KeepaliveOptions

BLOCK = RequestBlock(encode_block(REQUEST))
ANSWER, END = as_head([(b":status", b"200"), (b"content-type", b"application/grpc")]), as_head([(b"grpc-status", b"0")])
ALIVE = KeepaliveOptions(time_s=10.0, timeout_s=5.0, permit_without_calls=True)


class Peer:
    """A server that says whatever a test wants."""

    def __init__(self, limits: Http2Limits | None = None, *, greet: bool = True, **said: int) -> None:
        self.client: Http2Client[Head] = Http2Client(limits or Http2Limits(keepalive=ALIVE), as_head, 0.0)
        self.now_s = 0.0
        if greet:
            self.say(settings(**said))
            self.sent()

    def say(self, *pieces: bytes) -> list[Any]:
        events = self.client.receive(b"".join(pieces), self.now_s)
        while self.client.has_unread:
            events += self.client.receive(b"", self.now_s)
        return events

    def sent(self) -> list[Frame]:
        return parse(b"".join(self.client.take_output()).removeprefix(frames.PREFACE))

    def ask(self, payload: bytes = b"question") -> int:
        return self.client.request(BLOCK, [payload], len(payload))


def answer(stream_id: int, payload: bytes = b"answer") -> bytes:
    return headers(stream_id, HEADERS) + data(stream_id, payload) + headers(stream_id, TRAILERS, end_stream=True)


def told_in_full(events: list[Any]) -> list[tuple[int, Head, bytes, Head]]:
    """The answers that events tell of, whichever way."""
    begun: dict[int, tuple[Head, bytes]] = {}
    whole: list[tuple[int, Head, bytes, Head]] = []
    for event in events:
        match event:
            case AnswerReceived(stream_id, head, payload, trailers):
                whole.append((stream_id, head, payload, trailers))
            case HeadReceived(stream_id, head, False):
                begun[stream_id] = (head, b"")
            case HeadReceived(stream_id, trailers, True):
                whole.append((stream_id, *begun.pop(stream_id), trailers))
            case DataReceived(stream_id, payload, _):
                begun[stream_id] = (begun[stream_id][0], begun[stream_id][1] + payload)
    assert not begun
    return whole


# Requests and answers.


def test_it_begins_with_the_preface_and_settings() -> None:
    peer = Peer(greet=False)
    assert b"".join(peer.client.take_output()).startswith(frames.PREFACE)
    assert not peer.client.settled
    peer.say(settings())
    assert peer.client.settled
    assert [frame.kind for frame in peer.sent()] == [frames.SETTINGS]


def test_answers_that_look_alike_are_told_in_one() -> None:
    peer = Peer()
    kinds = []
    for _ in range(4):
        stream_id = peer.ask()
        events = peer.say(answer(stream_id))
        assert told_in_full(events) == [(stream_id, ANSWER, b"answer", END)]
        kinds.append(type(events[0]).__name__)
    assert kinds[-1] == "AnswerReceived"
    assert peer.client.open_streams == 0


@pytest.mark.parametrize("size", [0, 5, 16_384, 200_000])
def test_a_request_goes_out_whole_as_far_as_windows_allow(size: int) -> None:
    peer = Peer()
    peer.ask(bytes(size))
    sent = peer.sent()
    assert sent[0].kind == frames.HEADERS
    body = b"".join(frame.payload for frame in sent[1:])
    assert len(body) == min(size, 65_535)
    peer.say(frames.window_update(0, 1 << 20), frames.window_update(1, 1 << 20))
    sent += peer.sent()
    assert sum(len(frame.payload) for frame in sent if frame.kind == frames.DATA) == size
    assert [frame.flags & frames.END_STREAM for frame in sent] == [0] * (len(sent) - 1) + [1]


def test_no_more_streams_are_open_than_the_server_allows() -> None:
    peer = Peer(MAX_CONCURRENT_STREAMS=2)
    first, _ = peer.ask(), peer.ask()
    assert not peer.client.has_room
    peer.say(answer(first))
    assert peer.client.has_room
    peer.say(settings(MAX_CONCURRENT_STREAMS=1))
    assert not peer.client.has_room


def test_before_the_server_has_said_so_there_is_room_for_a_hundred() -> None:
    peer = Peer(greet=False)
    for _ in range(100):
        assert peer.client.has_room
        peer.ask(b"x")
    assert not peer.client.has_room
    peer.say(settings())
    assert peer.client.has_room


def test_ids_that_are_used_up_wind_the_connection_up() -> None:
    peer = Peer()
    peer.client._next_id = frames.MAX_STREAM_ID
    stream_id = peer.ask()
    assert stream_id == frames.MAX_STREAM_ID
    assert peer.client.winds_up
    assert not peer.client.has_room
    assert told_in_full(peer.say(answer(stream_id)))


def test_an_answer_before_the_end_of_the_request_ends_it() -> None:
    peer = Peer()
    stream_id = peer.ask(bytes(100_000))
    peer.sent()
    assert told_in_full(peer.say(answer(stream_id)))
    assert [(frame.kind, frame.stream_id, frame.code) for frame in peer.sent()] == [
        (frames.RST_STREAM, stream_id, ErrorCode.NO_ERROR)
    ]
    assert peer.say(frames.window_update(stream_id, 1 << 20), frames.window_update(0, 1 << 20)) == []
    assert peer.sent() == []


def test_interim_answers_are_dropped() -> None:
    peer = Peer()
    stream_id = peer.ask()
    assert peer.say(headers(stream_id, encode_block([(b":status", b"103")]))) == []
    assert told_in_full(peer.say(answer(stream_id)))


def test_trailers_may_be_all_that_comes() -> None:
    peer = Peer()
    stream_id = peer.ask()
    block = encode_block([(b":status", b"200"), (b"grpc-status", b"5")])
    (event,) = peer.say(headers(stream_id, block, end_stream=True))
    assert event == HeadReceived(stream_id, as_head([(b":status", b"200"), (b"grpc-status", b"5")]), True)


def test_data_that_is_not_consumed_holds_the_server_back() -> None:
    peer = Peer(Http2Limits(stream_window_bytes=65_535, connection_window_bytes=1 << 20, keepalive=ALIVE))
    stream_id = peer.ask()
    peer.sent()
    peer.say(headers(stream_id, HEADERS), *(data(stream_id, bytes(13_107)) for _ in range(5)))
    assert peer.sent() == []
    peer.client.consumed(stream_id, 65_535)
    assert [(frame.kind, frame.stream_id, frame.word) for frame in peer.sent()] == [
        (frames.WINDOW_UPDATE, stream_id, 65_535)
    ]


# A server that leaves, or is silent.


def test_a_server_that_leaves_is_asked_no_more_and_finishes() -> None:
    peer = Peer()
    one, two = peer.ask(), peer.ask()
    events = peer.say(frames.goaway(one, ErrorCode.NO_ERROR, "bye"))
    assert events == [PeerLeaves(ErrorCode.NO_ERROR, "bye"), StreamReset(two, ErrorCode.REFUSED_STREAM)]
    assert not peer.client.has_room
    assert peer.client.winds_up
    *answered, over = peer.say(answer(one))
    assert told_in_full(answered)
    assert over == Terminated(ErrorCode.NO_ERROR, "the server has said goodbye")
    assert peer.client.terminated


def test_a_server_that_leaves_with_nothing_open_is_gone() -> None:
    peer = Peer()
    events = peer.say(frames.goaway(0, ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings"))
    assert events == [
        PeerLeaves(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings"),
        Terminated(ErrorCode.NO_ERROR, "the server has said goodbye"),
    ]


def test_a_silent_server_is_asked_and_then_given_up() -> None:
    peer = Peer()
    assert peer.client.tick(9.0) == []
    assert peer.client.tick(10.0) == []
    assert [frame.kind for frame in peer.sent()] == [frames.PING]
    peer.now_s = 12.0
    peer.say(frames.ping(b"Trireme?", ack=True))
    assert peer.client.tick(15.0) == []
    assert peer.client.tick(25.0) == []
    assert [frame.kind for frame in peer.sent()] == [frames.PING]
    assert peer.client.tick(30.0) == [Terminated(ErrorCode.NO_ERROR, "the server does not answer to PING")]


def test_retiring_ends_when_nothing_is_open() -> None:
    peer = Peer()
    stream_id = peer.ask()
    peer.client.retire()
    assert not peer.client.has_room
    assert not peer.client.terminated
    peer.say(answer(stream_id))
    assert peer.client.terminated


# A server that breaks the rules.


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "frame of"),
        (data(1, b"x"), "the first frame is not SETTINGS"),
        (settings(ENABLE_PUSH=1), "SETTINGS_ENABLE_PUSH is 1, expected 0"),
        (settings() + frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), "nothing may be pushed"),
        (settings() + headers(7, HEADERS), "HEADERS on idle stream 7"),
        (settings() + data(2, b"x"), "DATA on idle stream 2"),
        (settings() + headers(1, b"\xff\xff"), "header block cannot be decoded"),
        (settings() + frames.window_update(0, 2**31 - 1), "the connection's window overflows"),
        (settings(INITIAL_WINDOW_SIZE=2**31), "SETTINGS_INITIAL_WINDOW_SIZE is 2147483648"),
        (settings() + b"".join(frames.ping(bytes(8)) for _ in range(2_000)), "too_many_pings"),
    ],
)
def test_offences_end_the_connection_with_their_reason(said: bytes, why: str) -> None:
    peer = Peer(greet=False)
    peer.ask()
    *_, event = peer.say(said)
    assert isinstance(event, Terminated)
    assert why in event.debug
    assert peer.client.terminated
    assert peer.sent()[-1].kind == frames.GOAWAY
    assert peer.say(settings()) == []


@pytest.mark.parametrize(
    "said",
    [
        data(1, b"x"),  # before the headers
        headers(1, TRAILERS),
        headers(1, HEADERS) + headers(1, HEADERS),
        headers(1, HEADERS) + headers(1, TRAILERS),
        headers(1, encode_block([(b":status", b"100")]), end_stream=True),
        headers(1, encode_block([(b":status", b"20")])),
        headers(1, encode_block([(b":status", b"200"), (b"Bad", b"x")])),
    ],
)
def test_offences_of_a_stream_cost_the_stream(said: bytes) -> None:
    peer = Peer()
    one, two = peer.ask(), peer.ask()
    assert one == 1
    peer.sent()
    assert peer.say(said)[-1] == StreamReset(1, ErrorCode.PROTOCOL_ERROR)
    assert [(frame.kind, frame.stream_id) for frame in peer.sent()] == [(frames.RST_STREAM, 1)]
    assert told_in_full(peer.say(answer(two)))


pieces = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([1, 1, 3, 5, 2, 9]).flatmap(
        lambda stream_id: st.sampled_from(
            [
                answer(stream_id),
                headers(stream_id, HEADERS),
                headers(stream_id, TRAILERS, end_stream=True),
                data(stream_id, b"some"),
                data(stream_id, bytes(16_384), end_stream=True),
                data(stream_id, b"some", padding=9),
                frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM),
                frames.window_update(stream_id, 70_000),
                frames.goaway(stream_id, ErrorCode.NO_ERROR, "bye"),
                headers(stream_id, HEADERS, end_headers=False),
                frames.frame(frames.CONTINUATION, 4, stream_id, TRAILERS),
            ]
        )
    ),
    st.sampled_from([frames.ping(bytes(8)), settings(), settings(INITIAL_WINDOW_SIZE=0), frames.window_update(0, 9)]),
)


@given(said=st.lists(pieces, max_size=12), cuts=st.lists(st.integers(0, 200), max_size=4), cancel=st.booleans())
@effort(max_examples=100, deadline=None)
def test_anything_may_come_and_nothing_is_told_of_what_is_over(
    said: list[bytes], cuts: list[int], cancel: bool
) -> None:
    peer = Peer()
    open_streams = {peer.ask(), peer.ask(bytes(100_000)), peer.ask()}
    whole = b"".join(said)
    at = 0
    for end in [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]:
        for event in peer.say(whole[at:end]):
            if isinstance(event, PeerLeaves):
                continue
            if isinstance(event, Terminated):
                open_streams.clear()
                continue
            assert event.stream_id in open_streams
            if isinstance(event, StreamReset | AnswerReceived) or getattr(event, "end_stream", False):
                open_streams.remove(event.stream_id)
        at = end
        if cancel and open_streams:
            peer.client.reset(open_streams.pop(), ErrorCode.CANCEL)
    assert peer.client.open_streams == (0 if peer.client.terminated else len(open_streams))
    assert sum(peer.client.held_bytes()) < 1 << 19
    peer.sent()


# The house's own server, and another one.

payloads = st.lists(st.integers(0, 300) | st.sampled_from([16_384, 70_000, 300_000]), min_size=1, max_size=8)


@given(asked=payloads, said=payloads, chunk=st.sampled_from([7, 1000, 1 << 20]))
@effort(max_examples=40, deadline=None)
def test_the_house_server_and_the_client_understand_each_other(asked: list[int], said: list[int], chunk: int) -> None:
    peer = Peer(greet=False)
    client, server = peer.client, new_server()
    blocks = AnswerBlocks(HEADERS, TRAILERS)
    questions = {peer.ask(bytes([index]) * size): bytes([index]) * size for index, size in enumerate(asked)}
    answers = {stream: bytes([7]) * said[index % len(said)] for index, stream in enumerate(questions)}
    came = dict.fromkeys(questions, b"")
    events: list[Any] = []
    for _ in range(1_000):
        out = b"".join(client.take_output())
        heard: list[Any] = []
        for at in range(0, len(out), chunk):
            heard += server.receive(out[at : at + chunk], 0.0)
        for event in heard:
            if isinstance(event, RequestReceived):
                came[event.stream_id] += event.data
            elif isinstance(event, DataReceived):
                came[event.stream_id] += event.data
                server.consumed(event.stream_id, len(event.data))
            if getattr(event, "end_stream", False):
                payload = answers[event.stream_id]
                server.respond(event.stream_id, blocks, [payload], len(payload))
        back = b"".join(server.take_output())
        for at in range(0, len(back), chunk):
            for event in client.receive(back[at : at + chunk], 0.0):
                events.append(event)
                if isinstance(event, DataReceived):
                    client.consumed(event.stream_id, len(event.data))
        if not out and not back:
            break
    assert came == questions
    assert {stream: payload for stream, _, payload, _ in told_in_full(events)} == answers
    assert client.open_streams == 0
    assert not client.terminated


@given(sizes=payloads, padding=st.none() | st.integers(0, 255))
@effort(max_examples=40, deadline=None)
def test_h2_and_the_client_understand_each_other(sizes: list[int], padding: int | None) -> None:
    """It indexes headers in the dynamic table, and pads."""
    peer = Peer(greet=False)
    client = peer.client
    config = h2.config.H2Configuration(client_side=False, header_encoding=None)
    server = h2.connection.H2Connection(config)
    server.initiate_connection()
    questions = {peer.ask(bytes([index]) * size): bytes([index]) * size for index, size in enumerate(sizes)}
    came = dict.fromkeys(questions, b"")
    left = dict(questions)
    events: list[Any] = []
    for _ in range(2_000):
        out = b"".join(client.take_output())
        for event in server.receive_data(out):
            if isinstance(event, h2.events.DataReceived):
                came[event.stream_id] += event.data
                server.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                server.send_headers(event.stream_id, [(":status", "200"), ("content-type", "application/grpc")])
        for stream, payload in list(left.items()):
            if came[stream] != payload:
                continue
            extra = 0 if padding is None else padding + 1
            size = min(server.local_flow_control_window(stream) - extra, server.max_outbound_frame_size - extra)
            if payload and size > 0:
                server.send_data(stream, payload[:size], pad_length=padding)
                left[stream] = payload = payload[size:]
            if not payload:
                server.send_headers(stream, [("grpc-status", "0")], end_stream=True)
                del left[stream]
        back = server.data_to_send()
        for event in client.receive(back, 0.0):
            events.append(event)
            if isinstance(event, DataReceived):
                client.consumed(event.stream_id, len(event.data))
        if not out and not back:
            break
    assert came == questions
    assert {stream: (payload, trailers) for stream, _, payload, trailers in told_in_full(events)} == {
        stream: (payload, END) for stream, payload in questions.items()
    }
