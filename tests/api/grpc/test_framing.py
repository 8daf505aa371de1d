"""Messages come out of a stream of bytes as they went in, however the stream is cut; and waiting costs what it must."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.grpc.framing import INT32_MAX, PREFIX_BYTES, MessageReader, prefix

MESSAGES = st.lists(
    st.tuples(st.booleans(), st.one_of(st.binary(max_size=40), st.integers(0, 9000).map(lambda size: b"m" * size))),
    max_size=12,
)


def frame(payload: bytes, compressed: bool = False) -> bytes:
    return prefix(compressed, len(payload)) + payload


def drain(reader: MessageReader, room: bool = True) -> list[tuple[bool, bytes]]:
    """All messages that are complete; if there is `room`, the next one may come."""
    received = []
    while (framed := reader.next()) is not None:
        received.append((framed.compressed, bytes(framed.payload)))
    if room and reader.announced_bytes:
        reader.collect()
    return received


@given(
    MESSAGES, st.lists(st.integers(0, 60_000), max_size=20), st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20))
)
def test_any_cut_gives_the_same_messages(
    messages: list[tuple[bool, bytes]], cuts: list[int], asks: set[int], room: set[int]
) -> None:
    """Pieces of any size; messages asked for now and then, or at the end; room found now and then, or never."""
    stream = b"".join(frame(payload, compressed) for compressed, payload in messages)
    ends = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = MessageReader(INT32_MAX)
    received = []
    for index, (start, end) in enumerate(pairwise(ends)):
        reader.feed(stream[start:end])
        if index in asks:
            received += drain(reader, index in room)
    received += drain(reader)
    assert received == messages
    assert reader.is_empty
    assert reader.waiting_bytes == 0


@given(MESSAGES.filter(bool), st.integers(1, 1 << 16))
def test_a_stream_cut_short_is_not_empty(messages: list[tuple[bool, bytes]], missing: int) -> None:
    stream = b"".join(frame(payload, compressed) for compressed, payload in messages)
    last = PREFIX_BYTES + len(messages[-1][1])
    reader = MessageReader(INT32_MAX)
    reader.feed(stream[: len(stream) - 1 - missing % last])
    assert drain(reader) == messages[:-1]
    assert reader.is_empty == (1 + missing % last == last)


def test_a_message_in_one_piece_is_not_copied() -> None:
    piece = frame(b"x" * 100_000)
    reader = MessageReader(INT32_MAX)
    reader.feed(piece)
    framed = reader.next()
    assert framed is not None
    assert isinstance(framed.payload, memoryview)
    assert framed.payload.obj is piece


def test_an_announcement_costs_no_memory() -> None:
    """Two gigabytes announced, a few bytes sent: the buffer is made when there is room."""
    reader = MessageReader(INT32_MAX)
    tracemalloc.start()
    try:
        reader.feed(prefix(False, INT32_MAX) + bytes(1000))
        assert reader.next() is None
        reader.feed(bytes(1000))
        assert reader.next() is None
        assert (reader.announced_bytes, reader.waiting_bytes) == (INT32_MAX, PREFIX_BYTES + 2000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_large_message_is_collected_in_place() -> None:
    """It is copied into its buffer once; what has come before the buffer was made is the only part copied twice."""
    size = 8 << 20
    message = bytes(range(256)) * (size // 256)
    stream = frame(message)
    reader = MessageReader(INT32_MAX)
    framed = None
    tracemalloc.start()
    try:
        for at in range(0, len(stream), 1 << 16):
            reader.feed(stream[at : at + (1 << 16)])
            framed = reader.next()
            if reader.announced_bytes:
                reader.collect()
        assert tracemalloc.get_traced_memory()[1] < size + (2 << 20)
    finally:
        tracemalloc.stop()
    assert framed is not None
    assert bytes(framed.payload) == message


def test_waiting_empty_messages_cost_their_bytes() -> None:
    """A window full of empty messages that were not asked for is no list of objects."""
    reader = MessageReader(INT32_MAX)
    window = frame(b"") * 200_000
    tracemalloc.start()
    try:
        for at in range(0, len(window), 1000):
            reader.feed(window[at : at + 1000])
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
    assert reader.waiting_bytes == 1_000_000


@pytest.mark.parametrize("first", [b"", frame(b"good")])
def test_too_large_messages_are_refused_when_announced(first: bytes) -> None:
    """At the limit is fine; the messages before are still given."""
    reader = MessageReader(10)
    reader.feed(first + frame(b"x" * 10) + prefix(False, 11))
    assert len([reader.next() for _ in range(1 + bool(first))]) == 1 + bool(first)
    with pytest.raises(GRPCError) as caught:
        reader.next()
    assert (caught.value.status, caught.value.message) == (
        Status.RESOURCE_EXHAUSTED,
        "Received message larger than max (11 vs. 10)",
    )


def test_unknown_flags_are_refused() -> None:
    reader = MessageReader(10)
    reader.feed(b"\x02\0\0\0\0")
    with pytest.raises(GRPCError, match="flag: 2") as caught:
        reader.next()
    assert caught.value.status is Status.INTERNAL


def test_what_is_at_its_place_is_only_counted() -> None:
    """The rest of a message is received there; its last bytes, tensors, are aligned."""
    reader = MessageReader(INT32_MAX)
    reader.feed(prefix(False, 100_001) + b"head")
    assert reader.next() is None
    assert reader.landing is None, "there is no room for it yet"
    reader.collect()
    landing = reader.landing
    assert landing is not None
    assert len(landing) == 100_001 - 4
    landing[:60_000] = b"x" * 60_000
    reader.feed(landing[:60_000])
    assert reader.next() is None
    reader.feed(b"y" * 9_997)
    landing = reader.landing
    assert landing is not None
    landing[:] = b"z" * 30_000
    reader.feed(landing)
    assert reader.landing is None
    framed = reader.next()
    assert framed is not None
    assert isinstance(framed.payload, memoryview)
    assert framed.payload.obj is landing.obj
    assert bytes(framed.payload) == b"head" + b"x" * 60_000 + b"y" * 9_997 + b"z" * 30_000
    assert np.frombuffer(framed.payload[-8_000:], np.float32).flags.aligned
