"""Two clients for tests of the HTTP/2 core: one that builds frames by hand, and the h2 library's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings

from trireme.api.http2 import frames
from trireme.api.http2.frames import (
    DataReceived,
    ErrorCode,
    Http2Event,
    RequestReceived,
    StreamDrained,
    StreamReset,
)
from trireme.api.http2.headers import encode_block
from trireme.api.http2.limits import Http2Limits
from trireme.api.http2.server import Http2Server
from trireme.engine.tensor import Buffer

Head = tuple[tuple[bytes, bytes], ...]

REQUEST: Head = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.Service/Call"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
BLOCK = encode_block(REQUEST)
HEADERS = encode_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS = encode_block([(b"grpc-status", b"0")])
EMPTY_SETTINGS = frames.settings(())


def as_head(fields: Sequence[tuple[bytes, bytes]]) -> Head:
    return tuple(fields)


def respond(server: Http2Server[Head], stream_id: int, *answer: Buffer) -> None:
    """A whole answer, in so many parts."""
    server.respond(stream_id, frames.AnswerBlocks(HEADERS, TRAILERS), answer, sum(map(len, answer)))


def new_server(limits: Http2Limits | None = None) -> Http2Server[Head]:
    return Http2Server(limits or Http2Limits(), as_head, 0.0)


# ---- frames ----


@dataclass(frozen=True)
class Frame:
    """A frame that the server has sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes = field(repr=False)

    @property
    def code(self) -> ErrorCode:
        """What a RST_STREAM or GOAWAY says."""
        at = 4 if self.kind == frames.GOAWAY else 0
        return ErrorCode(int.from_bytes(self.payload[at : at + 4]))

    @property
    def word(self) -> int:
        """What a WINDOW_UPDATE says, or the last stream id of a GOAWAY."""
        return int.from_bytes(self.payload[:4])

    @property
    def debug(self) -> str:
        return self.payload[8:].decode()


def parse(data: bytes) -> list[Frame]:
    """The whole frames that `data` consists of."""
    found = []
    at = 0
    while at < len(data):
        head, flags, stream_id = frames.FRAME_HEADER.unpack_from(data, at)
        at += 9
        assert at + (head >> 8) <= len(data), "a frame is cut off"
        found.append(Frame(head & 0xFF, flags, stream_id, data[at : at + (head >> 8)]))
        at += head >> 8
    return found


def headers(stream_id: int, block: bytes = BLOCK, *, end_stream: bool = False, end_headers: bool = True) -> bytes:
    flags = (frames.END_STREAM if end_stream else 0) | (frames.END_HEADERS if end_headers else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, block)


def data(stream_id: int, payload: bytes = b"", *, end_stream: bool = False, padding: int | None = None) -> bytes:
    flags = frames.END_STREAM if end_stream else 0
    if padding is not None:
        flags |= frames.PADDED
        payload = bytes((padding,)) + payload + bytes(padding)
    return frames.frame(frames.DATA, flags, stream_id, payload)


def call(stream_id: int, payload: bytes = b"question") -> bytes:
    """A whole unary request."""
    return headers(stream_id) + data(stream_id, payload, end_stream=True)


def settings(**values: int) -> bytes:
    """A SETTINGS frame: ``settings(INITIAL_WINDOW_SIZE=0)``."""
    return frames.settings([(getattr(frames, name), value) for name, value in values.items()])


class RawPeer:
    """A client that says whatever a test wants.

    Args:
        limits: the server's.
        greet: the preface and SETTINGS are sent, and answered, before the test begins.
    """

    def __init__(self, limits: Http2Limits | None = None, *, greet: bool = True, **client_settings: int) -> None:
        self.server = new_server(limits)
        self.now_s = 0.0
        if greet:
            self.server.receive(frames.PREFACE + settings(**client_settings), 0.0)
            self.sent()

    def say(self, *pieces: bytes) -> list[Any]:
        """Sends bytes in one read; returns the events."""
        events = self.server.receive(b"".join(pieces), self.now_s)
        while self.server.has_unread:
            events += self.server.receive(b"", self.now_s)
        return events

    def sent(self) -> list[Frame]:
        """What the server has sent since this was last asked."""
        return parse(b"".join(self.server.take_output()))

    def of_kind(self, kind: int) -> list[Frame]:
        return [frame for frame in self.sent() if frame.kind == kind]

    def goaway(self) -> Frame:
        """The last frame sent, which must be a GOAWAY; and the server must be done."""
        last = self.sent()[-1]
        assert last.kind == frames.GOAWAY
        assert self.server.terminated
        return last


def consumed(server: Http2Server[Head], events: list[Http2Event[Head]]) -> list[Http2Event[Head]]:
    """The events, whose data has been used up."""
    for event in events:
        if isinstance(event, DataReceived):
            server.consumed(event.stream_id, len(event.data))
    return events


def merged(events: list[Http2Event[Head]]) -> list[tuple]:
    """Events with neighbouring data put together, since DATA may come in any pieces; and that of a request taken from
    its beginning, since only some come whole."""
    facts: list[tuple] = []
    for event in events:
        if isinstance(event, RequestReceived) and event.data:
            facts.append((RequestReceived(event.stream_id, event.head, False),))
            facts.append((event.stream_id, event.data, True))
        elif not isinstance(event, DataReceived):
            facts.append((event,))
        elif facts and len(facts[-1]) > 1 and facts[-1][0] == event.stream_id and not facts[-1][2]:
            _, before, _ = facts.pop()
            facts.append((event.stream_id, before + event.data, event.end_stream))
        else:
            facts.append((event.stream_id, event.data, event.end_stream))
    return facts


# ---- h2 ----


@dataclass
class Answer:
    """What an h2 client has got on a stream."""

    headers: list[tuple[bytes, bytes]] | None = None
    data: bytearray = field(default_factory=bytearray)
    trailers: list[tuple[bytes, bytes]] | None = None
    ended: bool = False
    reset: int | None = None


class H2Peer:
    """The h2 library as the client, and a server that collects what it gets.

    Everything that the client sends goes to the server in pieces of `read_bytes`, and back likewise.
    """

    def __init__(self, limits: Http2Limits | None = None, *, read_bytes: int = 65_536, **client_settings: int) -> None:
        self.server = new_server(limits)
        self.read_bytes = read_bytes
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self.client = h2.connection.H2Connection(config)
        self.client.local_settings = h2.settings.Settings(
            client=True,
            initial_values={h2.settings.SettingCodes[name]: value for name, value in client_settings.items()},
        )
        self.client.initiate_connection()
        self.now_s = 0.0
        self.acknowledge = True  # whether the client gives windows back
        self.consume = True  # whether the server does
        self.answers: dict[int, Answer] = {}
        self.requests: dict[int, bytearray] = {}
        self.complete: set[int] = set()
        self.server_events: list[Http2Event[Head]] = []
        self.client_events: list[h2.events.Event] = []
        self.pump()

    def pump(self) -> None:
        """Carries bytes to and fro until neither side has any to send."""
        while True:
            outgoing = self.client.data_to_send()
            for at in range(0, len(outgoing), self.read_bytes):
                for event in self.server.receive(outgoing[at : at + self.read_bytes], self.now_s):
                    self._at_server(event)
            written = b"".join(self.server.take_output())
            for at in range(0, len(written), self.read_bytes):
                for answer in self.client.receive_data(written[at : at + self.read_bytes]):
                    self._at_client(answer)
            if not outgoing and not written:
                return

    def call(self, payload: bytes = b"question", *, end_stream: bool = True) -> int:
        """Begins a call, without pumping; returns its stream."""
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, REQUEST)
        self.answers[stream_id] = Answer()
        if payload or end_stream:
            self.client.send_data(stream_id, payload, end_stream)
        return stream_id

    def _at_server(self, event: Http2Event[Head]) -> None:
        self.server_events.append(event)
        match event:
            case RequestReceived():
                assert event.stream_id not in self.requests
                self.requests[event.stream_id] = bytearray(event.data)
                if event.end_stream:
                    self.complete.add(event.stream_id)
            case DataReceived():
                self.requests[event.stream_id] += event.data
                if self.consume:
                    self.server.consumed(event.stream_id, len(event.data))
                if event.end_stream:
                    self.complete.add(event.stream_id)
            case StreamReset() | StreamDrained():
                assert event.stream_id in self.requests

    def _at_client(self, event: h2.events.Event) -> None:
        self.client_events.append(event)
        answer = self.answers.get(getattr(event, "stream_id", None) or 0, Answer())
        match event:
            case h2.events.ResponseReceived():
                answer.headers = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
            case h2.events.TrailersReceived():
                answer.trailers = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
            case h2.events.DataReceived():
                answer.data += event.data or b""
                if self.acknowledge and event.flow_controlled_length:
                    self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id or 0)
            case h2.events.StreamEnded():
                answer.ended = True
            case h2.events.StreamReset():
                answer.reset = int(event.error_code or 0)
