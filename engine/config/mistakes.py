"""All that is wrong with a configuration's text at once, each with its place, what is allowed there, and what may have
been meant. The server itself stops at the first (`phases`); the parser and the checks are the same.

Rules:
 1. A name that the parser does not know is noted, replaced by the nearest that it knows, and the text is parsed again.
    A field without such a name, or with a value that is none, is taken out.
 2. Where braces, brackets or quotes do not match, reading ends: what follows would be guessed.
 3. The checks of values run on what is left. What one says of a field that is missing does not count if something was
    taken out: it is likely the same mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.text_format import ParseError

from ..errors import TriremeError
from .files import file_problems
from .instance_groups import group_problems, normalize_instance_groups
from .model import ModelConfigMessage, copy_message
from .phases import parse_error_text
from .places import FieldPlaces
from .platforms import complete_backend, is_ensemble, normalize
from .validate import setting_problems, tensor_problems

MOST = 100
"""Mistakes of one file that are told."""

_NO_FIELD = re.compile(r'Message type "inference\.([\w.]+)" has no field named "([^"]*)"')
_NO_VALUE = re.compile(r'Enum type "inference\.([\w.]+)" has no value named (\S*?)\.?$')
_BAD_VALUE = re.compile(
    r"Expected (?:integer|string|\"true\"|float|\":\"|\"\{\")|out of range|should not have multiple"
)
_NEEDS_GPUS = re.compile(r"no GPUs|gpu id")
_MISSING = re.compile(r"must specify|expected at least")


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something that is wrong.

    Attributes:
        line, column: where in the file, counted from 1; 0 where that is not known.
        found: the line, as it is written; empty if it is not known.
        allowed: what may be there instead; empty if it cannot be listed.
        nearest: those of them that may have been meant.
    """

    text: str
    line: int = 0
    column: int = 0
    found: str = ""
    allowed: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()


class _Text:
    """A text that is changed, in which places are those of the original. A line stays a line."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.split("\n")
        self._edits: list[tuple[int, int, int]] = []

    def change(self, begin: int, end: int, new: str) -> None:
        """Put something else, which has as many lines, in the place of a part."""
        line, column = FieldPlaces(self.text).line_and_column(begin)
        self._edits.append((line, column, len(new) - (end - begin)))
        self.text = f"{self.text[:begin]}{new}{self.text[end:]}"

    def original(self, line: int, column: int) -> tuple[int, int]:
        """Where that is in the original."""
        for edited_line, edited_column, longer in reversed(self._edits):
            if edited_line == line and edited_column < column:
                column -= longer
        return line, column

    def line(self, line: int) -> str:
        """Of the original, without blanks around it."""
        return self._lines[line - 1].strip()


@dataclass(frozen=True, slots=True)
class ParsedText:
    """What could be made of a configuration's text.

    Attributes:
        message: what is left when what cannot be parsed is taken out; None if nothing can be made of it.
        mistakes: of its form.
        text: of which the message was made.
    """

    message: Any | None
    mistakes: tuple[Mistake, ...]
    text: _Text


def parse_all(written: str) -> ParsedText:
    """Parse a text as far as that goes (rules 1 and 2)."""
    text = _Text(written)
    mistakes: list[Mistake] = []
    while True:
        try:
            return ParsedText(text_format.Parse(text.text, ModelConfigMessage()), tuple(mistakes), text)
        except ParseError as error:
            line, column = error.GetLine() or 1, error.GetColumn() or 1
            told = parse_error_text(error).removeprefix(f"{line}:{column}: ")
        places = FieldPlaces(text.text)
        position = places.position(line, column)
        field = places.innermost(position)
        mistake, word = _form_mistake(told, *text.original(line, column), text.line(line))
        mistakes.append(mistake)
        if field is None or not _may_go_on(told) or len(mistakes) >= MOST:
            return ParsedText(None, tuple(mistakes), text)
        if mistake.nearest and text.text.startswith(word, position):
            text.change(position, position + len(word), mistake.nearest[0])
        else:
            text.change(field.begin, field.end, re.sub(r"[^\n]", " ", text.text[field.begin : field.end]))


def _may_go_on(told: str) -> bool:
    return any(pattern.search(told) for pattern in (_NO_FIELD, _NO_VALUE, _BAD_VALUE))


def _form_mistake(told: str, line: int, column: int, found: str) -> tuple[Mistake, str]:
    """It, and the word that is not known, if it is that."""
    allowed: list[str] = []
    word = ""
    if no_field := _NO_FIELD.search(told):
        word = no_field[2]
        told = f"there is no field '{word}' in {no_field[1]}"
        allowed = [each.name for each in _descriptor(no_field[1]).fields]
    elif no_value := _NO_VALUE.search(told):
        word = no_value[2]
        told = f"there is no value '{word}' of {no_value[1]}"
        allowed = [each.name for each in _descriptor(no_value[1]).values if each.name != "TYPE_INVALID"]
    near = get_close_matches(word, allowed, n=2) if word else []
    return Mistake(told, line, column, found, tuple(allowed), tuple(near)), word


def _descriptor(name: str) -> Any:
    """Of a message or an enum of the schema, by its name in it."""
    file = ModelConfigMessage.DESCRIPTOR.file
    first, *inner = name.split(".")
    found: Any = file.message_types_by_name.get(first) or file.enum_types_by_name.get(first)
    for each in inner:
        found = found.nested_types_by_name.get(each) or found.enum_types_by_name.get(each)
    return found


def value_mistakes(parsed: ParsedText, directory: Path, name: str, *, complete: bool) -> Iterator[Mistake]:
    """What the checks say that a server makes before it asks the backend, of all settings (rule 3).

    Args:
        directory: of the model, which must be called `name`.
        complete: inputs and outputs must be there (``--disable-auto-complete-config``); else only those that are there
            are checked.
    """
    if parsed.message is None:
        return
    message = copy_message(parsed.message)
    message.name = message.name or name
    for problem in dict.fromkeys(_problems(message, directory, name, complete=complete)):
        if not (parsed.mistakes and _MISSING.search(problem)):
            yield located(problem, parsed)


def located(problem: str, parsed: ParsedText) -> Mistake:
    """A mistake with the place of the field that its text most likely speaks of."""
    places = FieldPlaces(parsed.text.text)
    field = places.about(problem)
    if field is None:
        return Mistake(problem)
    line, column = parsed.text.original(*places.line_and_column(field.begin))
    return Mistake(problem, line, column, parsed.text.line(line))


def _problems(message: Any, directory: Path, name: str, *, complete: bool) -> Iterator[str]:
    try:
        complete_backend(message, directory)
    except TriremeError as error:
        yield error.message
        return
    normalize(message)
    yield from setting_problems(message)
    if message.name != name:
        yield f"unexpected directory name '{name}' for model '{message.name}', directory name must equal model name"
    yield from file_problems(message)
    if message.input or message.output or complete:
        yield from tensor_problems(message)
    if not is_ensemble(message):
        normalize_instance_groups(message)
        # whether there are GPUs is not looked at here
        yield from (each for each in _raised_last(group_problems(message)) if not _NEEDS_GPUS.search(each))


def _raised_last(problems: Iterable[str]) -> Iterator[str]:
    try:
        yield from problems
    except TriremeError as error:
        yield error.message
