"""Looking at a JSON text without reading it: how much there is, and where its large arrays can be cut.

A text of megabytes must not be read by one call: orjson holds the interpreter's lock until it has made every object,
and a few bytes of text can be a hundred of objects. So the text is looked at first, in pieces, as bytes: which of them
are brackets, commas and colons outside of strings. That takes 0.2 ms for each `PIECE_BYTES`, a tenth of it within flat
numbers, and tells

* how many values there are at most, before any is made;
* how many members objects have, so that duplicates are noticed;
* which members are large arrays without objects in them, as the data of a tensor is, where they begin and end, and
  after which commas they can be cut (`ArraySpan`);
* where strings are that are longer than a piece.

Nothing is checked here: what is no JSON gives numbers that mean nothing, and is refused by the reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ....engine.tensor_limits import LimitError
from ...request_parameters import MAX_PARTS, MAX_TEXT_BYTES
from .steps import give_way

PIECE_BYTES = 65_536

_LEAST_RUN_BYTES = 128

_OPEN, _CLOSE, _COMMA, _COLON, _OPEN_OBJECT, _CLOSE_OBJECT = range(1, 7)
_QUOTE, _COMMA_BYTE = ord('"'), ord(",")

_KINDS = np.zeros(256, np.uint8)
for _kind, _character in enumerate(b"[],:{}", 1):
    _KINDS[_character] = _kind
_STEPS = np.array([0, 1, -1, 0, 0, 1, -1], np.int64)  # by kind: how the depth changes
_NOT_FLAT = (b'"', b"[", b"]", b"\\", b":", b"{", b"}")


@dataclass(slots=True)
class ArraySpan:
    """A large array that is a member of an object.

    Attributes:
        start, stop: where its text is, brackets included.
        cuts: commas in it, outside of strings, as (place, brackets that are open there).
        values: commas and opening brackets in it: as many as it has values, about.
        outermost: commas between its outermost elements.
    """

    start: int
    stop: int = 0
    values: int = 0
    outermost: int = 0
    cuts: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class JsonScan:
    """What a text looks like.

    Attributes:
        values: most values that the text can have outside of `runs`.
        members: colons outside of strings.
        depth: most brackets that are open at a time.
        runs: large arrays, in order.
        strings: where long strings are, quotation marks included, in order; also those in runs.
    """

    values: int = 1
    members: int = 0
    depth: int = 0
    runs: list[ArraySpan] = field(default_factory=list)
    strings: list[tuple[int, int]] = field(default_factory=list)

    def strings_outside(self) -> Iterator[tuple[int, int]]:
        """Those of `strings` that are not in runs."""
        runs = iter(self.runs)
        run = next(runs, None)
        for start, stop in self.strings:
            while run is not None and run.stop < start:
                run = next(runs, None)
            if run is None or start < run.start:
                yield start, stop


def scan(text: memoryview, piece_bytes: int = PIECE_BYTES) -> JsonScan:
    """Look at a text of any length, so many bytes in one go. Small arrays are no runs."""
    scanner = _Scanner(text, piece_bytes)
    at = 0
    while at < len(text):
        give_way()
        at = scanner.take(at)
    if scanner.run is not None:  # it has no end, and so the text is no JSON
        scanner.found.values += scanner.run.values
    return scanner.found


class _Scanner:
    """Goes through a text.

    Attributes:
        run: the array that is open, if it may become a run.
    """

    def __init__(self, text: memoryview, piece_bytes: int) -> None:
        self._text = text
        self._piece_bytes = piece_bytes
        self._least_bytes = min(piece_bytes, _LEAST_RUN_BYTES)
        self._in_string = False
        self._string_start = 0
        self._depth = 0
        self._after_colon = False
        self._base = 0
        self.found = JsonScan()
        self.run: ArraySpan | None = None

    def take(self, start: int) -> int:
        """Look at the next piece; where the one after it begins."""
        text = bytes(self._text[start : start + self._piece_bytes])
        if self.run is not None and not self._in_string and not any(mark in text for mark in _NOT_FLAT):
            self._go_on_flat(self.run, text, start)
            return start + len(text)
        if b"\\" in text:
            if (len(text) - len(text.rstrip(b"\\"))) % 2:  # an escape is not cut in two
                text += bytes(self._text[start + len(text) : start + len(text) + 1])
            hidden = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        else:
            hidden = text
        begun_in_string = self._in_string
        kinds, places = self._structure(np.frombuffer(hidden, np.uint8), start)
        self._count(kinds, places, start, begun_in_string)
        return start + len(text)

    def _go_on_flat(self, run: ArraySpan, text: bytes, start: int) -> None:
        """Go on with a run by a piece that has nothing to look at but commas, as most of a tensor's numbers have."""
        commas = int(np.count_nonzero(np.frombuffer(text, np.uint8) == _COMMA_BYTE))
        if commas:
            depth = self._depth - self._base
            run.values += commas
            run.outermost += commas if depth == 1 else 0
            run.cuts.append((start + text.rindex(b","), depth))

    def _structure(self, characters: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Kinds and places of the structural characters outside of strings, in a piece that begins at `start`."""
        kinds = _KINDS.take(characters)
        quotes = characters == _QUOTE
        if quotes.any():
            inside = np.bitwise_xor.accumulate(quotes)
            if self._in_string:
                np.logical_not(inside, out=inside)
                end = start + int(quotes.argmax()) + 1
                if end - self._string_start > self._piece_bytes:
                    self.found.strings.append((self._string_start, end))
            kinds[inside] = 0
            self._in_string = bool(inside[-1])
            if self._in_string:
                self._string_start = start + len(quotes) - 1 - int(quotes[::-1].argmax())
        elif self._in_string:
            kinds[:] = 0
        places = np.flatnonzero(kinds != 0)  # of bytes, the same takes four times as long
        return kinds[places], places

    def _count(self, kinds: np.ndarray, places: np.ndarray, start: int, begun_in_string: bool) -> None:
        if not len(kinds):
            return
        depths = np.cumsum(_STEPS[kinds]) + self._depth
        found = self.found
        found.depth = max(found.depth, int(depths.max()))
        found.members += int(np.count_nonzero(kinds == _COLON))
        at = 0
        if self.run is not None:
            at = self._go_on(self.run, kinds, places + start, depths, begun_in_string)
        rest = kinds[at:]
        found.values += _count_values(rest)
        if self.run is None and len(rest):
            self._find_runs(rest, places[at:] + start, depths[at:])
            self._look_for_run(kinds, places + start, depths, at)
        self._after_colon = int(kinds[-1]) == _COLON
        self._depth = int(depths[-1])

    def _go_on(
        self, run: ArraySpan, kinds: np.ndarray, places: np.ndarray, depths: np.ndarray, begun_in_string: bool
    ) -> int:
        """Go on with a run, at most to its end; how many structural characters belong to it."""
        ends = np.flatnonzero(depths <= self._base)
        end = int(ends[0]) + 1 if len(ends) else len(kinds)
        mine = kinds[:end]
        if (mine >= _COLON).any():  # there are objects in it
            self.found.values += run.values
            self.run = None
            return 0
        run.values += _count_values(mine)
        commas = np.flatnonzero(mine == _COMMA)
        run.outermost += int(np.count_nonzero(depths[commas] == self._base + 1))
        if len(commas):
            # The last one; and the first, if a long string ends before it, so that this can be read by itself.
            chosen = (int(commas[0]), int(commas[-1])) if begun_in_string and len(commas) > 1 else (int(commas[-1]),)
            run.cuts += [(int(places[each]), int(depths[each]) - self._base) for each in chosen]
        if len(ends):
            run.stop = int(places[end - 1]) + 1
            if run.stop - run.start > self._least_bytes:
                self.found.runs.append(run)
            else:
                self.found.values += run.values
            self.run = None
        return end

    def _find_runs(self, kinds: np.ndarray, places: np.ndarray, depths: np.ndarray) -> None:
        """Arrays that are members, and that the piece has from beginning to end.

        Behind the colon there are nothing but brackets and commas then, up to the next colon or brace: those of the
        array, and at most one comma after it.
        """
        marks = np.flatnonzero(kinds >= _COLON)
        after = np.append(marks[1:], len(kinds))
        first = marks + 1
        last = after - 1
        last -= kinds[last] == _COMMA
        fine = (kinds[marks] == _COLON) & (last > first)
        first, last = first[fine], last[fine]
        whole = (kinds[first] == _OPEN) & (kinds[last] == _CLOSE) & (depths[last] == depths[first] - 1)
        whole &= places[last] - places[first] >= self._least_bytes
        first, last = first[whole], last[whole]
        if not len(first):
            return
        counted = np.cumsum((kinds == _COMMA) | (kinds == _OPEN))
        values = counted[last] - counted[first] + 1
        commas = np.flatnonzero(kinds == _COMMA)
        runs = np.searchsorted(first, commas, "right") - 1  # where each comma is, or would be
        mine = (runs >= 0) & (commas < last[runs]) & (depths[commas] == depths[first[runs]])
        outermost = np.bincount(runs[mine], minlength=len(first))
        self.found.values -= int(values.sum())
        said = np.stack((places[first], places[last] + 1, values, outermost), axis=1)
        self.found.runs += [ArraySpan(*each) for each in said.tolist()]

    def _look_for_run(self, kinds: np.ndarray, places: np.ndarray, depths: np.ndarray, at: int) -> None:
        """Whether the piece ends in an array that is a member."""
        last = np.flatnonzero(kinds[at:] >= _COLON)
        if len(last):
            first = at + int(last[-1]) + 1
            if int(kinds[first - 1]) != _COLON:
                return
        elif self._after_colon and at == 0:
            first = 0
        else:
            return
        if first >= len(kinds) or int(kinds[first]) != _OPEN:
            return
        base = int(depths[first]) - 1
        if int(depths[first:].min()) <= base:
            return
        self._base = base
        self.run = run = ArraySpan(int(places[first]))
        self._go_on(run, kinds[first:], places[first:], depths[first:], begun_in_string=False)
        self.found.values -= run.values


def _count_values(kinds: np.ndarray) -> int:
    return int(np.count_nonzero((kinds == _COMMA) | (kinds == _OPEN) | (kinds == _OPEN_OBJECT)))


# ---- what is too much ----


DEFAULT_MAX_VALUES = 1 << 17
"""``--http-max-json-values``, unless it is given: so many take up to 32 MiB."""

_TEXT_BYTES_A_VALUE = 32
_LEAST_TEXT_BYTES = 65_536
_MOST_STRING_BYTES = 2 * MAX_TEXT_BYTES


def refuse_values(count: int, nbytes: int, most: int) -> None:
    """Check how many values a text has, and how long they are.

    Raises:
        LimitError: too many, or too long: for each value that there may be, a text may have 32 bytes.
    """
    if count > most:
        raise LimitError(
            f"the request JSON has about {count} values besides plain tensor data, expected at most {most}, which "
            "--http-max-json-values sets"
        )
    if nbytes > max(most * _TEXT_BYTES_A_VALUE, _LEAST_TEXT_BYTES):
        raise LimitError(
            f"the request JSON has {nbytes} bytes besides plain tensor data, expected at most "
            f"{most * _TEXT_BYTES_A_VALUE}, {_TEXT_BYTES_A_VALUE} for each value that --http-max-json-values allows"
        )


def refuse_strings(*sizes: int) -> None:
    """Check the lengths of long strings, each of which is made by one call.

    Raises:
        LimitError: one is too long, or all together are.
    """
    longest, total = max(sizes, default=0), sum(sizes)
    if longest > MAX_TEXT_BYTES:
        raise LimitError(
            f"a string of the request JSON has {longest} bytes, expected at most {MAX_TEXT_BYTES} besides the data of "
            "tensors and files"
        )
    if total > _MOST_STRING_BYTES:
        raise LimitError(
            f"the request JSON has strings of {total} bytes together, expected at most {_MOST_STRING_BYTES} besides "
            "the data of tensors and files"
        )


def refuse_parts(count: int) -> None:
    """Check how many inputs, outputs and parameters a request has, each of which becomes several objects.

    Raises:
        LimitError: more than `MAX_PARTS`.
    """
    if count > MAX_PARTS:
        raise LimitError(f"request has more than {MAX_PARTS} inputs, outputs and parameters, which is the most")
