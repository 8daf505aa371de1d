"""Whole calls and whole answers, which peers that repeat themselves send in frames of the same lengths; and who takes
frames."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol

from . import frames
from .frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    HEADERS,
    MAX_WINDOW_BYTES,
    WINDOW_UPDATE,
    WORD,
)

ID_MASK = 0x7FFF_FFFF
WINDOW_UPDATE_BYTES = FRAME_HEADER_BYTES + WORD.size
_WINDOW_UPDATE_TYPE = bytes([WINDOW_UPDATE])


class FrameSink(Protocol):
    """Who takes the frames. A `ConnectionFault` that it raises ends the reading."""

    def on_data(self, stream_id: int, piece: bytes | memoryview, charge: int, left: int, end_stream: bool) -> None:
        """Data of a DATA frame, perhaps not the last.

        Args:
            stream_id: of the frame.
            piece: the data, to be copied if it is to stay. Empty only if the frame has no data at all.
            charge: what it costs of the windows: its length, and for a frame's first piece that of its padding.
            left: bytes of data that the frame still has to come.
            end_stream: the stream's data ends with this piece.
        """

    def on_headers(self, stream_id: int, block: bytes, end_stream: bool) -> None: ...

    def on_window_update(self, stream_id: int, increment: int) -> None: ...

    def on_call(self, stream_id: int, block: bytes, increment: int, piece: bytes) -> None:
        """A call that came whole: as if by `on_headers`; `on_window_update`, unless that is by 0; and `on_data`, which
        ends the stream."""

    def on_answer(self, stream_id: int, block: bytes, piece: bytes, trailers: bytes) -> None:
        """An answer that came whole: as if by `on_headers`; `on_data`; and `on_headers`, which ends the stream."""

    def on_unknown(self) -> None:
        """A frame of unknown type has begun; its payload is skipped."""

    def on_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Any other frame, of a known type, with a payload of legal size."""


@dataclass(slots=True, eq=False)
class CallLayout:
    """The frames of a call of one small message, as clients repeat them: HEADERS, from gRPC's own clients the stream's
    WINDOW_UPDATE, and DATA that ends the stream.

    Attributes:
        sizes: what it was made of.
        begins: how the first frame does: ``length << 8 | type``.
        frames: takes them apart.
        heads: of the frames, in order: length, type and flags. Of a WINDOW_UPDATE that does not come, nothing.
    """

    sizes: tuple[int, int, int]
    begins: int
    frames: struct.Struct
    heads: tuple[bytes, bytes, bytes]

    @classmethod
    def of(cls, headers_bytes: int, data_bytes: int, widens: int) -> CallLayout:
        """A layout with so many bytes; `widens` says that there is a WINDOW_UPDATE."""
        heads = (
            frames.frame_head(headers_bytes, HEADERS, END_HEADERS),
            frames.frame_head(WORD.size, WINDOW_UPDATE, 0) if widens else b"",
            frames.frame_head(data_bytes, DATA, END_STREAM),
        )
        its_frames = struct.Struct(f">5sI{headers_bytes}s{'5sII' if widens else ''}5sI{data_bytes}s")
        return cls((headers_bytes, data_bytes, widens), headers_bytes << 8 | HEADERS, its_frames, heads)

    @staticmethod
    def sizes_at(data: bytes | memoryview, headers_bytes: int, at: int) -> tuple[int, int, int] | None:
        """Of a call whose data or WINDOW_UPDATE begins at `at`; None if that has not come."""
        widens = data[at + 3 : at + 4] == _WINDOW_UPDATE_TYPE
        if widens:
            at += WINDOW_UPDATE_BYTES
        if at + FRAME_HEADER_BYTES > len(data):
            return None
        return headers_bytes, FRAME_HEADER.unpack_from(data, at)[0] >> 8, widens

    def take(self, data: bytes | memoryview, at: int, sink: FrameSink) -> int:
        """Tell the sink of the call that begins here. Returns where it ends; 0 if something else begins, or not all of
        it has come."""
        end = at + self.frames.size
        if end > len(data):
            return 0
        if self.heads[1]:
            head, stream_id, block, head2, id2, word, head3, id3, piece = self.frames.unpack_from(data, at)
            increment = word & MAX_WINDOW_BYTES
            if id2 != stream_id or not increment:
                return 0
        else:
            head, stream_id, block, head3, id3, piece = self.frames.unpack_from(data, at)
            head2, increment = b"", 0
        if (head, head2, head3) != self.heads or not 0 < stream_id == id3 <= ID_MASK:
            return 0
        sink.on_call(stream_id, block, increment, piece)
        return end


@dataclass(slots=True, eq=False)
class AnswerLayout:
    """The frames of an answer of one small message, as servers repeat them: HEADERS, DATA, and HEADERS that end the
    stream. Attributes as for `CallLayout`."""

    sizes: tuple[int, int, int]
    begins: int
    frames: struct.Struct
    heads: tuple[bytes, bytes, bytes]

    @classmethod
    def of(cls, headers_bytes: int, data_bytes: int, trailers_bytes: int) -> AnswerLayout:
        heads = (
            frames.frame_head(headers_bytes, HEADERS, END_HEADERS),
            frames.frame_head(data_bytes, DATA, 0),
            frames.frame_head(trailers_bytes, HEADERS, END_HEADERS | END_STREAM),
        )
        its_frames = struct.Struct(f">5sI{headers_bytes}s5sI{data_bytes}s5sI{trailers_bytes}s")
        return cls((headers_bytes, data_bytes, trailers_bytes), headers_bytes << 8 | HEADERS, its_frames, heads)

    @staticmethod
    def sizes_at(data: bytes | memoryview, headers_bytes: int, at: int) -> tuple[int, int, int] | None:
        """Of an answer whose data begins at `at`; None if not so much has come, or it is something else."""
        if at + FRAME_HEADER_BYTES > len(data):
            return None
        head, _, _ = FRAME_HEADER.unpack_from(data, at)
        size = head >> 8
        at += FRAME_HEADER_BYTES + size
        if head & 0xFF != DATA or at + FRAME_HEADER_BYTES > len(data):
            return None
        return headers_bytes, size, FRAME_HEADER.unpack_from(data, at)[0] >> 8

    def take(self, data: bytes | memoryview, at: int, sink: FrameSink) -> int:
        """As `CallLayout.take`."""
        end = at + self.frames.size
        if end > len(data):
            return 0
        head, stream_id, block, head2, id2, piece, head3, id3, trailers = self.frames.unpack_from(data, at)
        if (head, head2, head3) != self.heads or not 0 < stream_id == id2 == id3 <= ID_MASK:
            return 0
        sink.on_answer(stream_id, block, piece, trailers)
        return end
