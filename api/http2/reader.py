"""Cuts the incoming bytes into frames and checks their outer form (RFC 9113 §3.4, §4, §6).

Rule 1: However the bytes arrive, the same frames come out; only DATA may come in other pieces.
Rule 2: A DATA frame is passed on as it arrives, never assembled. Every other frame is held until it is complete; none
        that could be held is larger than a header block may be. So what is held is bounded, and copied once.
Rule 3: Sizes, stream ids and the order of header blocks are checked as soon as a frame's header is there, before any
        of its payload is held.
Rule 4: Every offence here is the connection's fault.
Rule 5: No more than so many frames are taken at once: however small they are, others get their turn.
Rule 6: A call whose frames are as long as those of the one before, and of the same kinds, is cut up in one step
        (`CallLayout`) and told in one: clients that repeat themselves send nothing else.

What is expected next:

    PREFACE ──▶ HEADER ──▶ PAYLOAD ──▶ HEADER       SETTINGS must come first
                  ├──▶ PADDING ──▶ DATA ──▶ SKIP ──▶ HEADER       a padded DATA frame
                  ├──▶ DATA ──▶ HEADER
                  └──▶ SKIP ──▶ HEADER              a frame of unknown type
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from . import frames
from .frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    HEADERS,
    MAX_WINDOW_BYTES,
    PADDED,
    PREFACE,
    WINDOW_UPDATE,
    WORD,
    ConnectionFault,
    ErrorCode,
)
from .limits import Http2Limits

_ID_MASK = 0x7FFF_FFFF
_MAX_GOAWAY_BYTES = 16_384
_SMALL_READ_BYTES = 2048
_WHOLE_HEADERS = END_HEADERS | END_STREAM
_WINDOW_UPDATE_HEAD = 4 << 8 | WINDOW_UPDATE
_WINDOW_UPDATE_BYTES = FRAME_HEADER_BYTES + WORD.size
_WINDOW_UPDATE_TYPE = bytes([WINDOW_UPDATE])
_MOST_CALL_BYTES = 4096
"""Of the data of a call that is told as a whole."""
_HEADERS_WEIGHT = 16
"""A request is so many times the work of another frame."""
_STEP_WEIGHT = 8
"""The same for each step of a frame that does not go the short way: it takes two, and may be HEADERS."""

SHAPES: Mapping[int, tuple[str, int, int, bool | None]] = {
    frames.DATA: ("DATA", 0, 1 << 24, True),
    frames.HEADERS: ("HEADERS", 0, 1 << 24, True),
    frames.PRIORITY: ("PRIORITY", 5, 5, True),
    frames.RST_STREAM: ("RST_STREAM", 4, 4, True),
    frames.SETTINGS: ("SETTINGS", 0, 1 << 24, False),
    frames.PING: ("PING", 8, 8, False),
    frames.GOAWAY: ("GOAWAY", 8, 1 << 24, False),
    frames.WINDOW_UPDATE: ("WINDOW_UPDATE", 4, 4, None),
    frames.CONTINUATION: ("CONTINUATION", 0, 1 << 24, True),
}
"""By frame type: its name, the smallest and largest payload, and whether it is about a stream (None: it may be)."""


class Expect(Enum):
    """What the next byte belongs to."""

    PREFACE = auto()
    HEADER = auto()
    PAYLOAD = auto()
    PADDING = auto()
    DATA = auto()
    SKIP = auto()


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

    sizes: tuple[int, int, bool]
    begins: int
    frames: struct.Struct
    heads: tuple[bytes, bytes, bytes]

    @classmethod
    def of(cls, headers_bytes: int, data_bytes: int, widens: bool) -> CallLayout:
        """A layout with so many bytes; `widens` says that there is a WINDOW_UPDATE."""
        heads = (
            frames.frame_head(headers_bytes, HEADERS, END_HEADERS),
            frames.frame_head(WORD.size, WINDOW_UPDATE, 0) if widens else b"",
            frames.frame_head(data_bytes, DATA, END_STREAM),
        )
        its_frames = struct.Struct(f">5sI{headers_bytes}s{'5sII' if widens else ''}5sI{data_bytes}s")
        return cls((headers_bytes, data_bytes, widens), headers_bytes << 8 | HEADERS, its_frames, heads)

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
        if (head, head2, head3) != self.heads or not 0 < stream_id == id3 <= _ID_MASK:
            return 0
        sink.on_call(stream_id, block, increment, piece)
        return end


class FrameReader:
    """A push parser.

    Attributes:
        held_bytes: received and neither passed on nor dropped.
    """

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._max_frame = min(limits.max_frame_bytes, limits.header_block_bytes)  # of HEADERS on the short way
        self._frames_at_once = limits.frames_at_once
        self._expect = Expect.PREFACE
        self._held = bytearray()  # the beginning of the preface, of a frame header, or of a payload
        self._settled = False  # the client's first SETTINGS have come
        self._plain = False  # between frames, and any frame may come next
        self._kind = self._flags = self._stream_id = 0  # of the frame that is being read
        self._left = 0  # bytes of its payload that are still to come; of DATA, without padding
        self._padding = 0  # of a DATA frame
        self._extra = 0  # what its first piece costs besides its length
        self._block: list[bytes] = []  # fragments of a header block that goes on in CONTINUATION
        self._block_bytes = self._block_frames = self._block_stream = 0
        self._block_ends_stream = False
        self._sizes = 0, 0, False  # of the call before, as `CallLayout.of` takes them
        self._layout: CallLayout | None = None
        self.held_bytes = 0

    def feed(self, data: bytes | memoryview, sink: FrameSink) -> int:
        """Takes in the next bytes, which are not referred to afterwards.

        Returns:
            How many of them: all, unless `Http2Limits.frames_at_once` frames were in them. The rest is to be fed later.

        Raises:
            ConnectionFault: by a frame's form, or from `sink`.
        """
        size = len(data)
        last, last_word = size - FRAME_HEADER_BYTES, size - _WINDOW_UPDATE_BYTES
        at = 0
        frames_left = self._frames_at_once
        unpack, unpack_word, max_frame = FRAME_HEADER.unpack_from, WORD.unpack_from, self._max_frame
        layout = self._layout
        begins = 0 if layout is None else layout.begins
        if size <= _SMALL_READ_BYTES:
            data = bytes(data)  # pieces of bytes are cheaper to cut than pieces of a view
        while at < size and frames_left > 0:
            plain = self._plain
            # The short way: whole frames, as nearly all are in calls of ordinary size.
            while plain and at <= last and frames_left > 0:
                head, flags, stream_id = unpack(data, at)
                if layout is not None and head == begins and (end := layout.take(data, at, sink)):
                    at = end
                    frames_left -= _HEADERS_WEIGHT + 2
                    continue
                if head == _WINDOW_UPDATE_HEAD and at <= last_word and stream_id <= _ID_MASK:
                    sink.on_window_update(stream_id, unpack_word(data, at + FRAME_HEADER_BYTES)[0] & MAX_WINDOW_BYTES)
                    at += _WINDOW_UPDATE_BYTES
                    frames_left -= 1
                    continue
                start = at + FRAME_HEADER_BYTES
                length = head >> 8
                end = start + length
                if end > size or not 0 < stream_id <= _ID_MASK or flags & PADDED or length > max_frame:
                    break
                kind, payload = head & 0xFF, data[start:end]
                if not isinstance(payload, bytes):
                    payload = bytes(payload)
                if kind == DATA:
                    sink.on_data(stream_id, payload, length, 0, flags & END_STREAM > 0)
                elif kind == HEADERS and flags | END_STREAM == _WHOLE_HEADERS:
                    if not flags & END_STREAM and (layout := self._look_ahead(data, length, end)):
                        begins = layout.begins
                    sink.on_headers(stream_id, payload, flags & END_STREAM > 0)
                    frames_left -= _HEADERS_WEIGHT - 1
                else:
                    break
                at = end
                frames_left -= 1
            if at == size or frames_left <= 0:
                break
            at = self._step(data, at, sink)
            self.held_bytes = len(self._held) + self._block_bytes
            frames_left -= _STEP_WEIGHT
        return at

    def _look_ahead(self, data: bytes | memoryview, headers_bytes: int, at: int) -> CallLayout | None:
        """How the next calls may look, since two in a row have been of these sizes; `at` is behind the HEADERS."""
        widens = data[at + 3 : at + 4] == _WINDOW_UPDATE_TYPE
        if widens:
            at += _WINDOW_UPDATE_BYTES
        if at + FRAME_HEADER_BYTES <= len(data):
            sizes = headers_bytes, FRAME_HEADER.unpack_from(data, at)[0] >> 8, widens
            known = self._layout is not None and self._layout.sizes == sizes
            if sizes == self._sizes and not known and sizes[0] <= self._max_frame and sizes[1] <= _MOST_CALL_BYTES:
                self._layout = CallLayout.of(*sizes)
            self._sizes = sizes
        return self._layout

    def _step(self, data: bytes | memoryview, at: int, sink: FrameSink) -> int:
        """Takes what is expected next, or the part of it that has come. Returns where it went on to."""
        expect = self._expect
        if expect is Expect.HEADER:
            at = self._hold(data, at, FRAME_HEADER_BYTES)
            if len(self._held) == FRAME_HEADER_BYTES:
                self._begin(sink)
        elif expect is Expect.PAYLOAD:
            at = self._hold(data, at, self._left)
            if len(self._held) == self._left:
                self._complete(sink)
        elif expect is Expect.DATA:
            at = self._data(data, at, sink)
        elif expect is Expect.PADDING:
            self._padding = data[at]
            at += 1
            if self._padding >= self._left:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA is all padding")
            self._extra = 1 + self._padding
            self._left -= self._extra
            self._expect = Expect.DATA
            if not self._left:
                self._data(data, at, sink)
        elif expect is Expect.SKIP:
            count = min(self._left, len(data) - at)
            at += count
            self._left -= count
            self._next_frame(not self._left)
        else:
            at = self._preface(data, at)
        return at

    def _hold(self, data: bytes | memoryview, at: int, want: int) -> int:
        end = min(len(data), at + want - len(self._held))
        self._held += data[at:end]
        self._plain = False
        return end

    def _preface(self, data: bytes | memoryview, at: int) -> int:
        at = self._hold(data, at, len(PREFACE))
        if not PREFACE.startswith(self._held):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "invalid connection preface")
        if len(self._held) == len(PREFACE):
            self._next_frame(True)
        return at

    def _next_frame(self, ready: bool) -> None:
        """If `ready`, the frame that was being read is over."""
        if ready:
            self._held.clear()
            self._expect = Expect.HEADER
            self._plain = self._settled and not self._block_stream

    # ---- a frame's header ----

    def _begin(self, sink: FrameSink) -> None:
        head, flags, stream_id = FRAME_HEADER.unpack(self._held)
        self._held.clear()
        self._kind = kind = head & 0xFF
        self._left = length = head >> 8
        self._flags = flags
        self._stream_id = stream_id & _ID_MASK
        self._check(kind, length)
        if kind == DATA:
            self._padding = self._extra = 0
            self._expect = Expect.PADDING if flags & PADDED else Expect.DATA
            if flags & PADDED and not length:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "DATA has no room for its padding")
            if not length:
                self._data(b"", 0, sink)
        elif kind not in SHAPES:
            sink.on_unknown()
            self._expect = Expect.SKIP
            self._next_frame(not length)
        else:
            self._expect = Expect.PAYLOAD
            if not length:
                self._complete(sink)

    def _check(self, kind: int, length: int) -> None:
        """Whether a frame of this type and length may come now."""
        stream_id = self._stream_id
        if length > self._limits.max_frame_bytes:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes, expected at most {self._limits.max_frame_bytes}"
            )
        if not self._settled and (kind != frames.SETTINGS or self._flags & frames.ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if (kind == CONTINUATION) != (self._block_stream != 0) or (
            kind == CONTINUATION and stream_id != self._block_stream
        ):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION out of place")
        if kind == frames.PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
        if kind not in SHAPES:
            return
        name, smallest, largest, on_stream = SHAPES[kind]
        if not smallest <= length <= largest:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"{name} of {length} bytes")
        if on_stream is not None and on_stream != (stream_id != 0):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{name} on stream {stream_id}")
        if kind in (HEADERS, CONTINUATION):
            self._check_block(length)
        elif kind == frames.SETTINGS:
            if length % 6 or (length and self._flags & frames.ACK):
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {length} bytes")
            if length > 6 * self._limits.settings_in_frame:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"{length // 6} settings in a frame")
            self._settled = True
        elif kind == frames.GOAWAY and length > _MAX_GOAWAY_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"GOAWAY of {length} bytes")

    def _check_block(self, length: int) -> None:
        if self._block_bytes + length > self._limits.header_block_bytes:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"header block exceeds {self._limits.header_block_bytes} bytes"
            )
        if self._block_frames > self._limits.continuation_frames:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"header block in more than {self._limits.continuation_frames} CONTINUATIONs",
            )

    # ---- payloads ----

    def _data(self, data: bytes | memoryview, at: int, sink: FrameSink) -> int:
        end = min(len(data), at + self._left)
        charge = end - at + self._extra
        self._extra = 0
        self._left -= end - at
        left = self._left
        if not left:
            self._expect = Expect.SKIP
            self._left = self._padding
            self._next_frame(not self._padding)
        ends = not left and self._flags & END_STREAM > 0
        sink.on_data(self._stream_id, data[at:end], charge, left, ends)
        return end

    @property
    def data_to_come(self) -> tuple[int, int]:
        """The stream of the DATA frame that is being read, and how many bytes of data it still has; 0 if it is another
        frame, or between frames."""
        return (self._stream_id, self._left) if self._expect is Expect.DATA else (0, 0)

    def feed_data(self, piece: memoryview, sink: FrameSink) -> None:
        """Takes in bytes that are all `data_to_come`. Raises as `feed`."""
        self._data(piece, 0, sink)

    def _complete(self, sink: FrameSink) -> None:
        kind, flags, stream_id = self._kind, self._flags, self._stream_id
        payload = bytes(self._held)
        if kind == HEADERS:
            self._block_ends_stream = flags & END_STREAM > 0
            self._add_block(_fragment(payload, flags), flags, sink)
        elif kind == CONTINUATION:
            self._add_block(payload, flags, sink)
        else:
            self._next_frame(True)
            if kind == WINDOW_UPDATE:
                sink.on_window_update(stream_id, WORD.unpack(payload)[0] & MAX_WINDOW_BYTES)
            else:
                sink.on_control(kind, flags, stream_id, payload)

    def _add_block(self, fragment: bytes, flags: int, sink: FrameSink) -> None:
        self._block.append(fragment)
        self._block_frames += 1
        self._block_bytes += len(fragment)
        self._block_stream = 0 if flags & END_HEADERS else self._stream_id
        self._next_frame(True)
        if flags & END_HEADERS:
            block = b"".join(self._block)
            self._block.clear()
            self._block_bytes = self._block_frames = 0
            sink.on_headers(self._stream_id, block, self._block_ends_stream)


def _fragment(payload: bytes, flags: int) -> bytes:
    """The header block fragment of a HEADERS payload: without padding, and without a priority."""
    start = 0
    end = len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS has no room for its padding")
        start = 1
        end -= payload[0]
    if flags & frames.HAS_PRIORITY:
        start += 5
    if start > end:
        code = ErrorCode.FRAME_SIZE_ERROR if start > len(payload) else ErrorCode.PROTOCOL_ERROR
        raise ConnectionFault(code, "HEADERS is all padding")
    return payload[start:end]
