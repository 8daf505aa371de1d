"""JSON read again, by the letter: what the fast reader refuses, or may have read otherwise than Triton does.

Triton parses with RapidJSON, so its reasons and byte offsets are what clients see. This module puts RapidJSON's Python
binding into Triton's dialect (docs/reference/json.md#reading): ``NaN``, ``Inf`` and ``Infinity`` are numbers, a byte
order mark is skipped, the first of duplicate members wins, and the bytes of a string need not be UTF-8.

The binding takes the text piece by piece, and lets go of the interpreter's lock in between. It makes text of strings,
not bytes. Bytes that are no UTF-8 therefore travel through it as characters of a private-use block, one a byte, and
come out as ``surrogateescape`` characters, which encode to the very bytes received. A document that has such bytes
and characters of that block is refused: one of the two would have to be lost.
"""

from __future__ import annotations

import codecs
import re
from typing import Any

import numpy as np
import rapidjson

from ....engine.errors import InternalError, InvalidArgumentError
from .steps import give_way

MAX_NESTING = 100
"""Levels of nesting that Triton reads in tensor data (docs/reference/http-inference.md#tensors-in-json)."""

NESTING_ERROR = f"JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})"

_TOO_DEEP = f"JSON nesting depth exceeds maximum allowed limit (about 1000, and {MAX_NESTING} in the data of tensors)"
"""Wherever it is: the reader uses the stack of the interpreter, which its callers have some part of already."""

_PIECE_BYTES = 16_384
_LONG_BYTES = 32_768
"""A longer text is read on a thread."""

_MANY_MEMBERS = 4_096
_NUMBERS = rapidjson.NM_NATIVE | rapidjson.NM_NAN  # rounding as Triton's; integers beyond 64 bits become doubles
_MARK = re.compile(rb"\xef?\xbb?\xbf?")  # a byte order mark, each byte optional, as RapidJSON skips it
_REASON = re.compile(r"Parse error at offset (\d+): (.*)", re.DOTALL)
_STAND_IN_ANYHOW = re.compile(rb"\xf4\x8f[\xbe\xbf][\x80-\xbf]|\\u[dD][bB][fF]{2}\\u[dD][fF][89a-fA-F]")
_OVERLAP = 12  # bytes of the longest match of that, but one


class _Decoder(rapidjson.Decoder):
    """Objects whose first of duplicate members wins."""

    def start_object(self) -> list[tuple[str, Any]]:
        return []

    def end_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs) if len(pairs) < _MANY_MEMBERS else {}  # which is one call, however many they are
        if len(value) < len(pairs):
            value = {}
            for name, member in pairs:
                value.setdefault(name, member)
        return value


class _BytesDecoder(_Decoder):
    """The same, with stand-ins for bytes turned into ``surrogateescape`` characters in names and values."""

    def string(self, text: str) -> str:
        return _restore(text)

    def end_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return super().end_object([(_restore(name), member) for name, member in pairs])


class _Text:
    """The text as a stream of UTF-8, from `start` on, behind a byte order mark; its bytes may be none."""

    def __init__(self, text: memoryview, start: int) -> None:
        self._text = text
        self._start = start
        self._at = start
        self._begin = codecs.getincrementaldecoder("utf-8")
        self._decoder = self._begin("surrogateescape")

    def read(self, _size: int) -> bytes:
        """The next piece, with stand-ins; empty at the end."""
        sent = b""
        if len(self._text) > _LONG_BYTES:
            give_way()
        while not sent and self._at < len(self._text):
            stop = self._at + _PIECE_BYTES
            piece = self._decoder.decode(self._text[self._at : stop], stop >= len(self._text))
            self._at = stop
            sent = _stand_in(piece)
        return sent

    def find_stand_in(self) -> int | None:
        """Where there is one already, spelled out or escaped."""
        for at in range(self._start, len(self._text), _PIECE_BYTES):
            found = _STAND_IN_ANYHOW.search(bytes(self._text[at : at + _PIECE_BYTES + _OVERLAP]))
            if found:
                return at + found.start()
        return None

    def place(self, sent: int) -> int:
        """Where in the text it is that the stream's byte `sent` came from."""
        decoder = self._begin("surrogateescape")
        for at in range(self._start, len(self._text), _PIECE_BYTES):
            stop = at + _PIECE_BYTES
            piece = _stand_in(decoder.decode(self._text[at:stop], stop >= len(self._text)))
            if sent <= len(piece) or stop >= len(self._text):
                held = len(decoder.getstate()[0])
                rest = piece[sent:].decode("utf-8", "ignore")
                return min(stop, len(self._text)) - held - len(_restore(rest).encode("utf-8", "surrogateescape"))
            sent -= len(piece)
        return self._start


def parse_strictly(body: bytes | memoryview) -> Any:
    """The value of a JSON document in Triton's dialect.

    Raises:
        InternalError: it is not JSON; the text names the reason and the byte offset.
        InvalidArgumentError: it is nested too deeply to be read.
    """
    view = memoryview(body)
    mark = _MARK.match(bytes(view[:3]))
    skipped = mark.end() if mark else 0
    text = _Text(view, skipped)
    decoder: type[_Decoder] = _Decoder
    if not is_utf8(view[skipped:]):
        clash = text.find_stand_in()
        if clash is not None:
            raise _syntax_error("Invalid encoding in string.", clash)
        decoder = _BytesDecoder
    try:
        # `read` is all that the binding asks of a stream.
        return decoder(number_mode=_NUMBERS)(text)  # pyright: ignore[reportArgumentType]
    except rapidjson.JSONDecodeError as error:
        match = _REASON.match(str(error))
        offset, reason = (int(match[1]), match[2]) if match else (0, str(error))
    except RecursionError:
        raise InvalidArgumentError(_TOO_DEEP) from None
    if reason == "Invalid encoding in string.":  # a control character; Triton's RapidJSON has this word for it
        reason = "Invalid escape character in string."
    raise _syntax_error(reason, text.place(offset) if decoder is _BytesDecoder else skipped + offset)


def _stand_in(piece: str) -> bytes:
    """UTF-8, with stand-ins for ``surrogateescape`` characters: of both, the last byte is the same."""
    try:
        return piece.encode()
    except UnicodeEncodeError:
        sent = piece.encode("utf-8", "surrogatepass")
        return sent.replace(b"\xed\xb2", b"\xf4\x8f\xbe").replace(b"\xed\xb3", b"\xf4\x8f\xbf")


def is_utf8(text: memoryview) -> bool:
    """Whether all bytes of a text are UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        for at in range(0, len(text), _PIECE_BYTES):
            decoder.decode(text[at : at + _PIECE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _restore(text: str) -> str:
    """The bytes that were sent, as a string: those of a stand-in without its first three, and bit 6 from the third."""
    if text.isascii():
        return text
    if len(text) > _PIECE_BYTES:
        return "".join([_restore(text[at : at + _PIECE_BYTES]) for at in range(0, len(text), _PIECE_BYTES)])
    sent = np.frombuffer(text.encode(), np.uint8)
    begins = np.flatnonzero((sent[:-3] == 0xF4) & (sent[1:-2] == 0x8F) & (sent[2:-1] >= 0xBE))
    if not len(begins):
        return text
    received = sent.copy()
    received[begins + 3] += (sent[begins + 2] - 0xBE) * 0x40
    kept = np.ones(len(sent), bool)
    for place in range(3):
        kept[begins + place] = False
    return received[kept].tobytes().decode("utf-8", "surrogateescape")


def _syntax_error(reason: str, offset: int) -> InternalError:
    return InternalError(f"failed to parse the request JSON buffer: {reason} at {offset}")
