"""What a request says that its text has to be: vLLM's object for constraints, and what is no such thing.

What is given has a bound: its length, and a regular expression's length with all repetitions written out. What else it
may take is found when it is read (`constraint_trial`).
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidArgumentError
from .structural_tags import schemas_of_tag

CONSTRAINT = "structured_outputs"
"""The sampling parameter, and what errors about it are about (`TriremeError.about`)."""

_MOST_CHARACTERS = 65_536
_MOST_WRITTEN_OUT = 20_000
_MOST_CHOICES = 1_000
_WHITE_SPACE = r"[ \t\n\r]{1,20}"
_ANY_OBJECT = '{"type":"object"}'

_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class ConstraintForm(enum.Enum):
    """What the text of a constraint is."""

    SCHEMA = "a JSON schema"
    REGEX = "a regular expression"
    GRAMMAR = "a grammar in Lark's form"
    TAG = "a structural tag"


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a request asks for.

    Attributes:
        white_space: in JSON, as a regular expression; empty for none.
        harmless: it takes little to read, whatever the client has given.
    """

    form: ConstraintForm
    text: str
    white_space: str = _WHITE_SPACE
    harmless: bool = False


def read_constraint(name: str, given: Any) -> Constraint | None:
    """The constraint that a request's parameter stands for: vLLM's object, or a text of it as Triton's clients send it.

    Args:
        name: of the parameter.

    Returns:
        None if it is null.

    Raises:
        InvalidArgumentError: it is none, or is too large.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise InvalidArgumentError(f"{name} is no JSON") from None
    if given is None:
        return None
    if not isinstance(given, dict):
        raise InvalidArgumentError(f"{name} is no object; expected one with one of {', '.join(_KINDS)}")
    left = {key: value for key, value in given.items() if value is not None and value is not False}
    kinds = [kind for kind in _KINDS if kind in left]
    if len(kinds) != 1:
        found = " and ".join(kinds) or (f"'{next(iter(left))}'" if left else "nothing")
        raise InvalidArgumentError(f"{name} has {found}; expected one of {', '.join(_KINDS)}")
    value = left.pop(kinds[0])
    white_space = "" if left.pop("disable_any_whitespace", None) else left.pop("whitespace_pattern", _WHITE_SPACE)
    if left:
        raise InvalidArgumentError(f"{name} has '{next(iter(left))}', which is not known here")
    if not isinstance(white_space, str):
        raise InvalidArgumentError(f"{name}.whitespace_pattern is no text")
    return _read(f"{name}.{kinds[0]}", kinds[0], value, white_space)


def _read(name: str, kind: str, value: Any, white_space: str) -> Constraint:
    match kind:
        case "choice":
            made = _choice(name, value)
        case "regex" | "grammar":
            if not isinstance(value, str):
                expected = "a regular expression" if kind == "regex" else "a grammar"
                raise InvalidArgumentError(f"{name} is no text; expected {expected}")
            made = Constraint(ConstraintForm.REGEX if kind == "regex" else ConstraintForm.GRAMMAR, value, "")
        case "json_object":
            made = Constraint(ConstraintForm.SCHEMA, _ANY_OBJECT, white_space, harmless=white_space == _WHITE_SPACE)
        case "structural_tag":
            made = Constraint(ConstraintForm.TAG, _object_text(name, value, "structural tag"), white_space)
        case _:
            made = Constraint(ConstraintForm.SCHEMA, _object_text(name, value, "JSON schema"), white_space)
    _check_length(name, made.text)
    for pattern in _all_patterns(name, made):
        length = _written_out(pattern)
        if length > _MOST_WRITTEN_OUT:
            raise InvalidArgumentError(
                f"{name} has a regular expression of {length} characters, with repetitions written out; expected "
                f"{_MOST_WRITTEN_OUT} or fewer"
            )
    return made


def _choice(name: str, value: Any) -> Constraint:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise InvalidArgumentError(f"{name} is none; expected an array of texts, none empty")
    if len(value) > _MOST_CHOICES:
        raise InvalidArgumentError(f"{name} has {len(value)} texts; expected {_MOST_CHOICES} or fewer")
    return Constraint(ConstraintForm.REGEX, "|".join(map(_escaped, value)), "", harmless=True)


def _all_patterns(name: str, constraint: Constraint) -> list[str]:
    """The regular expressions in a constraint, as far as they are known before it is read."""
    try:
        match constraint.form:
            case ConstraintForm.SCHEMA:
                return [*_patterns(json.loads(constraint.text)), constraint.white_space]
            case ConstraintForm.TAG:
                schemas = schemas_of_tag(name, json.loads(constraint.text))
                return [*_patterns(schemas), constraint.white_space]
            case ConstraintForm.REGEX if not constraint.harmless:
                return [constraint.text]
            case _:
                return []
    except RecursionError:
        raise InvalidArgumentError(f"{name} is too deep") from None


def _object_text(name: str, value: Any, what: str) -> str:
    """An object, which may be given as a text of it, as JSON."""
    try:
        if isinstance(value, str):
            _check_length(name, value)
            value = json.loads(value)
        if not isinstance(value, dict):
            raise InvalidArgumentError(f"{name} is no object; expected a {what}")
        return json.dumps(value)
    except (ValueError, RecursionError):
        raise InvalidArgumentError(f"{name} is no {what} that can be read") from None


def _check_length(name: str, text: str) -> None:
    if len(text) > _MOST_CHARACTERS:
        raise InvalidArgumentError(f"{name} has {len(text)} characters; expected {_MOST_CHARACTERS} or fewer")


def _patterns(schema: Any) -> Iterator[str]:
    """All regular expressions in a schema."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in ("pattern", "whitespace_pattern") and isinstance(value, str):
                yield value
            elif name == "patternProperties" and isinstance(value, dict):
                yield from value
            yield from _patterns(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from _patterns(each)


def _escaped(text: str) -> str:
    """A regular expression for this text alone."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~\-]", lambda found: "\\" + found[0], text)


_ATOM = re.compile(r"\\[xuUpP]\{[^}]{0,60}\}|\\.|\[\^?\]?|\{(\d{1,10})(?:,(\d{0,10}))?\}|.", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[a-zA-Z-]*x")


def _written_out(pattern: str) -> int:
    """About how many characters a regular expression has with its repetitions written out. It is not checked: what is
    wrong in it is found when it is read.

    Raises:
        InvalidArgumentError: it has blanks that mean nothing (the flag ``x``).
    """
    sums, last, classes = [0], 0, 0  # of the groups that are open; of the last part; how deep in character classes
    for found in _ATOM.finditer(pattern):
        atom = found[0]
        if classes:
            classes += (atom[0] == "[") - (atom == "]")
        elif atom[0] == "[":
            classes = last = 1
            sums[-1] += 1
        elif atom == "(":
            if _VERBOSE.match(pattern, found.start()):
                raise InvalidArgumentError("the regular expression has the flag x, which is not known here")
            sums.append(0)
        elif atom == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif found[1] is not None:
            more = last * (max(int(found[1]), int(found[2] or 0)) - 1)
            sums[-1] += more
            last += more
        elif atom not in ("*", "+", "?", "|"):
            last = 1
            sums[-1] += 1
    return sum(sums)
