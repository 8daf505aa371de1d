"""Reading a large JSON text in pieces: each large array of tensor data by itself, and the rest as a small text.

    {"inputs":[{"name":"A","shape":[1000000],"datatype":"FP32","data":[1,2,3, ... ]}]}

Rules:
 1. Large arrays (`json_scan.Run`) are taken out of the text; a string stands for each. What is left is read by orjson.
 2. In the document there is a `LargeArray` in place of each, which is read when its datatype is known: a piece between
    two cuts at a time, with the brackets put around it that are open there. No Python object is made of more than one
    piece at a time.
 3. Whatever is not plain is left to the strict reader, which takes the whole text: `OddTextError`. So is every text
    that is no JSON, since there only the strict reader knows the error. It is noticed late, when a piece is read; so
    an error in what the document says counts only if `LargeDocument.check` has found all of its text to be JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from .json_scan import PIECE_BYTES, Run, Scan

_MARK = b"\x7f"
"""The first character of the strings that stand for arrays. A text that has it anywhere is not plain."""

_MARK_ANYHOW = re.compile(rb"\x7f|\\u007[fF]")
_BLANKS = b" \t\r\n"
_LONG_STRING = re.compile(rb'[\[ \t\r\n]*"')
_AFTER_LONG_STRING = re.compile(rb'"[\] \t\r\n]*\Z')
_WHOLE_CHARACTERS = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*+", re.DOTALL
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_MOST_MEMBERS_AT_ONCE = 131_072
_EDGE_BYTES = 1_024
_LONG_BYTES = 16 * PIECE_BYTES


class OddTextError(Exception):
    """The text is not plain: it is for the strict reader."""


class LargeArray:
    """An array of a document, still text.

    Args:
        text: of the whole document.
        run: which part of it the array is.

    Attributes:
        values: as many as it has values, about.
    """

    __slots__ = ("_checked", "_run", "_text", "values")

    def __init__(self, text: memoryview, run: Run) -> None:
        self._text = text
        self._run = run
        self._checked = False
        self.values = run.values

    def __len__(self) -> int:
        """The number of its outermost elements."""
        return self._run.outermost + 1

    def pieces(self) -> Iterator[list[Any] | bytes]:
        """The array in pieces, each nested as it is in the array; or, for a string of more than a megabyte that is an
        element, its bytes.

        Raises:
            OddTextError: a piece is no JSON, or not plain.
        """
        run = self._run
        start, depth = run.start, 0
        for stop, open_after in [*run.cuts, (run.stop, 0)]:
            first, last = start == run.start, stop == run.stop
            if stop - start > _LONG_BYTES:
                yield self._long_string(start, stop)
            else:
                yield _read_piece(bytes(self._text[start:stop]), depth, open_after, first=first, last=last)
            start, depth = stop + 1, open_after
        self._checked = True

    def check(self) -> None:
        """Read what has not been read.

        Raises:
            OddTextError: it is no JSON, or not plain.
        """
        if not self._checked:
            for _ in self.pieces():
                pass

    def _long_string(self, start: int, stop: int) -> bytes:
        """The bytes of a string that is all of a piece, but for brackets."""
        head = _LONG_STRING.match(bytes(self._text[start : start + _EDGE_BYTES]))
        if head is None:
            raise OddTextError
        at = start + head.end()
        edge = max(at, stop - _EDGE_BYTES)
        tail = _AFTER_LONG_STRING.search(bytes(self._text[edge:stop]))
        if tail is None:
            raise OddTextError
        parts: list[bytes] = []
        end = edge + tail.start()
        while at < end:
            piece = bytes(self._text[at : min(at + PIECE_BYTES, end)])
            piece = piece[: _whole_characters(piece, last=at + len(piece) == end)]
            if not piece:
                raise OddTextError
            at += len(piece)
            parts.append(_characters(piece))
        return b"".join(parts)

    def __repr__(self) -> str:
        return f"<LargeArray of about {self.values} values>"


class LargeDocument:
    """A document with large arrays.

    Attributes:
        value: what it says; the arrays are `LargeArray`.
    """

    __slots__ = ("_arrays", "value")

    def __init__(self, value: Any, arrays: list[LargeArray]) -> None:
        self.value = value
        self._arrays = arrays

    def check(self) -> None:
        """Read the arrays that nobody has read.

        Raises:
            OddTextError: one is no JSON, or not plain.
        """
        for array in self._arrays:
            array.check()


Places = Callable[[Any], Iterable[tuple[dict[str, Any], str]]]
"""Says in which members of a document large arrays may be."""


def cut(text: memoryview, found: Scan, places: Places) -> LargeDocument:
    """Read all but the large arrays.

    Args:
        found: what `json_scan.scan` has found in the text.

    Raises:
        OddTextError: it is no JSON, or not plain, or has large arrays in other places.
    """
    parts: list[bytes] = []
    start = 0
    for number, run in enumerate(found.runs):
        parts += (bytes(text[start : run.start]), b'"%b%d"' % (_MARK, number))
        start = run.stop
    parts.append(bytes(text[start:]))
    if found.values > _MOST_MEMBERS_AT_ONCE or any(map(_MARK_ANYHOW.search, parts[::2])):
        raise OddTextError
    try:
        value = orjson.loads(b"".join(parts))
    except orjson.JSONDecodeError:
        raise OddTextError from None
    if count_members(value) != found.members:
        raise OddTextError
    for run in found.runs:
        if not run.cuts and bytes(text[run.start + 1 : run.start + 1_024]).lstrip(_BLANKS)[:1] in b"]":
            raise OddTextError  # an array of nothing but blanks, perhaps
    arrays = [LargeArray(text, run) for run in found.runs]
    placed = 0
    for holder, name in places(value):
        said = holder[name]
        if type(said) is str and said.startswith(_MARK.decode()):
            holder[name] = arrays[int(said[1:])]
            placed += 1
    if placed != len(arrays):
        raise OddTextError
    return LargeDocument(value, arrays)


def count_members(value: Any) -> int:
    """Members of all objects in `value`, save those in arrays that do not start with an object (so: or fewer)."""
    count = 0
    pending = [value]
    for item in pending:
        kind = type(item)
        if kind is dict:
            count += len(item)
            pending += item.values()
        elif kind is list and item and type(item[0]) is dict:
            pending += item
    return count


def _read_piece(text: bytes, depth: int, open_after: int, *, first: bool, last: bool) -> list[Any]:
    stripped = text.strip(_BLANKS)
    # orjson must not take for an empty array what is a comma without an element.
    if (not first and (not stripped or stripped[0] in b"],")) or (not last and (not stripped or stripped[-1] in b"[,")):
        raise OddTextError
    try:
        return orjson.loads(b"%b%b%b" % (b"[" * depth, text, b"]" * open_after))
    except orjson.JSONDecodeError:
        raise OddTextError from None


def _whole_characters(piece: bytes, *, last: bool) -> int:
    """How many bytes of a string's text can be read without those that follow."""
    found = _WHOLE_CHARACTERS.match(piece)
    end = found.end() if found else 0
    if last:
        if end != len(piece):
            raise OddTextError
        return end
    if end == len(piece) and piece[-1] >= 0x80:  # its rest may follow
        while end and piece[end - 1] & 0xC0 == 0x80:
            end -= 1
        end -= 1
    return max(end, 0)


def _characters(piece: bytes) -> bytes:
    """What a part of a string stands for, in UTF-8."""
    if b"\\" not in piece:
        if _CONTROL.search(piece):
            raise OddTextError
        try:
            str(piece, "utf-8")
        except UnicodeDecodeError:
            raise OddTextError from None
        return piece
    try:
        return orjson.loads(b'"%b"' % piece).encode()
    except orjson.JSONDecodeError:
        raise OddTextError from None
