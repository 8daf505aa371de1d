"""Cuts the incoming bytes into frames and checks their outer form (RFC 9113 §3.4, §4, §6).

Rule 1: However the bytes arrive, the same frames come out; only DATA may come in other pieces.
Rule 2: A DATA frame is passed on as it arrives, never assembled. Every other frame is held until it is complete; none
        that could be held is larger than a header block may be. So what is held is bounded, and copied once.
Rule 3: Sizes, stream ids and the order of header blocks are checked as soon as a frame's header is there, before any
        of its payload is held.
Rule 4: Every offence here is the connection's fault.
Rule 5: No more than so many frames are taken at once: however small they are, others get their turn.
Rule 6: A call whose frames are as long as those of the one before, and of the same kinds, is cut up in one step
        (`CallLayout`) and told in one: clients that repeat themselves send nothing else. So is an answer
        (`AnswerLayout`).

What is expected next, from a client; a server has no preface:

    PREFACE ──▶ HEADER ──▶ PAYLOAD ──▶ HEADER       SETTINGS must come first
                  ├──▶ PADDING ──▶ DATA ──▶ SKIP ──▶ HEADER       a padded DATA frame
                  ├──▶ DATA ──▶ HEADER
                  └──▶ SKIP ──▶ HEADER              a frame of unknown type
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

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
from .layouts import ID_MASK, WINDOW_UPDATE_BYTES, AnswerLayout, CallLayout, FrameSink
from .limits import Http2Limits

_MAX_GOAWAY_BYTES = 16_384
_SMALL_READ_BYTES = 2048
_WHOLE_HEADERS = END_HEADERS | END_STREAM
_WINDOW_UPDATE_HEAD = 4 << 8 | WINDOW_UPDATE
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


class FrameReader:
    """A push parser.

    Args:
        from_server: what comes is a server's.

    Attributes:
        held_bytes: received and neither passed on nor dropped.
    """

    def __init__(self, limits: Http2Limits, *, from_server: bool = False) -> None:
        self._limits = limits
        self._max_frame = min(limits.max_frame_bytes, limits.header_block_bytes)  # of HEADERS on the short way
        self._frames_at_once = limits.frames_at_once
        self._expect = Expect.HEADER if from_server else Expect.PREFACE
        self._layouts: type[CallLayout] | type[AnswerLayout] = AnswerLayout if from_server else CallLayout
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
        self._sizes: tuple[int, int, int] = 0, 0, 0  # of the call or answer before, as `of` of its layout takes them
        self._layout: CallLayout | AnswerLayout | None = None
        self.held_bytes = 0

    def feed(self, data: bytes | memoryview, sink: FrameSink) -> int:
        """Takes in the next bytes, which are not referred to afterwards.

        Returns:
            How many of them: all, unless `Http2Limits.frames_at_once` frames were in them. The rest is to be fed later.

        Raises:
            ConnectionFault: by a frame's form, or from `sink`.
        """
        size = len(data)
        last, last_word = size - FRAME_HEADER_BYTES, size - WINDOW_UPDATE_BYTES
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
                if head == _WINDOW_UPDATE_HEAD and at <= last_word and stream_id <= ID_MASK:
                    sink.on_window_update(stream_id, unpack_word(data, at + FRAME_HEADER_BYTES)[0] & MAX_WINDOW_BYTES)
                    at += WINDOW_UPDATE_BYTES
                    frames_left -= 1
                    continue
                start = at + FRAME_HEADER_BYTES
                length = head >> 8
                end = start + length
                if end > size or not 0 < stream_id <= ID_MASK or flags & PADDED or length > max_frame:
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

    def _look_ahead(self, data: bytes | memoryview, headers_bytes: int, at: int) -> CallLayout | AnswerLayout | None:
        """How the next ones may look, since two in a row have been of these sizes; `at` is behind the HEADERS."""
        sizes = self._layouts.sizes_at(data, headers_bytes, at)
        if sizes is None:
            return self._layout
        if sizes != self._sizes:
            self._sizes = sizes
        elif (
            (self._layout is None or self._layout.sizes != sizes)
            and max(sizes[0], sizes[2]) <= self._max_frame
            and sizes[1] <= _MOST_CALL_BYTES
        ):
            self._layout = self._layouts.of(*sizes)
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
        self._stream_id = stream_id & ID_MASK
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
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "nothing may be pushed")
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
