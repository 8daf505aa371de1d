"""Which models can be loaded, while others are still being looked at: their files may have to be fetched first.

Rules:
 1. A model can be loaded when it has been looked at, and none is being looked at that it needs, directly or not. What
    was looked at before, and has not changed, holds nothing up.
 2. A model that could not be read is over, and holds nothing up either.
 3. All that can be loaded at one moment is taken together: a model may need another one of them.
 4. A model is under way from the beginning of the look at it until its load is over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """See above. Models are told apart by their ids; a `T` is what a look has found."""

    def __init__(self) -> None:
        self._looking: set[str] = set()
        self._waiting: dict[str, tuple[T, frozenset[str]]] = {}  # with what each needs
        self._loading: set[str] = set()

    def __contains__(self, identity: str) -> bool:
        """Whether a model is under way (rule 4)."""
        return identity in self._looking or identity in self._waiting or identity in self._loading

    def begin(self, models: Iterable[str]) -> None:
        """These are being looked at from now on. They are not under way."""
        self._looking.update(models)

    def arrived(self, identity: str, found: T, needs: Collection[str]) -> None:
        """A model was looked at, and is to be loaded; it needs these others."""
        self._looking.discard(identity)
        self._waiting[identity] = found, frozenset(needs)

    def take(self) -> dict[str, T]:
        """What can be loaded now (rule 3); until `end`, it is under way."""
        held_up = self._held_up()
        taken = {each: found for each, (found, _) in self._waiting.items() if each not in held_up}
        for each in taken:
            del self._waiting[each]
        self._loading.update(taken)
        return taken

    def _held_up(self) -> set[str]:
        """Rule 1, of those that wait."""
        held_up: set[str] = set()
        more = bool(self._looking)
        while more:
            blocking = self._looking | held_up
            found = {each for each, (_, needs) in self._waiting.items() if not blocking.isdisjoint(needs)}
            more = not found <= held_up
            held_up |= found
        return held_up

    def end(self, models: Iterable[str]) -> None:
        """These could not be read, have not changed, or their loads are over."""
        for each in models:
            self._looking.discard(each)
            self._loading.discard(each)
