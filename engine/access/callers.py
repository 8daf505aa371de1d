"""A caller that was recognised, and what it may do.

Rules:
 1. There are four rights, each for the models that its patterns name. ADMIN includes MANAGE, and MANAGE includes READ.
    INFER stands beside them: who keeps the server running need not be able to use its models.
 2. What is about no model in particular (statistics of all, settings of the log) is asked for with an empty name. Only
    a pattern of stars matches that.
 3. A caller never changes. When the rules are read again, there are new callers, of a higher generation.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..errors import PermissionDeniedError, shown
from ..memo import Memo
from .patterns import LONGEST_NAME, NamePatterns

_DECISIONS = 1024
ALL_MODELS: Final = ""


class Right(enum.Enum):
    """What a caller may do with a model; the value is the key in the access file."""

    __hash__ = object.__hash__

    INFER = "infer"
    READ = "read"
    MANAGE = "manage"
    ADMIN = "admin"


_INCLUDED_IN: Final = {
    Right.INFER: (Right.INFER,),
    Right.READ: (Right.READ, Right.MANAGE, Right.ADMIN),
    Right.MANAGE: (Right.MANAGE, Right.ADMIN),
    Right.ADMIN: (Right.ADMIN,),
}
"""The rights by which a caller has another one."""

Patterns = Mapping[Right, tuple[str, ...]]


class Caller:
    """One caller, as the rules of one generation describe it. Plain values: another process can make the same.

    Args:
        number: stands for the name as long as the server runs, also over reloads.
        patterns: of models, by right; what is left out is not there.
        generation: of the rules (`AccessControl.generation`).
        expires_s: when the credential that it was recognised by ends, on the server's clock; None for never.
    """

    __slots__ = ("_allowed", "_known", "expires_s", "generation", "name", "number", "patterns")

    def __init__(
        self, name: str, number: int, patterns: Patterns, generation: int, expires_s: float | None = None
    ) -> None:
        self.name = name
        self.number = number
        self.patterns = patterns
        self.generation = generation
        self.expires_s = expires_s
        self._allowed: dict[Right, NamePatterns] = {}
        self._known = {right: Memo[bool](_DECISIONS, LONGEST_NAME) for right in Right}

    def until(self, expires_s: float | None) -> Caller:
        """The same caller, recognised by a credential that ends then."""
        if expires_s is None:
            return self
        twin = object.__new__(Caller)
        twin.name, twin.number, twin.patterns, twin.generation = self.name, self.number, self.patterns, self.generation
        twin._allowed, twin._known = self._allowed, self._known
        twin.expires_s = expires_s
        return twin

    def may(self, right: Right, model: str = ALL_MODELS) -> bool:
        """Whether it has a right on a model; without a model, on all of them."""
        known = self._known[right]
        found = known.get(model)
        if found is None:
            allowed = self._allowed.get(right)
            if allowed is None:  # not before: there may be thousands of callers, of which few ever ask
                allowed = self._allowed[right] = NamePatterns(self._patterns_of(right))
            found = model in allowed
            known.remember(model, found)
        return found

    def may_any(self, right: Right) -> bool:
        """Whether it has a right on any model that there could be."""
        return any(True for _ in self._patterns_of(right))

    def _patterns_of(self, right: Right) -> Iterator[str]:
        return (pattern for each in _INCLUDED_IN[right] for pattern in self.patterns.get(each, ()))

    def check(self, right: Right, model: str = ALL_MODELS) -> None:
        """Raises PermissionDeniedError if it does not have a right on a model; without one, on all models."""
        if not self.may(right, model):
            raise self.denied(right, f"model '{shown(model)}'" if model else "all models")

    def check_any(self, right: Right) -> None:
        """Raises PermissionDeniedError if it does not have a right on any model."""
        if not self.may_any(right):
            raise self.denied(right, "any model")

    def denied(self, right: Right, models: str) -> PermissionDeniedError:
        return PermissionDeniedError(f"caller '{self.name}' does not have the right '{right.value}' on {models}")

    def plain(self) -> list[Any]:
        """The caller as values that JSON has; `of_plain` makes the same of them."""
        patterns = {right.value: list(each) for right, each in self.patterns.items()}
        return [self.name, self.number, patterns, self.generation, self.expires_s]

    @classmethod
    def of_plain(cls, values: list[Any]) -> Caller:
        """Raises ValueError, TypeError or AttributeError if `plain` has not made these."""
        name, number, patterns, generation, expires_s = values
        return cls(name, number, {Right(key): tuple(each) for key, each in patterns.items()}, generation, expires_s)

    def expired(self, now_s: float) -> bool:
        return self.expires_s is not None and now_s >= self.expires_s

    def __repr__(self) -> str:
        return f"<Caller {self.name}, generation {self.generation}>"
