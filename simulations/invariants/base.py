"""What an invariant is.

An invariant is a machine that is fed a history, event by event, and complains when what it guards is broken. It has no
part in the world. Most need to know what stands in which queue and which instance has what to do: `state` keeps that,
once for all, and is brought up to date *after* the invariants have seen an event; so they see the world as it was just
before.

An event must cost an invariant no more than a batch or the number of priority levels, whatever is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...engine.metrics.statistics import ModelStatisticsEntry
from ..history import Handlers


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant was broken: which one, and how, for people."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


Complain = Callable[[Violation], None]


class Invariant:
    """One of them.

    Attributes:
        name: what is promised, in a few words.
    """

    name: ClassVar[str]

    def __init__(self, complain: Complain) -> None:
        self._complain = complain

    def handlers(self) -> Handlers:
        """The events that it wants to see."""
        return {}

    def instant_over(self, now_ns: int) -> None:
        """All that happens at `now_ns` has happened."""

    def reported(self, entries: Iterable[ModelStatisticsEntry], serving: Mapping[str, str]) -> None:
        """The server's own statistics, of a moment when nothing is in flight.

        Args:
            serving: by model, the name of the generation that counts.
        """

    def finish(self) -> None:
        """The history is over."""

    def broken(self, text: str) -> None:
        self._complain(Violation(self.name, text))
