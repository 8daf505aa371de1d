"""How the next token is drawn from a model's logits.

The steps, in this order, each of which may be left out:
 1. Bias: a number is added to the logits of some tokens.
 2. Penalties: of tokens of the prompt or of the text so far a positive logit is divided by `repetition`, a negative
    one multiplied; from those of the text so far `presence` is taken away, and `frequency` for each time that they are
    there.
 3. Constraint: what is not allowed is out.
 4. Temperature 0 takes the largest logit, the first one of equals. Another one divides all logits.
 5. What is not among the `top_k` largest is out; then what is not among the fewest whose probabilities make up `top_p`;
    then what has less than `min_p` times the largest probability.
 6. One of the rest is drawn by probability. What is drawn depends on the logits, the seed, the choice and the place in
    the text alone, and so not on what else is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import numpy as np

from ..errors import InternalError, InvalidArgumentError

_MOST_LOGPROBS = 20
_MOST_SORTED = 1_024
"""Among so many tokens are, as a rule, those that make up a `top_p`; all are sorted only if they do not."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a request asks for.

    Attributes:
        temperature: 0 for the most probable token each time, at most 2.
        top_k: tokens, 0 for all.
        top_p: share of the probability, above 0 and up to 1.
        min_p: share of the largest probability, 0 to 1.
        repetition: above 0; 1 for no penalty.
        presence, frequency: -2 to 2.
        bias: by token, -100 to 100.
        seed: any number.
        logprobs: log-probabilities wanted of so many of the most probable tokens beside the one drawn; None for none.

    Raises:
        InvalidArgumentError: something is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0, 2)
        _check("top_k", self.top_k, 0, math.inf)
        _check("top_p", self.top_p, 0, 1, above=True)
        _check("min_p", self.min_p, 0, 1)
        _check("repetition_penalty", self.repetition, 0, math.inf, above=True)
        _check("presence_penalty", self.presence, -2, 2)
        _check("frequency_penalty", self.frequency, -2, 2)
        for token, value in self.bias.items():
            _check(f"the logit bias of token {token}", value, -100, 100)
        if self.logprobs is not None:
            _check("logprobs", self.logprobs, 0, _MOST_LOGPROBS)


class DrawnToken(NamedTuple):
    """A token, and the log-probabilities that were asked for: its own, and the largest with their tokens. They are
    those of the model's own logits."""

    token: int
    logprob: float = math.nan
    most_probable: Sequence[tuple[int, float]] = ()


class Sampler:
    """Draws the tokens of one generation.

    Args:
        prompt: its tokens, all less than `vocabulary`.
        choice: of the request's.

    Raises:
        InvalidArgumentError: a bias for a token that there is not.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocabulary: int, choice: int = 0) -> None:
        self.sampling = sampling
        self._choice = choice
        self._place = 0
        unknown = [token for token in sampling.bias if not 0 <= token < vocabulary]
        if unknown:
            raise InvalidArgumentError(
                f"a logit bias for token {unknown[0]}; expected 0 to {vocabulary - 1}", about="logit_bias"
            )
        self._bias = (
            np.fromiter(sampling.bias.keys(), np.int64, len(sampling.bias)),
            np.fromiter(sampling.bias.values(), np.float32, len(sampling.bias)),
        )
        self._seen = np.unique(np.asarray(prompt, np.int64)) if sampling.repetition != 1.0 else None
        counts = sampling.presence or sampling.frequency
        self._counts = np.zeros(vocabulary, np.int32) if counts else None

    @property
    def _takes_largest(self) -> bool:
        """The model's own largest logit is what is drawn, and nothing is told of it."""
        asked = self.sampling
        changed = asked.bias or self._seen is not None or self._counts is not None
        return not changed and asked.temperature == 0 and asked.logprobs is None

    def draw(self, logits: np.ndarray, allowed: np.ndarray | None = None) -> DrawnToken:
        """The next token.

        Args:
            logits: float32, of the whole vocabulary; left as they are.
            allowed: bool, of the whole vocabulary: the tokens that a constraint allows.

        Raises:
            InternalError: the logits are no numbers, or nothing is allowed.
        """
        largest = int(logits.argmax())  # the first one that is no number, if there is one
        if not logits[largest] < np.inf:
            raise InternalError("the model's logits are not numbers (NaN or infinite)")
        if allowed is None and self._takes_largest and logits[largest] > -np.inf:
            self._place += 1
            return DrawnToken(largest)
        changed = self._changed(logits)
        if allowed is not None:
            changed = np.where(allowed, changed, -np.inf)
        if not changed.max() > -np.inf:
            raise InternalError("no token is possible any more")
        token = int(changed.argmax()) if self.sampling.temperature == 0 else self._drawn(changed)
        self._note(token)
        return self._told(token, logits)

    def _changed(self, logits: np.ndarray) -> np.ndarray:
        """Steps 1 and 2."""
        changed = logits.astype(np.float32, copy=True)
        tokens, values = self._bias
        changed[tokens] += values
        if self._seen is not None:
            seen, factor = changed[self._seen], np.float32(self.sampling.repetition)
            changed[self._seen] = np.where(seen > 0, seen / factor, seen * factor)
        if self._counts is not None:
            changed -= np.float32(self.sampling.presence) * (self._counts > 0)
            changed -= np.float32(self.sampling.frequency) * self._counts
        return changed

    def _drawn(self, logits: np.ndarray) -> int:
        """Steps 4 to 6."""
        sampling = self.sampling
        weights = np.exp((logits.astype(np.float64) - float(logits.max())) / sampling.temperature)
        if not sampling.top_k and sampling.top_p == 1:
            order = np.flatnonzero(weights >= sampling.min_p)  # the largest is 1
            sums = weights[order].cumsum()
        else:
            order = _largest(weights, sampling.top_k or _MOST_SORTED)
            sums = weights[order].cumsum()
            share = sampling.top_p * (sums[-1] if sampling.top_k else weights.sum())
            if sums[-1] < share:
                order = _largest(weights, len(weights))
                sums = weights[order].cumsum()
            count = int(np.searchsorted(sums, share)) + 1 if sampling.top_p < 1 else len(order)
            count = min(count, int((weights[order] >= sampling.min_p).sum()))
            order, sums = order[:count], sums[:count]
        place = _uniform(sampling.seed, self._choice, self._place) * sums[-1]
        return int(order[min(int(np.searchsorted(sums, place, side="right")), len(order) - 1)])

    def _note(self, token: int) -> None:
        self._place += 1
        if self._seen is not None:
            self._seen = np.union1d(self._seen, [token])
        if self._counts is not None:
            self._counts[token] += 1

    def _told(self, token: int, logits: np.ndarray) -> DrawnToken:
        wanted = self.sampling.logprobs
        if wanted is None:
            return DrawnToken(token)
        exact = logits.astype(np.float64)
        logprobs = exact - exact.max()
        logprobs -= math.log(np.exp(logprobs).sum())
        most = np.argsort(-logprobs, kind="stable")[:wanted]
        return DrawnToken(token, float(logprobs[token]), [(int(each), float(logprobs[each])) for each in most])


def _largest(weights: np.ndarray, count: int) -> np.ndarray:
    """Tokens of the so many largest weights, from the largest on; of equals the first come first."""
    if count < len(weights):
        least = np.partition(weights, -count)[-count]
        found = np.flatnonzero(weights >= least)
    else:
        found = np.arange(len(weights))
    return found[np.argsort(-weights[found], kind="stable")][:count]


def _uniform(seed: int, choice: int, place: int) -> float:
    """A number of [0, 1) that depends on these alone."""
    return Random(f"{seed} {choice} {place}").random()


def _check(name: str, value: float, least: float, most: float, *, above: bool = False) -> None:
    if not least <= value <= most or (above and value == least):
        low = f"more than {least}" if above else f"{least}"
        high = "" if most == math.inf else f" up to {most}" if above else f" to {most}"
        expected = f"{low} or more" if most == math.inf and not above else f"{low}{high}"
        raise InvalidArgumentError(f"{name} is {value}; expected {expected}", about=name)
