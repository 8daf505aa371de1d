"""Where in a configuration's text its fields are, so that what is wrong with one can be told with its line.

protobuf's parser tells places of mistakes in the form only; checks of values come later, when the text is gone. This
reads the text once more, as far as it is well formed, and knows no schema.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_TOKEN = re.compile(
    r"""[ \t\r\n\f\v]+ | \#[^\n]* | (?P<string>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')"""
    r"""| (?P<word>[\w.+/-]+) | (?P<sign>[][{}<>:,;])""",
    re.VERBOSE,
)
_CLOSERS = {"{": "}", "<": ">"}
_MOST_FIELDS = 100_000
_QUOTED = re.compile(r"'([^']*)'")


@dataclass(slots=True, eq=False)
class WrittenField:
    """One field, as it is written.

    Attributes:
        path: its name behind those of the fields around it.
        begin, end: where its text is.
        values: its scalars, strings without their quotes.
        inner: the fields in it; of a list of messages, these, called as the list.
    """

    path: tuple[str, ...]
    begin: int
    end: int = 0
    values: list[str] = field(default_factory=list)
    inner: list[WrittenField] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path[-1]


class _Token(NamedTuple):
    kind: str
    text: str
    begin: int
    end: int


class _UnreadableError(Exception):
    """The text is not well formed from here on."""


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens, None)
        self._end = 0
        self._count = 0

    def _take(self) -> _Token:
        token = self._next
        if token is None:
            raise _UnreadableError
        self._end = token.end
        self._next = next(self._tokens, None)
        return token

    def _is(self, sign: str) -> bool:
        return self._next is not None and self._next.text == sign and self._next.kind == "sign"

    def fields(self, into: list[WrittenField], path: tuple[str, ...], closer: str) -> None:
        """Read fields until the sign that closes them, or the end of the text."""
        while self._next is not None and not self._is(closer):
            name = self._take()
            self._count += 1
            if name.kind != "word" or self._count > _MOST_FIELDS or len(path) > 50:
                raise _UnreadableError
            found = WrittenField((*path, name.text), name.begin, name.end)
            into.append(found)
            if self._is(":"):
                self._take()
            self._value(found)
            found.end = self._end
            while self._is(",") or self._is(";"):
                self._take()

    def _value(self, found: WrittenField) -> None:
        token = self._take()
        if token.kind == "sign" and token.text in _CLOSERS:
            closer = _CLOSERS[token.text]
            found.end = token.end
            self.fields(found.inner, found.path, closer)
            found.end = self._take().end
        elif token.kind == "sign" and token.text == "[":
            while not self._is("]"):
                if self._next is not None and self._next.text in _CLOSERS:
                    element = WrittenField(found.path, self._next.begin)
                    found.inner.append(element)
                    self._value(element)
                elif self._is("["):
                    raise _UnreadableError  # there are no lists of lists
                else:
                    self._value(found)
                if self._is(","):
                    self._take()
            found.end = self._take().end
        elif token.kind in ("word", "string"):
            text = _plain(token)
            while self._next is not None and token.kind == self._next.kind == "string":
                text += _plain(self._take())
            found.values.append(text)
            found.end = self._end
        else:
            raise _UnreadableError


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return
        if found.lastgroup is not None:
            yield _Token(found.lastgroup, found[0], at, found.end())
        at = found.end()


def _plain(token: _Token) -> str:
    return token.text[1:-1] if token.kind == "string" else token.text


class FieldPlaces:
    """The fields of a text."""

    def __init__(self, text: str) -> None:
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._outer: list[WrittenField] = []
        with contextlib.suppress(_UnreadableError):
            _Reader(text).fields(self._outer, (), "")
        self._all = list(_walk(self._outer))

    def line_and_column(self, position: int) -> tuple[int, int]:
        """Of a position in the text, both counted from 1."""
        line = bisect_right(self._lines, position)
        return line, position - self._lines[line - 1] + 1

    def position(self, line: int, column: int) -> int:
        """The inverse."""
        return self._lines[line - 1] + column - 1

    def innermost(self, position: int) -> WrittenField | None:
        """The smallest field that has a position in it."""
        around = [each for each in self._all if each.begin <= position < each.end]
        return min(around, key=lambda each: each.end - each.begin, default=None)

    def about(self, message: str) -> WrittenField | None:
        """The field that a message most likely speaks of: of those that it names, in quotes or in words, one of the
        tensor, group or step that it names, if it names one."""
        quoted = _QUOTED.findall(message)
        named = [each for each in self._all if each.inner and _identity(each) in quoted]
        words = f" {re.sub('[^a-z0-9_]+', ' ', message.lower())} "
        best: WrittenField | None = None
        for block in (*named, None):
            inside = self._all if block is None else list(_walk(block.inner))
            best = _named_in(words, quoted, inside) or block
            if best is not None:
                break
        return best or next((each for each in self._all if _is_reference(each) and each.values[0] in message), None)


def _named_in(words: str, quoted: Sequence[str], fields: Sequence[WrittenField]) -> WrittenField | None:
    """The one with the longest name that is in the message, or has a quoted value."""
    found = [each for each in fields if any(f" {form} " in words for form in _forms(each.name))]
    if found:
        return max(found, key=lambda each: len(each.name))
    return next((each for each in fields if any(value in quoted for value in each.values)), None)


def _is_reference(field: WrittenField) -> bool:
    """Whether it names something outside of the configuration."""
    return field.name in ("model_name", "label_filename", "default_model_filename") and bool(field.values)


def _forms(name: str) -> Iterator[str]:
    """How messages write a field's name."""
    if name in ("name", "key", "value", "kind", "version", "input", "output", "backend", "count"):
        return
    yield name
    spaced = name.replace("_", " ")
    yield spaced
    yield spaced.removesuffix(" batch size") + " size"
    yield spaced.removesuffix("s")
    if name == "dims":
        yield from ("dimension", "dimensions", "shape")
    if name in ("gpus", "data_type"):
        yield from {"gpus": ("gpu", "gpus"), "data_type": ("datatype", "data type")}[name]


def _identity(block: WrittenField) -> str | None:
    """What messages call a block: its name, the model of a step."""
    keys = ("name", "model_name", "key")
    return next((each.values[0] for each in block.inner if each.name in keys and each.values), None)


def _walk(fields: Sequence[WrittenField]) -> Iterator[WrittenField]:
    for each in fields:
        yield each
        yield from _walk(each.inner)
