"""A call like the one before is cut up in one step, and nobody can tell."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.http2 import frames, reader
from trireme.api.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    WINDOW_UPDATE,
    WORD,
    ConnectionFault,
)
from trireme.api.http2.limits import Http2Limits

BEGINNING = PREFACE + frames.settings(())


class Recorder:
    """Notes the frames of calls; pieces of one DATA frame as one."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_headers(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        self.heard.append(("headers", stream_id, block, end_stream))

    def on_data(self, stream_id: int, piece: bytes | memoryview, charge: int, left: int, end_stream: bool) -> None:
        last = self.heard[-1] if self.heard else None
        if not isinstance(last, list):
            last = ["data", stream_id, b"", 0]
            self.heard.append(last)
        last[2] += piece
        last[3] += charge
        if not left:
            self.heard[-1] = (*last, end_stream)

    def on_window_update(self, stream_id: int, increment: int) -> None:
        self.heard.append(("window", stream_id, increment))

    def on_call(self, stream_id: int, block: bytes, increment: int, piece: bytes) -> None:
        self.on_headers(stream_id, block, False)
        if increment:
            self.on_window_update(stream_id, increment)
        self.on_data(stream_id, piece, len(piece), 0, True)

    def on_answer(self, stream_id: int, block: bytes, piece: bytes, trailers: bytes) -> None:
        self.on_headers(stream_id, block, False)
        self.on_data(stream_id, piece, len(piece), 0, False)
        self.on_headers(stream_id, trailers, True)

    def on_unknown(self) -> None:
        self.heard.append("unknown")

    def on_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self.heard.append(("control", kind, flags, stream_id, payload))


def call(number: int, block: bytes = b"\x82" * 8, message: bytes = b"m" * 20) -> bytes:
    """As gRPC's own clients send it."""
    stream_id = 2 * number + 1
    return (
        frames.frame(HEADERS, END_HEADERS, stream_id, block)
        + frames.frame(WINDOW_UPDATE, 0, stream_id, WORD.pack(5))
        + frames.frame(DATA, END_STREAM, stream_id, message)
        + frames.frame(WINDOW_UPDATE, 0, 0, WORD.pack(100 + number))
    )


def heard(pieces: list[bytes]) -> list[Any]:
    """What a reader tells that is fed so, and how it ends."""
    sink = Recorder()
    its = reader.FrameReader(Http2Limits())
    try:
        for piece in pieces:
            while piece:
                piece = piece[its.feed(piece, sink) :]
    except ConnectionFault as fault:
        sink.heard.append(("fault", fault.code))
    return sink.heard


def test_calls_alike_are_cut_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third one on."""
    take = reader.CallLayout.take
    found: list[bool] = []

    def spy(layout: reader.CallLayout, data: bytes | memoryview, at: int, sink: reader.FrameSink) -> int:
        end = take(layout, data, at, sink)
        found.append(end > 0)
        return end

    monkeypatch.setattr(reader.CallLayout, "take", spy)
    calls = [call(number, message=bytes([number]) * 20) for number in range(6)]
    assert heard([BEGINNING, b"".join(calls)]) == heard([BEGINNING, *[bytes([each]) for each in b"".join(calls)]])
    assert found.count(True) == 4


@pytest.mark.parametrize("at", range(len(call(3))))
@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_a_bit_that_differs_makes_no_difference(at: int, bit: int) -> None:
    """In the fourth of calls that are alike otherwise, wherever it is."""
    calls = [bytearray(call(number)) for number in range(5)]
    calls[3][at] ^= bit
    stream = b"".join(calls)
    assert heard([BEGINNING, stream]) == heard([BEGINNING, *[bytes([each]) for each in stream]])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=3, max_size=8),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=3),
    st.lists(st.integers(0, 2_000), max_size=4),
)
def test_layouts_make_no_difference(
    sizes: list[tuple[int, int]], damage: list[tuple[int, int]], cuts: list[int]
) -> None:
    """Whatever comes among calls that are alike, damaged ones too, and however it arrives."""
    stream = bytearray().join(
        [call(number, b"\x82" * (8 + block), b"m" * (20 + message)) for number, (block, message) in enumerate(sizes)]
    )
    for at, value in damage:
        stream[at % len(stream)] = value
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [bytes(stream[a:b]) for a, b in itertools.pairwise(edges)]
    bytewise = heard([BEGINNING, *[bytes([each]) for each in stream]])
    assert heard([BEGINNING, *pieces]) == bytewise


def test_a_layout_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls are as long as it says, and are not what it says."""
    made: list[reader.CallLayout] = []
    make = reader.CallLayout.of
    monkeypatch.setattr(reader.CallLayout, "of", lambda *sizes: made.append(make(*sizes)) or made[-1])
    begun = [frames.frame(HEADERS, END_HEADERS, 2 * number + 1, b"\x82" * 8) for number in range(50)]
    heard([BEGINNING, *[each + frames.frame(DATA, 0, 2 * number + 1, b"m") for number, each in enumerate(begun)]])
    assert len(made) == 1
