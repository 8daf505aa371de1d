"""What a text has to be: JSON of a schema, a match of a regular expression, or one of several texts.

The package llguidance says which tokens may come next. Rules:
 1. Tokens that end a text may come where the text may end, and nowhere else. A text to which nothing can be added is
    over by itself.
 2. What is given has a bound: its length; a regular expression's length with all repetitions written out; and what the
    package may spend on it (`_LIMITS`), when it is read and at each token. Beyond that, the request fails.
 3. Constraints that were read are kept, the latest `_MOST_KEPT`, for further texts. These share the states that the
    package finds on its way, of which there is a bound. A text that comes upon the bound goes on with states of its
    own; upon the second time it fails.
 4. JSON has no more white space between its parts than `_WHITE_SPACE`, unless the request says otherwise: a text would
    not end if its network always finds blanks most probable.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InvalidArgumentError, TriremeError
from ...plugins import import_package
from .tokenizer import Tokenizer

_MOST_CHARACTERS = 65_536
_MOST_WRITTEN_OUT = 20_000
_MOST_CHOICES = 1_000
_MOST_KEPT = 16
_WHITE_SPACE = r"[ \t\n\r]{1,20}"

_LIMITS: Mapping[str, int | bool] = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}
"""What llguidance may spend; see `LLParserLimits` there."""

_KINDS = ("json", "json_object", "regex", "choice")


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a request asks for.

    Attributes:
        text: a JSON schema, or a regular expression.
        white_space: in JSON, as a regular expression; empty for none.
    """

    is_json: bool
    text: str
    white_space: str = _WHITE_SPACE


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
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
            raise InvalidArgumentError(f"{name} is none; expected an array of texts, none empty")
        if len(value) > _MOST_CHOICES:
            raise InvalidArgumentError(f"{name} has {len(value)} texts; expected {_MOST_CHOICES} or fewer")
        made = Constraint(False, "|".join(map(_escaped, value)), "")
        _check_length(name, made.text)
        return made
    if kind == "regex":
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{name} is no text; expected a regular expression")
        made = Constraint(False, value, "")
        patterns = [value]
    else:
        made = Constraint(True, '{"type":"object"}' if kind == "json_object" else _schema(name, value), white_space)
        try:
            patterns = [*_patterns(json.loads(made.text)), white_space]
        except RecursionError:
            raise InvalidArgumentError(f"{name} is too deep") from None
    _check_length(name, made.text)
    for pattern in patterns:
        length = _written_out(pattern)
        if length > _MOST_WRITTEN_OUT:
            raise InvalidArgumentError(
                f"{name} has a regular expression of {length} characters, with repetitions written out; expected "
                f"{_MOST_WRITTEN_OUT} or fewer"
            )
    return made


def _schema(name: str, value: Any) -> str:
    """A JSON schema as text."""
    try:
        if isinstance(value, str):
            _check_length(name, value)
            value = json.loads(value)
        if not isinstance(value, dict):
            raise InvalidArgumentError(f"{name} is no object; expected a JSON schema")
        return json.dumps(value)
    except (ValueError, RecursionError):
        raise InvalidArgumentError(f"{name} is no JSON schema that can be read") from None


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


class ConstrainedText:
    """Which token may come next in one text, as it grows.

    Args:
        matcher: for it alone.
        anew: makes another one (rule 3).
        end: llguidance's token for the end.
        ends: those that the model has, and `stops` those of the request: they may come where the text may end, these
            elsewhere as well.

    Attributes:
        allowed: bool [vocabulary].
        over: nothing can be added to it.

    Raises:
        InvalidArgumentError: no text is what was asked for; so does `take`, if nothing can come any more.
    """

    def __init__(
        self,
        matcher: Any,
        anew: Callable[[], Any],
        end: int,
        vocabulary: int,
        ends: Sequence[int],
        stops: Sequence[int],
    ) -> None:
        self._matcher = matcher
        self._anew: Callable[[], Any] | None = anew
        self._end = end
        self._ends = [token for token in ends if 0 <= token < vocabulary]
        self._stops = [token for token in stops if 0 <= token < vocabulary]
        self._tokens: list[int] = []
        self._vocabulary = vocabulary
        self.allowed = np.zeros(vocabulary, bool)
        self.over = False
        self._look()
        if not self.allowed.any():
            raise InvalidArgumentError("the text cannot be what it has to be: only an empty one would be")

    def take(self, token: int) -> None:
        """This one has come, which was allowed."""
        if token in self._ends or token in self._stops:
            self.over = True
            return
        self._tokens.append(token)
        self._matcher.consume_token(token)
        self._look()

    def _look(self) -> None:
        found = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8) != 0
        if self._matcher.is_error():
            if self._anew is None or not self._tokens:
                raise InvalidArgumentError(f"the text cannot be what it has to be: {_reason(self._matcher)}")
            self._matcher, self._anew = self._anew(), None
            self._matcher.consume_tokens(self._tokens)
            self._look()
            return
        allowed = np.zeros(max(self._vocabulary, len(found)), bool)
        allowed[: len(found)] = found
        may_end = bool(found[self._end])
        allowed[self._end] = False
        allowed = allowed[: self._vocabulary]
        allowed[self._ends] = False
        self.over = not allowed.any()
        if self.over and not may_end:
            raise InvalidArgumentError("the text cannot be what it has to be: no token of the model goes on with it")
        allowed[self._ends] = may_end
        if may_end:
            allowed[self._stops] = True
        self.allowed = allowed


def _reason(matcher: Any) -> str:
    """What llguidance says is wrong, in a line."""
    text = _line(matcher.get_error().split("\n<", 1)[0])
    return {"NoExtensionBias": "nothing fulfils it"}.get(text, text)


def _line(text: str) -> str:
    return " ".join(text.split())[:400]


class Constraints:
    """The constraints of a model's texts. Used by one thread.

    Args:
        vocabulary: tokens of the network.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._made: tuple[Any, Any, int] | None = None  # llguidance, its tokenizer, its token for the end
        self._kept: OrderedDict[Constraint, Any] = OrderedDict()

    def prepare(self) -> None:
        """Have the first one find what takes long to make. If it cannot be made, that one is told why."""
        with suppress(TriremeError):
            self._library()

    def begin(
        self, constraint: Constraint, count: int, ends: Sequence[int], stops: Sequence[int]
    ) -> list[ConstrainedText]:
        """So many texts under a constraint.

        Raises:
            InvalidArgumentError: the constraint is malformed, or nothing fulfils it, or the model has no tokenizer.
            UnavailableError: the package is missing.
        """
        _, _, end = self._library()
        matcher = self._kept.pop(constraint, None)
        if matcher is None:
            matcher = self._compiled(constraint)
        matchers = [matcher.deep_copy() for _ in range(count)]

        def anew() -> Any:
            self._kept.pop(constraint, None)
            return self._compiled(constraint)

        texts = [ConstrainedText(each, anew, end, self._vocabulary, ends, stops) for each in matchers]
        self._kept[constraint] = matcher
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return texts

    def _compiled(self, constraint: Constraint) -> Any:
        library, tokens, _ = self._library()
        matcher = library.LLMatcher
        if constraint.is_json:
            options: dict[str, Any] = {"whitespace_flexible": bool(constraint.white_space)}
            if constraint.white_space:
                options["whitespace_pattern"] = constraint.white_space
            try:
                grammar = matcher.grammar_from_json_schema(constraint.text, overrides=options)
            except ValueError as error:
                raise InvalidArgumentError(f"the constraint cannot be used: {_line(str(error))}") from None
        else:
            grammar = matcher.grammar_from_regex(constraint.text)
        made = matcher(tokens, grammar, log_level=0, limits=library.LLParserLimits(**_LIMITS))
        if made.is_error():
            raise InvalidArgumentError(f"the constraint cannot be used: {_reason(made)}")
        return made

    def _library(self) -> tuple[Any, Any, int]:
        if self._made is None:
            library = import_package("llguidance", "constraints of generated text need", "generate")
            text, end = self._tokenizer.with_end()
            try:
                self._made = library, library.LLTokenizer(text, eos_token=end), end
            except ValueError as error:
                raise InvalidArgumentError(
                    f"texts of this model cannot be constrained: llguidance does not know its tokenizer ({error})"
                ) from None
        return self._made
