"""Feeds records to one rule, and tells what it complains of first."""

from __future__ import annotations

from collections.abc import Callable

from trireme.simulations.history import Recorder
from trireme.simulations.invariants.base import Complain, Invariant


class Tape:
    """Plays records by hand.

    Args:
        rule: makes what is to be tried.
    """

    def __init__(self, rule: Callable[[Complain], Invariant]) -> None:
        self.complaints: list[str] = []
        self._rule = rule(lambda violation: self.complaints.append(violation.text))
        self._recorder = Recorder(self)
        self._recorder.listen(self._rule.handlers())

    def now_ns(self) -> int:
        return 0

    def play(self, *records: object) -> str:
        """What it complains of first; empty for nothing. A number among the records is an instant that is over, in
        seconds."""
        for record in records:
            if isinstance(record, int | float):
                self._rule.instant_over(round(record * 1e9))
            else:
                self._recorder.tell(record)
        return self.complaints[0] if self.complaints else ""
