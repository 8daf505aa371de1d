"""HTTP/1.x messages: requests, read out of a byte stream by httptools, with limits and refusals of its own; responses.

Rule 1: Requests come out in the order of their heads, each as soon as its head is complete; its body follows.
Rule 2: After a failure nothing more comes out. The requests before it stand and are to be answered first.
Rule 3: A malformed head fails silently (the connection closes with no bytes, docs/reference/http.md#transport). A head
        over the limit is 431. A body whose length is ambiguous, or whose chunks are malformed, is 400, and so is an
        HTTP/1.1 request without exactly one Host: that is how requests are smuggled past a proxy.
Rule 4: Whatever a client sends, what is held for it is bounded by the head limit and the size of one feed. Of many
        small requests in one feed, few are read at once: the rest waits for `read_on`.
Rule 5: An upgrade is ignored, as HTTP allows. To HTTP/2 in particular: a proxy that lets the request for it through
        would pass on whatever follows, unseen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple

import httptools

from ....engine.errors import RefusalReason
from ....engine.memo import Memo
from ....engine.tensor import Buffer
from ...sockets.limits import Limits
from ..exchange import Answer, Headers

_METHODS = {name.encode(): name for name in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")}
_STEP_BYTES = 4096
"""So much is read at once of many requests: it may hold a hundred heads, at 10 µs each."""
_MANY = 32
_PIECE_BYTES = 64
_FIELD_BYTES = 300
_REQUEST_BYTES = 1024
"""What a piece of a body, a header and a request take in memory besides what is in them, or a little more."""

_NOTED_HEADERS = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect"))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why parsing stopped; `status` 0 closes the connection without an answer."""

    status: int = 0
    message: str = ""

    @property
    def reason(self) -> RefusalReason | None:
        """What it is counted as; None if it is no refusal, or its decider counts it."""
        return RefusalReason.INVALID if not (self.status or self.message) else _REASONS.get(self.status)


_REASONS = {
    400: RefusalReason.INVALID,
    408: RefusalReason.TOO_SLOW,
    413: RefusalReason.TOO_LARGE,
    431: RefusalReason.TOO_LARGE,
}


class RequestParser:
    """A push parser: `feed` it bytes, take from `requests`, heed `failure`.

    Attributes:
        requests: requests whose head is complete, oldest first. The last one's body may still be arriving.
        failure: set when nothing more can be read.
    """

    def __init__(self, limits: Limits, *, heads: HeadMemory | None = None) -> None:
        self._limits = limits
        self._heads = heads
        self.requests: list[Request] = []
        self.failure: Refusal | None = None
        self._received: list[tuple[bytes, bytes]] = []
        self._fed_bytes = 0  # by the last feed
        self._unread = b""  # rule 4
        self._usual: KnownHead | None = None  # of the latest request that was recalled
        self.restart()

    def restart(self) -> None:
        """Expects a new request next: the owner has read the rest of the current body past this parser."""
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._body_request: Request | None = None
        self._begun = False
        self._stalled_bytes = 0
        self._raw_bytes = 0  # fed since the feed in which the current message began

    def close(self) -> None:
        """Drops the httptools parser, which refers back to this object."""
        self._parser = None

    @property
    def between_requests(self) -> bool:
        """Not one byte of a further request has been seen."""
        return not self._begun and not self._stalled_bytes and not self._unread

    @property
    def held_bytes(self) -> int:
        """About how much memory is taken by a message that has begun and is not complete, and by those in
        `requests`."""
        requests = len(self.requests)
        if not (requests or self._begun or self._stalled_bytes or self._unread):
            return 0
        return self._raw_bytes + _FIELD_BYTES * len(self._received) + _REQUEST_BYTES * requests

    def handed_over(self) -> None:
        """What has come of the current body is not held here from now on."""
        self._raw_bytes = 0

    def abandon(self, failure: Refusal) -> None:
        """Drops what it holds. Nothing more is read."""
        self.failure = failure
        self.requests.clear()
        self._received = []
        self._unread = b""
        self.restart()

    def feed(self, data: bytes) -> None:
        """Takes in the next bytes of the stream; never raises for what they contain."""
        heads, usual = self._heads, self._usual
        begun = self._begun or self._stalled_bytes or self._unread
        if heads is None or begun or self.failure is not None or self._parser is None:
            self._parse(data)
            return
        if usual is None or len(data) != usual.size or not data.startswith(usual.head):
            usual = heads.recall(data)
        if usual is not None:
            self._usual = usual
            self.requests.append(usual.request.again(data[len(usual.head) :]))
            return
        count = len(self.requests)
        self._parse(data)
        if len(self.requests) == count + 1 and self.failure is None:
            heads.learn(data, self.requests[-1])

    def _parse(self, data: bytes) -> None:
        self._progress = False
        self._fed_bytes = len(data) + _PIECE_BYTES
        self._raw_bytes += self._fed_bytes
        pending, self._unread = self._unread + data if self._unread else data, b""
        self._read(pending)
        if self._progress:
            self._stalled_bytes = 0
        else:
            self._stalled_bytes += len(data)
            if self._stalled_bytes > self._limits.head_bytes:
                self._refuse_size()

    def _read(self, pending: bytes) -> None:
        """Reads all; of many requests one step, and on until there is more than one."""
        many = len(pending) > _STEP_BYTES and pending.count(b" HTTP/1") > _MANY
        begun = False
        while pending and self.failure is None and self._parser is not None:
            if begun and many and len(self.requests) > 1:
                self._unread = pending
                return
            begun = True
            now, rest = (pending[:_STEP_BYTES], pending[_STEP_BYTES:]) if many else (pending, b"")
            try:
                self._parser.feed_data(now)
                pending = rest
            except httptools.HttpParserUpgrade as stop:
                pending = self._after_upgrade(now[stop.args[0] :]) + rest
            except httptools.HttpParserError as error:
                self._fail(error)

    def read_on(self) -> bool:
        """Reads more of what has been fed, if some was left (rule 4). False: nothing was, more has to be fed."""
        pending, self._unread = self._unread, b""
        self._read(pending)
        return bool(pending)

    def _fail(self, error: httptools.HttpParserError) -> None:
        if self.failure is None:  # else a callback below has set it, and raised only to stop httptools
            reason = str(error)
            if self._body_request is not None:
                self.failure = Refusal(400, f"malformed request body: {reason}")
            elif "Content-Length" in reason or "Transfer-Encoding" in reason:
                self.failure = Refusal(400, f"ambiguous request length: {reason}")
            else:
                self.failure = Refusal()

    def _refuse_size(self) -> None:
        if self._body_request is not None:  # chunk extensions or trailers without end
            self.failure = Refusal(400, f"chunk header or trailers exceed {self._limits.head_bytes} bytes")
        else:
            self.failure = Refusal(431, f"request header block exceeds {self._limits.head_bytes} bytes")

    def _after_upgrade(self, rest: bytes) -> bytes:
        """Decides about a request at which httptools stopped. Returns the bytes to go on with."""
        request = self.requests[-1]
        if request.method == "CONNECT":
            request.keep_alive = False
            self.failure = Refusal()
            return b""
        # Ignored upgrade. httptools has skipped the body, so the request is read again without the header.
        self.requests.pop()
        self.restart()
        return request.head(without=b"upgrade") + rest

    # ---- called by httptools ----

    def on_message_begin(self) -> None:
        self._begun = True
        self._raw_bytes = self._fed_bytes
        self._url = b""
        self._received = []
        self._head_bytes = 0
        self._chunks = 0
        self._chunk_begins = False
        self._remaining: int | None = 0
        self._expects_continue = False
        self._hosts = 0

    def on_url(self, url: bytes) -> None:
        self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._body_request is None:
            self._received.append((name, value))  # looked at when all are there: less work for each
            if len(self._received) > self._limits.head_fields:
                self.failure = Refusal(431, f"request header block has more than {self._limits.head_fields} headers")
                raise ValueError("too many headers")
            return
        self._head_bytes += len(name) + len(value) + 4  # a trailer: only counted
        if self._head_bytes > self._limits.head_bytes:
            self._refuse_size()
            raise ValueError("trailers too large")

    def _read_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The headers with lower-case names; notes those that concern the framing, and how large all are."""
        size = len(self._url)
        headers = []
        for name, value in self._received:
            size += len(name) + len(value) + 4
            header = (name.lower(), value.rstrip(b" \t"))
            headers.append(header)
            if header[0] in _NOTED_HEADERS:
                self._note(*header)
        self._head_bytes = size
        return tuple(headers)

    def _note(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            self._remaining = int(value)  # llhttp has let digits through only, and only once
        elif name == b"transfer-encoding":
            if self._remaining is None or value.lower() != b"chunked":
                self.failure = Refusal(400, "ambiguous request length: the only Transfer-Encoding known is chunked")
                raise ValueError("transfer encoding")
            self._remaining = None
        elif name == b"host":
            self._hosts += 1
        else:
            self._expects_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        http_version = parser.get_http_version()
        if http_version not in ("1.1", "1.0"):
            self.failure = Refusal()
            raise ValueError("version")
        headers = self._read_headers()
        if self._head_bytes > self._limits.head_bytes:
            self._refuse_size()
            raise ValueError("head too large")
        if self._hosts != 1 and (self._hosts or http_version == "1.1"):
            self.failure = Refusal(400, f"an HTTP/1.1 request needs one Host header, this one has {self._hosts}")
            raise ValueError("host")
        if self._remaining is None and http_version == "1.0":
            self.failure = Refusal(400, "ambiguous request length: HTTP/1.0 has no Transfer-Encoding")
            raise ValueError("transfer encoding")
        method = parser.get_method()
        names = tuple([name for name, _ in self._received])
        request = Request(_METHODS.get(method) or method.decode(), self._url, http_version, headers, names)
        request.keep_alive = parser.should_keep_alive()
        request.expects_continue = self._expects_continue and http_version == "1.1"
        request.remaining = self._remaining
        self._body_request = request
        self._progress = True
        self.requests.append(request)

    def on_chunk_header(self) -> None:
        self._chunk_begins = True
        self._progress = True

    def on_body(self, body: bytes) -> None:
        request = self._body_request
        assert request is not None
        if request.remaining is not None:
            request.remaining -= len(body)
        elif self._chunk_begins:  # only a chunk that is not empty gets here
            self._chunk_begins = False
            self._chunks += 1
            if self._chunks > self._limits.body_chunks:
                self.failure = Refusal(
                    400,
                    f"Chunked request body exceeds maximum of {self._limits.body_chunks} non-empty chunks. "
                    "Send fewer or larger HTTP chunks.",
                )
                raise ValueError("too many chunks")
        request.pieces.append(body)
        self._progress = True

    def on_message_complete(self) -> None:
        request = self._body_request
        assert request is not None
        request.complete = True
        self._body_request = None
        self._begun = False
        self._progress = True


@dataclass(slots=True, eq=False)
class Request:
    """One request: its head, and as much of its body as has arrived and was not taken yet.

    Attributes:
        target: the request target as received, bytes.
        headers: (lower-case name, value), in order.
        header_names: the names as received, in the same order.
        keep_alive: whether the client lets the connection live on.
        expects_continue: the client waits for ``100 Continue`` before it sends the body.
        remaining: bytes of the body yet to come; None for a chunked body.
        pieces: arrived pieces of the body; their taker clears the list.
        complete: the whole body has arrived.
        first: the remembered request with the same head, and as long a body; None if it is not remembered.
        found: of the first: what the application has made of it, which holds for all that have its head.
    """

    method: str
    target: bytes
    http_version: str
    headers: tuple[tuple[bytes, bytes], ...]
    header_names: tuple[bytes, ...]
    keep_alive: bool = True
    expects_continue: bool = False
    remaining: int | None = 0
    pieces: list[Buffer] = field(default_factory=list)
    complete: bool = False
    first: Request | None = None
    found: Any = None

    def again(self, body: bytes) -> Request:
        """A complete request with the same head and another body."""
        pieces: list[Buffer] = [body] if body else []
        headers, names = self.headers, self.header_names
        return Request(self.method, self.target, self.http_version, headers, names, True, False, 0, pieces, True, self)

    def head(self, *, without: bytes = b"") -> bytes:
        """The head in HTTP/1.1's form again, leaving out the header `without`."""
        lines = [b"%b %b HTTP/%b" % (self.method.encode(), self.target, self.http_version.encode())]
        named = zip(self.header_names, self.headers, strict=True)
        lines += [b"%b: %b" % (received, value) for received, (name, value) in named if name != without]
        return b"\r\n".join(lines) + b"\r\n\r\n"


_HEADS = 2_048
_HEAD_BYTES = 2_048
_END = b"\r\n\r\n"


class KnownHead(NamedTuple):
    """A head, how many bytes a request has that begins with it, and one that did, without its body."""

    head: bytes
    size: int
    request: Request


class HeadMemory(Memo[KnownHead]):
    """Remembers the heads of requests, a bounded number, for the connections of one service: a client that asks for one
    inference after the other sends the same head each time, and parsing it is a good part of the work. With each head
    is kept how long the body is.

    Rule 1: What is remembered is the head of a request that came alone, whole and in one piece, and that is nothing
            unusual: a body of announced length or none, and a connection that lives on.
    Rule 2: The same head, followed by as many bytes as it announces and no more, is the same request with another body.
            Everything else is for the parser.
    """

    def __init__(self) -> None:
        super().__init__(_HEADS, _HEAD_BYTES)

    def recall(self, data: bytes) -> KnownHead | None:
        """What `data` is a request of (rule 2), which begins where a request may begin; None if that is not known."""
        known = self.get(data[: data.find(_END) + len(_END)])
        return known if known is not None and known.size == len(data) else None

    def learn(self, data: bytes, request: Request) -> None:
        """Remember the head of `request`, the only one that was begun in `data`, if rule 1 allows it."""
        start = data.find(_END) + len(_END)
        size = len(data) - start
        usual = request.complete and request.remaining == 0 and request.keep_alive and not request.expects_continue
        # Where the body is as long as what is left, nothing stood before the head or behind the body.
        if usual and request.http_version == "1.1" and size == sum(map(len, request.pieces)):
            known = request.again(b"")
            known.first = None  # or its body would be kept
            head = data[:start]
            self.remember(head, KnownHead(head, len(data), known))


# ---- responses, as buffers for the socket ----
#
# Rule 1: Only the application's headers are sent, and those that frame the message: no Server, no Date
#         (docs/reference/http.md#transport). ``Connection: close`` is echoed to HTTP/1.1 clients, ``Connection:
#         keep-alive`` to HTTP/1.0 ones.
# Rule 2: A response to HEAD has no body, but the length of one (docs/reference/http.md#transport).
# Rule 3: A body of unknown length is chunked; over HTTP/1.0 the end of the connection is its end.

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_STATUS_LINES[405] = b"HTTP/1.1 405 Not Allowed\r\n"  # as Triton's HTTP library has it
_JOIN_BYTES = 16_384

CHUNKED = b"Transfer-Encoding: chunked\r\n"


def whole_response(
    answer: Answer,
    keep_alive: bool = True,
    *,
    http10: bool = False,
    with_body: bool = True,
    framing: bytes | None = None,
) -> list[Buffer]:
    """A response.

    Args:
        keep_alive: the connection is kept after it.
        http10: to an HTTP/1.0 request.
        framing: what says in the head where the body ends, if its length does not.
    """
    body, tail = answer.body, answer.tail
    frame: bytes | int | None = framing
    if frame is None:
        frame = len(body) if tail is None else len(body) + len(tail)
    head = _head(answer.status, answer.media, tuple(answer.headers), frame, keep_alive, http10)
    if not with_body:
        return [head]
    if tail is None:
        return [head + body] if len(body) <= _JOIN_BYTES else [head, body]
    return [head + body, tail]


@lru_cache(maxsize=512)
def _head(status: int, media: bytes, headers: Headers, framing: bytes | int, keep_alive: bool, http10: bool) -> bytes:
    """Of a response; answers to requests that repeat themselves have the same. `framing` as for `whole_response`, or
    the length of the body."""
    if isinstance(framing, int):
        framing = b"Content-Length: %d\r\n" % framing
    lines = b""
    for header in headers:
        lines += b"%b: %b\r\n" % header
    if http10:
        if keep_alive:
            lines += b"Connection: keep-alive\r\n"
    elif not keep_alive:
        lines += b"Connection: close\r\n"
    head = b"%bContent-Type: %b\r\n%b%b\r\n" % (_STATUS_LINES[status], media, framing, lines)
    return b"HTTP/1.0" + head[8:] if http10 else head


def chunk(piece: Buffer, last: bool) -> list[Buffer]:
    """A piece of a chunked body. An empty one is no chunk: that would end the body."""
    buffers: list[Buffer] = [b"%x\r\n" % len(piece), piece, b"\r\n"] if len(piece) else []
    return [*buffers, b"0\r\n\r\n"] if last else buffers
