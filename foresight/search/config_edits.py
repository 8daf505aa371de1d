"""Changes a `config.pbtxt` as text: what is not changed stays as it was written, comments and order included.

Rules:
 1. A field whose value is as before is left alone. One that has gone is taken out, a new one is put at the end of its
    message, and one with another value is replaced; of a message that is there, only what is in it.
 2. A repeated field is changed entry by entry if there are as many as before; else it is replaced as a whole. To a map
    entries are added if all others are as before.
 3. What comes of it is read again. Should it not be what was meant, the whole text is printed anew.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import text_format

from ...engine.config.model import ModelConfigMessage
from ...engine.errors import InvalidArgumentError

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)|(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<mark>[{}<>\[\]:,;])|[^\s{}<>\[\]:,;"'#]+"""
)
_CLOSING = {"{": "}", "<": ">"}


@dataclass(slots=True)
class _Value:
    """A value in the text: from where to where, and what is in it, if it is a message."""

    start: int
    end: int
    fields: list[_Field] | None = None


@dataclass(slots=True)
class _Field:
    """A field in the text, with one value or a list of them."""

    name: str
    start: int
    end: int
    values: list[_Value] = field(default_factory=list)


class _Reader:
    """Where the fields of a text are. The text has been read by protobuf before."""

    def __init__(self, text: str) -> None:
        found = [token for token in _TOKEN.finditer(text) if not token["skip"]]
        self._tokens = [(token.group(), token.start(), token.end(), bool(token["string"])) for token in found]
        self._at = 0

    def fields(self, closing: str = "") -> list[_Field]:
        found: list[_Field] = []
        while self._at < len(self._tokens) and self._seen() != closing:
            name, start, end, _ = self._next()
            each = _Field(name, start, end)
            if self._seen() == ":":
                self._next()
            if self._seen() == "[":
                self._next()
                while self._seen() != "]":
                    each.values.append(self._value())
                    self._skip(",")
                each.end = self._next()[2]
            else:
                each.values.append(self._value())
                each.end = each.values[0].end
            if self._seen() in (",", ";"):
                each.end = self._next()[2]
            found.append(each)
        return found

    def _value(self) -> _Value:
        text, start, end, string = self._next()
        if text in _CLOSING:
            inner = self.fields(_CLOSING[text])
            return _Value(start, self._next()[2], inner)
        while string and self._at < len(self._tokens) and self._tokens[self._at][3]:
            end = self._next()[2]
        return _Value(start, end)

    def _seen(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _next(self) -> tuple[str, int, int, bool]:
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, mark: str) -> None:
        if self._seen() == mark:
            self._next()


def read_config_text(text: str) -> Any:
    """The message.

    Raises:
        InvalidArgumentError: it is none.
    """
    try:
        return text_format.Parse(text, ModelConfigMessage())
    except text_format.ParseError as error:
        raise InvalidArgumentError(f"the configuration cannot be read: {error}") from error


def edited_config(text: str, new: Any) -> str:
    """The text, changed so that it says `new`.

    Raises:
        InvalidArgumentError: the text is no configuration.
    """
    old = read_config_text(text)
    if old == new:
        return text
    edits = list(_edits(text, _Reader(text).fields(), old, new, len(text), 0))
    for start, end, put in sorted(edits, reverse=True):
        text = text[:start] + put + text[end:]
    try:
        same = text_format.Parse(text, ModelConfigMessage()) == new
    except text_format.ParseError:
        same = False
    return text if same else text_format.MessageToString(new)


def config_diff(before: str, after: str, path: str) -> str:
    """As `diff -u`; empty if nothing is changed."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


_Edit = tuple[int, int, str]


def _edits(text: str, fields: Sequence[_Field], old: Any, new: Any, end: int, depth: int) -> Iterator[_Edit]:
    """From where to where what is put (rules 1 and 2).

    Args:
        end: of the message, where new fields are put.
    """
    names = {each.name: each for message in (old, new) for each, _ in message.ListFields()}
    added = ""
    for name, descriptor in names.items():
        before, after = _alone(old, descriptor), _alone(new, descriptor)
        if before == after:
            continue
        there = [each for each in fields if each.name == name]
        inner = list(_inner(text, there, old, new, descriptor, depth))
        if inner:
            yield from inner
            continue
        if there and _only_grows(before, after, name, descriptor):
            added += _indented(text_format.MessageToString(_without(after, before, name)), depth)
            continue
        printed = text_format.MessageToString(after)
        for number, each in enumerate(there):
            put = _indented(printed, depth).strip() if number == 0 else ""
            yield _whole_line(text, each) if not put else (each.start, each.end, put)
        if not there:
            added += _indented(printed, depth)
    if added and depth == 0:
        yield end, end, f"{'' if text.endswith(chr(10)) or not text else chr(10)}{added}"
    elif added:
        stop = len(text[:end].rstrip())
        on_lines = "\n" in text[stop:end]
        yield stop, end, f"\n{added}{'  ' * (depth - 1)}" if on_lines else f" {' '.join(added.split())} "


def _only_grows(before: Any, after: Any, name: str, descriptor: Any) -> bool:
    """A map that has all that it had, and more."""
    if descriptor.message_type is None or not descriptor.message_type.GetOptions().map_entry:
        return False
    old, new = getattr(before, name), getattr(after, name)
    return all(key in new and new[key] == old[key] for key in old)


def _without(after: Any, before: Any, name: str) -> Any:
    """A message with the entries of a map that are new."""
    found = type(after)()
    found.CopyFrom(after)
    for key in getattr(before, name):
        del getattr(found, name)[key]
    return found


def _alone(message: Any, descriptor: Any) -> Any:
    """A message with that field only."""
    found = type(message)()
    for each, value in message.ListFields():
        if each.name != descriptor.name:
            continue
        if descriptor.is_repeated:
            getattr(found, each.name).MergeFrom(value)
        elif descriptor.message_type is not None:
            getattr(found, each.name).CopyFrom(value)
        else:
            setattr(found, each.name, value)
    return found


def _inner(text: str, there: Sequence[_Field], old: Any, new: Any, descriptor: Any, depth: int) -> Iterator[_Edit]:
    """Edits within the messages of a field; none if it has to be replaced as a whole."""
    if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
        return
    values = [value for each in there for value in each.values]
    befores, afters = ([*_messages(each, descriptor)] for each in (old, new))
    if not len(values) == len(befores) == len(afters):
        return
    for value, before, after in zip(values, befores, afters, strict=True):
        if value.fields is not None and before != after:
            yield from _edits(text, value.fields, before, after, value.end - 1, depth + 1)


def _messages(message: Any, descriptor: Any) -> Iterator[Any]:
    value = getattr(message, descriptor.name)
    if descriptor.is_repeated:
        yield from value
    elif message.HasField(descriptor.name):
        yield value


def _indented(printed: str, depth: int) -> str:
    return "".join(f"{'  ' * depth}{line}" for line in printed.splitlines(keepends=True))


def _whole_line(text: str, each: _Field) -> _Edit:
    """Takes out a field, and its line if nothing else is on it."""
    line = text.rfind("\n", 0, each.start) + 1
    stop = text.find("\n", each.end)
    stop = len(text) if stop < 0 else stop + 1
    if not text[line : each.start].strip() and not text[each.end : stop].strip():
        return line, stop, ""
    return each.start, each.end, ""
