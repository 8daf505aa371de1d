"""Which tokens may come next in a text that has to be something: JSON of a schema, a match of a regular expression or
of a grammar, or one of several texts.

The package llguidance says it. Rules:
 1. Tokens that end a text may come where the text may end, and nowhere else. A text to which nothing can be added is
    over by itself.
 2. What a constraint may take has bounds: when it is asked for (`asked_constraints`), when it is read, in a process of
    its own first (`constraint_trial`), and at each token (`LIMITS`). Beyond that, the request fails.
 3. Constraints that were read are kept, the latest `_MOST_KEPT`, for further texts. These share the states that the
    package finds on its way, of which there is a bound. A text that comes upon the bound goes on with states of its
    own; upon the second time it fails.
 4. JSON has no more white space between its parts than the constraint says: a text would not end if its network always
    finds blanks most probable.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...errors import InvalidArgumentError, TriremeError
from ...plugins import import_package
from .asked_constraints import CONSTRAINT, Constraint, ConstraintForm
from .constraint_trial import ConstraintTrial, in_a_line
from .structural_tags import lark_of_tag
from .tokenizer import Tokenizer

_MOST_KEPT = 16

LIMITS: Mapping[str, int | bool] = {
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
            raise _unusable("the text cannot be what it has to be: only an empty one would be")

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
                raise _unusable(f"the text cannot be what it has to be: {_reason(self._matcher)}")
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
            raise _unusable("the text cannot be what it has to be: no token of the model goes on with it")
        allowed[self._ends] = may_end
        if may_end:
            allowed[self._stops] = True
        self.allowed = allowed


def _reason(matcher: Any) -> str:
    """What llguidance says is wrong, in a line."""
    text = in_a_line(matcher.get_error())
    return {"NoExtensionBias": "nothing fulfils it"}.get(text, text)


def _unusable(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(text, about=CONSTRAINT)


class Constraints:
    """The constraints of a model's texts. Used by the instance's thread, but for `read`.

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

    def known(self, constraint: Constraint) -> bool:
        """Whether it is kept, so that it need not be read."""
        return constraint in self._kept

    def read(self, constraint: Constraint, trial: ConstraintTrial) -> Any:
        """What `begin` needs of a constraint that is not known. May take long; called by one other thread.

        Raises:
            InvalidArgumentError: the constraint is malformed, or too large, or the model has no tokenizer.
            CancelledError: the trial was cancelled.
            UnavailableError: the package is missing.
        """
        library, _, _ = self._library()
        if not constraint.harmless:
            trial.run(library, self._grammar(constraint), LIMITS, self._tokenizer.added)
        made = self._compiled(constraint)
        made.deep_copy().compute_logit_bias()  # finds states that all texts of it share
        return made

    def begin(
        self, constraint: Constraint, read: Any, count: int, ends: Sequence[int], stops: Sequence[int]
    ) -> list[ConstrainedText]:
        """So many texts under a constraint.

        Args:
            read: what `read` has given; None if the constraint is known.

        Raises:
            InvalidArgumentError: nothing fulfils it.
        """
        _, _, end = self._library()
        matcher = self._kept.pop(constraint, read)
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
        grammar = self._grammar(constraint)
        made = library.LLMatcher(tokens, grammar, log_level=0, limits=library.LLParserLimits(**LIMITS))
        if made.is_error():
            raise _unusable(f"the constraint cannot be used: {_reason(made)}")
        return made

    def _grammar(self, constraint: Constraint) -> str:
        """As llguidance takes it."""
        library, _, _ = self._library()
        matcher = library.LLMatcher
        match constraint.form:
            case ConstraintForm.SCHEMA:
                options: dict[str, Any] = {"whitespace_flexible": bool(constraint.white_space)}
                if constraint.white_space:
                    options["whitespace_pattern"] = constraint.white_space
                try:
                    return matcher.grammar_from_json_schema(constraint.text, overrides=options)
                except ValueError as error:
                    raise _unusable(f"the constraint cannot be used: {in_a_line(str(error))}") from None
            case ConstraintForm.REGEX:
                return matcher.grammar_from_regex(constraint.text)
            case ConstraintForm.GRAMMAR:
                return matcher.grammar_from_lark(constraint.text)
            case ConstraintForm.TAG:
                tag = json.loads(constraint.text)
                return matcher.grammar_from_lark(lark_of_tag(tag, constraint.white_space, self._tokenizer.added))

    def _library(self) -> tuple[Any, Any, int]:
        if self._made is None:
            library = import_package("llguidance", "constraints of generated text need", "generate")
            text, end = self._tokenizer.with_end()
            try:
                self._made = library, library.LLTokenizer(text, eos_token=end), end
            except ValueError as error:
                raise _unusable(
                    f"texts of this model cannot be constrained: llguidance does not know its tokenizer ({error})"
                ) from None
        return self._made
