"""JSON read again, by the letter: what the fast reader refuses, or may have read otherwise than Triton does.

Triton parses with RapidJSON, so its reasons and byte offsets are what clients see. This module puts RapidJSON's Python
binding into Triton's dialect (http.md §2): ``NaN``, ``Inf`` and ``Infinity`` are numbers, a byte order mark is skipped,
the first of duplicate members wins, and the bytes of a string need not be UTF-8.

The binding reads text, not bytes. Bytes that are no UTF-8 therefore travel through it as characters of a private-use
block, one a byte, and come out as ``surrogateescape`` characters, which encode to the very bytes received. A document
that has such bytes and characters of that block is refused: one of the two would have to be lost.
"""

from __future__ import annotations

import re
from typing import Any

import rapidjson

from ...engine.errors import InternalError, InvalidArgumentError

MAX_NESTING = 100
"""Levels of nesting that Triton reads in tensor data (http.md §4.4)."""

NESTING_ERROR = f"JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})"

_NUMBERS = rapidjson.NM_NATIVE | rapidjson.NM_NAN  # rounding as Triton's; integers beyond 64 bits become doubles
_MARK = re.compile(rb"\xef?\xbb?\xbf?")  # a byte order mark, each byte optional, as RapidJSON skips it
_REASON = re.compile(r"Parse error at offset (\d+): (.*)", re.DOTALL)
_ESCAPED = re.compile("[\udc80-\udcff]")
_STAND_IN = re.compile("[\U0010ff80-\U0010ffff]")
_STAND_IN_ANYHOW = re.compile("[\U0010ff80-\U0010ffff]|\\\\u[dD][bB][fF]{2}\\\\u[dD][fF][89a-fA-F]")
_SHIFT = 0x10FF80 - 0xDC80


class _Decoder(rapidjson.Decoder):
    """Objects whose first of duplicate members wins."""

    def start_object(self) -> list[tuple[str, Any]]:
        return []

    def end_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
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


def parse_strictly(body: bytes) -> Any:
    """The value of a JSON document in Triton's dialect.

    Raises:
        InternalError: it is not JSON; the text names the reason and the byte offset.
        InvalidArgumentError: it is nested too deeply to be read.
    """
    mark = _MARK.match(body)
    skipped = mark.end() if mark else 0
    text = body[skipped:].decode("utf-8", "surrogateescape")
    decoder: type[_Decoder] = _Decoder
    if _ESCAPED.search(text):
        if clash := _STAND_IN_ANYHOW.search(text):
            offset = skipped + len(text[: clash.start()].encode("utf-8", "surrogateescape"))
            raise _syntax_error("Invalid encoding in string.", offset)
        text = _ESCAPED.sub(lambda match: chr(ord(match[0]) + _SHIFT), text)
        decoder = _BytesDecoder
    try:
        return decoder(number_mode=_NUMBERS)(text)
    except rapidjson.JSONDecodeError as error:
        match = _REASON.match(str(error))
        offset, reason = (int(match[1]), match[2]) if match else (0, str(error))
    except RecursionError:
        raise InvalidArgumentError(NESTING_ERROR) from None
    if reason == "Invalid encoding in string.":  # a control character; Triton's RapidJSON has this word for it
        reason = "Invalid escape character in string."
    if decoder is _BytesDecoder:
        before = text.encode()[:offset].decode("utf-8", "ignore")
        offset = len(_restore(before).encode("utf-8", "surrogateescape"))
    raise _syntax_error(reason, skipped + offset)


def _restore(text: str) -> str:
    if text.isascii():
        return text
    return _STAND_IN.sub(lambda match: chr(ord(match[0]) - _SHIFT), text)


def _syntax_error(reason: str, offset: int) -> InternalError:
    return InternalError(f"failed to parse the request JSON buffer: {reason} at {offset}")
