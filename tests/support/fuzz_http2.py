"""HTTP/2 to be fuzzed: frames that are right, frames that are not, in any order, to either port; and what came back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import hpack
from fuzz_http import any_request, check_form
from fuzz_mutations import mutate, pieces
from fuzz_target import Finding, Target, converse, described
from http2_peer import parse

from trireme.api.http2 import frames
from trireme.api.http2.headers import encode_block

KNOWN_FRAMES = range(10)
STATUSES = {b"100", b"200", b"400", b"403", b"404", b"405", b"413", b"500", b"501", b"503"}

Request = Callable[[random.Random], tuple[list[tuple[bytes, bytes]], bytes]]
"""Gives a request's header list and its body."""


def http_request(rng: random.Random) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A request to the HTTP interface."""
    sent = any_request(rng)
    head = [
        (b":method", sent.method.encode()),
        (b":path", sent.path.encode()),
        (b":scheme", b"http"),
        (b":authority", b"x"),
    ]
    head += [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in sent.headers.items()]
    return head, sent.body


def conversation(rng: random.Random, request: Request) -> bytes:
    """A preface, settings, and streams that are mixed with frames of other kinds."""
    said = [frames.PREFACE, frames.settings(_settings(rng))]
    for number in range(rng.choice((1, 1, 2, 4))):
        said += _stream(rng, 2 * number + 1, *request(rng))
        if rng.random() < 0.4:
            said.append(_stray(rng, 2 * number + 1))
    if rng.random() < 0.1:
        rng.shuffle(said)
    return b"".join(said)


def _stream(rng: random.Random, stream_id: int, head: list[tuple[bytes, bytes]], body: bytes) -> Iterator[bytes]:
    if rng.random() < 0.15:
        head = _spoilt_head(rng, head)
    block = encode_block(head)
    if rng.random() < 0.05:
        block = mutate(rng, block)
    end = 0 if body or rng.random() < 0.1 else frames.END_STREAM
    cut = rng.randrange(len(block) + 1) if rng.random() < 0.1 else len(block)
    yield frames.frame(frames.HEADERS, end | (frames.END_HEADERS if cut == len(block) else 0), stream_id, block[:cut])
    if cut < len(block):
        yield frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream_id, block[cut:])
    while body and not end:
        size = min(rng.choice((1, 10, 1_000, 16_384)), 16_384)
        piece, body = body[:size], body[size:]
        flags = 0 if body or rng.random() < 0.05 else frames.END_STREAM
        if rng.random() < 0.05:
            piece, flags = bytes([rng.randrange(256)]) + piece, flags | frames.PADDED
        yield frames.frame(frames.DATA, flags, stream_id, piece)


def _spoilt_head(rng: random.Random, head: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    head = [*head]
    at = rng.randrange(len(head))
    name, value = head[at]
    match rng.randrange(5):
        case 0 if rng.random() < 0.5:
            del head[at]
        case 0:
            head[0] = (b":method", rng.choice((b"CONNECT", b"get", b"", b"PRI")))
        case 1:
            head.insert(rng.randrange(len(head) + 1), (name, value))
        case 2:
            head[at] = (name, mutate(rng, value))
        case 3:
            head[at] = (mutate(rng, name), value)
        case _:
            extra = (
                (b"connection", b"close"),
                (b"te", b"gzip"),
                (b"x", b"y" * 20_000),
                (b":x", b""),
                (b"content-length", b"5"),
            )
            head.insert(rng.randrange(len(head) + 1), rng.choice(extra))
    return head


def _settings(rng: random.Random) -> list[tuple[int, int]]:
    if rng.random() < 0.6:
        return []
    return [(rng.randrange(1, 9), rng.choice((0, 1, 100, 16_384, 2**24 - 1, 2**31 - 1, 2**32 - 1)))]


def _stray(rng: random.Random, stream_id: int) -> bytes:
    """A frame that need not be there."""
    kind = rng.choice((*KNOWN_FRAMES, 10, 255))
    payload = rng.choice((b"", bytes(4), bytes(8), rng.randbytes(rng.choice((1, 4, 5, 8, 9, 100)))))
    return frames.frame(kind, rng.choice((0, 1, 4, 8, 32, 255)), rng.choice((0, stream_id, stream_id + 1, 99)), payload)


def answers(heard: bytes, said: object) -> dict[int, tuple[list[dict[bytes, bytes]], bytes]]:
    """Header lists and data by stream.

    Raises:
        Finding: what was heard is no HTTP/2.
    """
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 2**32  # whatever the client has announced
    streams: dict[int, tuple[list[dict[bytes, bytes]], bytes]] = {}
    try:
        for frame in parse(heard):
            lists, data = streams.setdefault(frame.stream_id, ([], b""))
            if frame.kind == frames.HEADERS:
                lists.append(dict(decoder.decode(frame.payload, raw=True)))
            elif frame.kind == frames.DATA:
                streams[frame.stream_id] = (lists, data + frame.payload)
            elif frame.kind not in KNOWN_FRAMES:
                raise Finding(f"a frame of kind {frame.kind} to {described(said)}")
    except (AssertionError, hpack.HPACKError) as error:
        if isinstance(error, Finding):
            raise
        raise Finding(f"what came back is no HTTP/2 ({error}): {heard[:2_000]!r} to {described(said)}") from None
    return streams


def attack(target: Target, rng: random.Random) -> None:
    """Against the HTTP port: whatever is said, what comes back is HTTP/2, and its statuses are the server's."""
    said = conversation(rng, http_request)
    spoilt = rng.random() < 0.4
    if spoilt:
        said = said[:24] + mutate(rng, said[24:], rng.choice((1, 1, 3)))
    abrupt = rng.random() < 0.05
    heard = converse(target, target.http_port, pieces(rng, said), abrupt=abrupt)
    if not said.startswith(frames.PREFACE):
        return
    for lists, data in answers(_whole_frames(heard), said).values():
        for fields in lists[:1]:
            status = fields.get(b":status", b"")
            if status not in STATUSES:
                raise Finding(f"status {status!r} to {described(said)}")
            if data.startswith(b'{"error"') and data.endswith(b"}"):
                check_form(int(status), data, said)


def _whole_frames(heard: bytes) -> bytes:
    """Without a last frame that was cut off when the connection ended."""
    at = 0
    while at + 9 <= len(heard):
        size = int.from_bytes(heard[at : at + 3])
        if at + 9 + size > len(heard):
            break
        at += 9 + size
    return heard[:at]
