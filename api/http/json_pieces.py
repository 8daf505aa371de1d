"""Reading a large JSON text in pieces: each large array of tensor data by itself, and the rest as a small text.

    {"inputs":[{"name":"A","shape":[1000000],"datatype":"FP32","data":[1,2,3, ... ]}]}

Rules:
 1. Large arrays (`json_scan.Run`) are taken out of the text; a string stands for each. What is left is read by orjson.
 2. In the document there is a `LargeArray` in place of each, which is read when its datatype is known: a piece between
    two cuts at a time, with the brackets put around it that are open there. No Python object is made of more than one
    piece at a time.
 3. What orjson does not read (`OddTextError`) is read once more, each piece by the strict reader: so all numbers of a
    document are rounded in the same way. What that cannot read either is no JSON, or has large arrays where no tensors
    are; then the strict reader takes the whole text, and knows the error.
 4. What is wrong is noticed late, when a piece is read. So an error in what the document says counts only if
    `LargeDocument.check` has found all of its text to be JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from ...engine.errors import TriremeError
from .json_scan import PIECE_BYTES, Run, Scan
from .json_strict import parse_strictly

_MARK = b"\x7f"
"""The first character of the strings that stand for arrays. A text that has it anywhere is not plain."""

_MARKS = (_MARK, b"\\u007f", b"\\u007F")
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
    """The text cannot be read in this way."""


class LargeArray:
    """An array of a document, still text.

    Args:
        text: of the whole document.
        run: which part of it the array is.
        strict: the strict reader is to read it.

    Attributes:
        values: as many as it has values, about.
    """

    __slots__ = ("_checked", "_run", "_strict", "_text", "values")

    def __init__(self, text: memoryview, run: Run, *, strict: bool) -> None:
        self._text = text
        self._strict = strict
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
            OddTextError: a piece cannot be read.
        """
        run = self._run
        start, depth = run.start, 0
        for stop, open_after in [*run.cuts, (run.stop, 0)]:
            first, last = start == run.start, stop == run.stop
            if stop - start > _LONG_BYTES:
                yield self._long_string(start, stop)
            else:
                piece = _with_brackets(bytes(self._text[start:stop]), depth, open_after, first=first, last=last)
                yield _read(piece, strict=self._strict)
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
            parts.append(_characters(piece, strict=self._strict))
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
        """Read the arrays that have not been read.

        Raises:
            OddTextError: one is no JSON, or not plain.
        """
        for array in self._arrays:
            array.check()


Places = Callable[[Any], Iterable[tuple[dict[str, Any], str]]]
"""Says in which members of a document large arrays may be."""


def cut(text: memoryview, found: Scan, places: Places, *, strict: bool = False) -> LargeDocument:
    """Read all but the large arrays.

    Args:
        found: what `json_scan.scan` has found in the text.
        strict: the strict reader is to read it.

    Raises:
        OddTextError: it cannot be read, or has large arrays in other places.
    """
    parts: list[bytes] = []
    start = 0
    for number, run in enumerate(found.runs):
        parts += (bytes(text[start : run.start]), b'"%b%d"' % (_MARK, number))
        start = run.stop
    parts.append(bytes(text[start:]))
    if found.values > _MOST_MEMBERS_AT_ONCE or any(map(_has_mark, parts[::2])):
        raise OddTextError
    value = _read(b"".join(parts), strict=strict)
    if not strict and count_members(value) != found.members:  # of duplicates, orjson keeps the wrong one
        raise OddTextError
    for run in found.runs:
        if not run.cuts and bytes(text[run.start + 1 : run.start + 1_024]).lstrip(_BLANKS)[:1] in b"]":
            raise OddTextError  # an array of nothing but blanks, perhaps
    arrays = [LargeArray(text, run, strict=strict) for run in found.runs]
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


def _read(text: bytes, *, strict: bool) -> Any:
    try:
        return parse_strictly(text) if strict else orjson.loads(text)
    except (orjson.JSONDecodeError, TriremeError):
        raise OddTextError from None


def _has_mark(text: bytes) -> bool:
    for at in range(0, len(text), PIECE_BYTES):
        piece = text[at : at + PIECE_BYTES + len(_MARKS[-1]) - 1]
        if any(mark in piece for mark in _MARKS):
            return True
    return False


def _with_brackets(text: bytes, depth: int, open_after: int, *, first: bool, last: bool) -> bytes:
    stripped = text.strip(_BLANKS)
    # A comma without an element must not pass for an empty array.
    if (not first and (not stripped or stripped[0] in b"],")) or (not last and (not stripped or stripped[-1] in b"[,")):
        raise OddTextError
    return b"%b%b%b" % (b"[" * depth, text, b"]" * open_after)


def _whole_characters(piece: bytes, *, last: bool) -> int:
    """How many bytes of a string's text can be read without those that follow."""
    found = _WHOLE_CHARACTERS.match(piece)
    end = found.end() if found else 0
    if last:
        if end != len(piece):
            raise OddTextError
        return end
    if end == len(piece) and piece[-1] >= 0x80:  # its rest may follow
        lead = next((back for back in range(1, min(4, end) + 1) if piece[end - back] >= 0xC0), 0)
        end -= lead
    return end


def _characters(piece: bytes, *, strict: bool) -> bytes:
    """What a part of a string stands for, in UTF-8."""
    if b"\\" not in piece:
        if _CONTROL.search(piece):
            raise OddTextError
        if not strict:
            try:
                str(piece, "utf-8")
            except UnicodeDecodeError:
                raise OddTextError from None
        return piece
    return _read(b'"%b"' % piece, strict=strict).encode("utf-8", "surrogateescape")
