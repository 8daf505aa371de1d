"""Which target of a route a request goes to.

Rules:
 1. Requests with the same key go to the same target while weights, and which targets can serve, stay as they are. Each
    target draws a number for the key, from the two alone; the one whose number is greatest for its weight is taken
    (weighted rendezvous hashing). So of many keys each target has its weight's share, in every process alike.
 2. A weight that changes moves only keys to or from that target, and no more than its share changes by. A target that
    cannot serve is left out: only its own keys move, and they come back with it.
 3. Requests without a key go by turns, so that after any n of them each target has had its share, to within a few.
 4. A target of weight 0 gets nothing, unless all that can serve have 0: then there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import blake2b

from .route import Target

_BYTES = 8
_SCALE = 2.0 ** (-8 * _BYTES)
_GOLDEN = (math.sqrt(5) - 1) / 2


class TargetShares:
    """Targets with their weights; the weights need not add up to anything, as some targets may not be able to serve."""

    __slots__ = ("_draws", "_only", "_total", "_turn", "weights")

    def __init__(self, weights: Sequence[tuple[Target, float]], turn: float = 0.0) -> None:
        self.weights = tuple((target, weight) for target, weight in weights if weight > 0)
        self._draws = [(_drawing(target), weight, target) for target, weight in self.weights]
        self._only = self.weights[0][0] if self.weights else None
        self._total = sum(weight for _, weight in self.weights)
        self._turn = turn

    @property
    def turn(self) -> float:
        """Where the turns are, for those that go on when weights change."""
        return self._turn

    def of_key(self, key: bytes) -> Target | None:
        """Rule 1; None if there is no target."""
        if len(self._draws) < 2:
            return self._only
        best, found = -1.0, None
        for draw, weight, target in self._draws:
            score = weight / draw(key)
            if score > best:
                best, found = score, target
        return found

    def next(self) -> Target | None:
        """Rule 3; None if there is no target."""
        if len(self._draws) < 2:
            return self._only
        self._turn = (self._turn + _GOLDEN) % 1.0
        left = self._turn * self._total
        for target, weight in self.weights:
            left -= weight
            if left < 0:
                return target
        return self.weights[-1][0]


def _drawing(target: Target) -> Callable[[bytes], float]:
    """Draws for a key a number that is distributed exponentially, above 0."""
    begun = blake2b(str(target).encode(), digest_size=_BYTES)

    def draw(key: bytes) -> float:
        hashed = begun.copy()
        hashed.update(b"\0" + key)
        return -math.log((int.from_bytes(hashed.digest()) + 0.5) * _SCALE) or _SCALE

    return draw
