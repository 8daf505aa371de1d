"""Reading a large JSON text in pieces: each large array of tensor data by itself, and the rest as a small text.

    {"inputs":[{"name":"A","shape":[1000000],"datatype":"FP32","data":[1,2,3, ... ]}]}

Rules:
 1. Large arrays (`scan.ArraySpan`) and long strings are taken out of the text; a short string stands for each. What is
    left is read by orjson if it is short, and else by the strict reader, which lets others in between.
 2. In the document there is a `LargeArray` in place of each array, which is read when its datatype is known: a piece
    between two cuts at a time, with the brackets put around it that are open there. No Python object is made of more
    than one piece at a time. A `LargeString` is read in pieces, too.
 3. They may only be where the caller says (`Places`). Of others, those that are not very large are read after all.
 4. What orjson does not read (`OddTextError`) is read once more, each piece by the strict reader: so all numbers of a
    document are rounded in the same way. What that cannot read either is no JSON, or has large arrays where no tensors
    are; then the strict reader takes the whole text, and knows the error.
 5. What is wrong is noticed late, when a piece is read. So an error in what the document says counts only if
    `Large.check` has found all of its text to be JSON.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any

import orjson

from ....engine.errors import TriremeError
from .scan import DEFAULT_MAX_VALUES, PIECE_BYTES, ArraySpan, JsonScan, refuse_strings, refuse_values
from .steps import give_way
from .strict import parse_strictly

_MARK = b"\x7f"
"""The first character of the strings that stand for arrays. A text that has it anywhere is not plain."""

_MARKS = (_MARK, b"\\u007f", b"\\u007F")
_BLANKS = b" \t\r\n"
_NO_NUMBERS = (b'"', b"{", b"u", b"l")
"""What JSON's other values have, but for arrays: strings; objects; true and null; false and null."""
_LONG_STRING = re.compile(rb'[\[ \t\r\n]*"')
_AFTER_LONG_STRING = re.compile(rb'"[\] \t\r\n]*\Z')
_WHOLE_CHARACTERS = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*+", re.DOTALL
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_MOST_VALUES_AT_ONCE = 32_768
_MOST_BYTES_AT_ONCE = 4 * PIECE_BYTES
"""Read by one call, this takes some 2 ms."""
_EDGE_BYTES = 1_024
_LENGTH_BYTES = 4
_LONG_BYTES = 16 * PIECE_BYTES


class OddTextError(Exception):
    """The text cannot be read in this way."""


class Large(ABC):
    """A part of a document, still text."""

    __slots__ = ("_checked", "_strict", "_text")

    def __init__(self, text: memoryview, *, strict: bool) -> None:
        self._text = text
        self._strict = strict
        self._checked = False

    @abstractmethod
    def pieces(self) -> Iterator[Any]:
        """What it stands for, piece by piece."""

    @abstractmethod
    def whole(self) -> Any:
        """It as it would be in a small document."""

    def check(self) -> None:
        """Read what has not been read.

        Raises:
            OddTextError: it is no JSON, or not plain.
        """
        if not self._checked:
            for _ in self.pieces():
                pass


class LargeArray(Large):
    """An array of a document, still text: the part `run` of it.

    Attributes:
        values: as many as it has values, about.
    """

    __slots__ = ("_run", "values")

    def __init__(self, text: memoryview, run: ArraySpan, *, strict: bool) -> None:
        super().__init__(text, strict=strict)
        self._run = run
        self.values = run.values

    def __len__(self) -> int:
        """The number of its outermost elements."""
        return self._run.outermost + 1

    @property
    def packed_bytes(self) -> int:
        """What it takes as packed BYTES elements, at most: no string is longer than its text, and each has a length."""
        return self._run.stop - self._run.start + _LENGTH_BYTES * (self.values + 1)

    def pieces(self) -> Iterator[list[Any] | LargeString]:
        """The array in pieces, each nested as it is in the array; or a string of more than a megabyte that is an
        element.

        Raises:
            OddTextError: a piece cannot be read.
        """
        for piece, _ in self.judged_pieces():
            yield piece

    def judged_pieces(self) -> Iterator[tuple[list[Any] | LargeString, bool]]:
        """The same, each with whether its text has shown that it has nothing but numbers, nested or not. To look at the
        type of each value takes as long as to make it."""
        run = self._run
        start, depth = run.start, 0
        for stop, open_after in [*run.cuts, (run.stop, 0)]:
            give_way()
            first, last = start == run.start, stop == run.stop
            if stop - start > _LONG_BYTES:
                string = _only_string(self._text, start, stop, strict=self._strict)
                yield string, False
                string.check()
            else:
                piece = _with_brackets(bytes(self._text[start:stop]), depth, open_after, first=first, last=last)
                yield _read(piece, strict=self._strict), not any(map(piece.__contains__, _NO_NUMBERS))
            start, depth = stop + 1, open_after
        self._checked = True

    def whole(self) -> list[Any]:
        """The array as it would be in a small document.

        Raises:
            OddTextError: it cannot be read, or is too large for that.
        """
        if self._run.stop - self._run.start > PIECE_BYTES:
            raise OddTextError
        self._checked = True
        return _read(bytes(self._text[self._run.start : self._run.stop]), strict=self._strict)


class LargeString(Large):
    """A string of a document, still text: from `start` to `stop`, without quotation marks.

    Attributes:
        nbytes: of its text.
    """

    __slots__ = ("_start", "_stop", "nbytes")

    def __init__(self, text: memoryview, start: int, stop: int, *, strict: bool) -> None:
        super().__init__(text, strict=strict)
        self._start = start
        self._stop = stop
        self.nbytes = stop - start

    @property
    def packed_bytes(self) -> int:
        """What it takes as a packed BYTES element, at most."""
        return self.nbytes + _LENGTH_BYTES

    def pieces(self) -> Iterator[bytes]:
        """What it stands for, in UTF-8; bytes that are none are as they came.

        Raises:
            OddTextError: a piece cannot be read.
        """
        at = self._start
        while at < self._stop:
            piece = bytes(self._text[at : min(at + PIECE_BYTES, self._stop)])
            piece = piece[: _whole_characters(piece, last=at + len(piece) == self._stop)]
            if not piece:
                raise OddTextError
            at += len(piece)
            give_way()
            yield _characters(piece, strict=self._strict)
        self._checked = True

    def whole(self) -> str:
        """The string as it would be in a small document.

        Raises:
            OddTextError: it cannot be read.
            LimitError: it is too long for that.
        """
        refuse_strings(self.nbytes)
        return b"".join(self.pieces()).decode("utf-8", "surrogateescape")


Places = Callable[[Any], Iterable[tuple[dict[str, Any], str]]]
"""Says in which members of a document large arrays and long strings may be."""


def cut(
    text: memoryview, found: JsonScan, places: Places, *, strict: bool = False, max_values: int = DEFAULT_MAX_VALUES
) -> tuple[Any, list[Large]]:
    """Read all but what is large.

    Args:
        strict: the strict reader is to read it.
        max_values: most values besides the arrays that are where they may be.

    Returns:
        What the text says, in which large parts are `LargeArray` and `LargeString`, and all these.

    Raises:
        OddTextError: it cannot be read, or has very large arrays in other places.
        LimitError: it has very long strings in other places, or too much of them, or too many values.
    """
    parts: list[bytes] = []
    large: list[Large] = []
    start = outside = 0
    for first, stop, each in _large_parts(text, found, strict=strict):
        parts += (bytes(text[start:first]), b'"%b%d"' % (_MARK, len(large)))
        outside += first - start
        large.append(each)
        start = stop
    parts.append(bytes(text[start:]))
    outside += len(parts[-1])
    if not strict and (found.values > _MOST_VALUES_AT_ONCE or outside > _MOST_BYTES_AT_ONCE):
        raise OddTextError
    if any(map(_has_mark, parts[::2])):
        raise OddTextError
    value = _read(b"".join(parts), strict=strict)
    if not strict and count_members(value) != found.members:  # of duplicates, orjson keeps the wrong one
        raise OddTextError
    for run in found.runs:
        if not run.cuts and bytes(text[run.start + 1 : run.start + 1_024]).lstrip(_BLANKS)[:1] in b"]":
            raise OddTextError  # an array of nothing but blanks, perhaps
    left = dict(enumerate(large))
    for holder, name in places(value):
        number = _number_of(holder[name])
        if number is not None:
            holder[name] = left.pop(number)
    if left:
        in_arrays = sum(each.values for each in left.values() if isinstance(each, LargeArray))
        refuse_values(found.values + in_arrays, 0, max_values)
        _put_back(value, left)
    return value, large


def _large_parts(text: memoryview, found: JsonScan, *, strict: bool) -> list[tuple[int, int, Large]]:
    """Large arrays, and long strings outside of them: where each begins and ends."""
    arrays = [(run.start, run.stop, LargeArray(text, run, strict=strict)) for run in found.runs]
    strings = [
        (start, stop, LargeString(text, start + 1, stop - 1, strict=strict)) for start, stop in found.strings_outside()
    ]
    return sorted([*arrays, *strings], key=itemgetter(0))


def _number_of(value: Any) -> int | None:
    """Which large part a value stands for; None for none."""
    return int(value[1:]) if type(value) is str and value[:1] == _MARK.decode() else None


def _put_back(value: Any, left: dict[int, Large]) -> None:
    """Read what is large where no tensor is, and put it where it belongs."""
    refuse_strings(*(each.nbytes for each in left.values() if isinstance(each, LargeString)))
    pending = [value]
    for each in pending:
        kind = type(each)
        if kind is not dict and kind is not list:
            continue
        for key, inner in each.items() if kind is dict else enumerate(each):
            number = _number_of(inner)
            if number is not None:
                each[key] = left.pop(number).whole()
            elif type(inner) is dict or type(inner) is list:
                pending.append(inner)
    if left:
        raise OddTextError


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


def _only_string(text: memoryview, start: int, stop: int, *, strict: bool) -> LargeString:
    """The string that is all of a piece, but for brackets."""
    head = _LONG_STRING.match(bytes(text[start : start + _EDGE_BYTES]))
    if head is None:
        raise OddTextError
    at = start + head.end()
    edge = max(at, stop - _EDGE_BYTES)
    tail = _AFTER_LONG_STRING.search(bytes(text[edge:stop]))
    if tail is None:
        raise OddTextError
    return LargeString(text, at, edge + tail.start(), strict=strict)


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
