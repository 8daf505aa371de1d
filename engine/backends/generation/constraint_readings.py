"""Constraints that are being read, aside from the steps, and the requests that wait for them.

A constraint is read once for all requests that have it. It is read no further when none is left that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, Generic, TypeVar

from ...errors import TriremeError, backend_failure
from .asked_constraints import Constraint
from .constraint_trial import ConstraintTrial
from .constraints import Constraints

R = TypeVar("R")
Aside = Callable[[Callable[[], Any], Callable[[Any], object]], None]
"""See `SteppedInstance`."""


class _Reading(Generic[R]):
    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.trial = ConstraintTrial()
        self.waiting: dict[R, None] = {}


class ConstraintReadings(Generic[R]):
    """Those of an instance; used on the event loop.

    Args:
        ready: called with a request and what was read for it (`Constraints.begin`), or why it cannot be read.
    """

    def __init__(self, constraints: Constraints, ready: Callable[[R, Any], None]) -> None:
        self._constraints = constraints
        self._ready = ready
        self._readings: dict[Constraint, _Reading[R]] = {}

    def wait(self, request: R, constraint: Constraint, aside: Aside) -> None:
        """A request waits for its constraint."""
        reading = self._readings.get(constraint)
        if reading is None:
            reading = self._readings[constraint] = _Reading(constraint)
            aside(partial(self._read, reading), partial(self._have_read, reading))
        reading.waiting[request] = None

    def leave(self, request: R, constraint: Constraint) -> None:
        """A request waits no more, if it has waited."""
        reading = self._readings.get(constraint)
        if reading is not None and request in reading.waiting:
            del reading.waiting[request]
            if not reading.waiting:
                del self._readings[constraint]
                reading.trial.cancel()

    def close(self) -> None:
        """Nothing is to be read any more."""
        for reading in self._readings.values():
            reading.trial.cancel()

    def _read(self, reading: _Reading[R]) -> Any:
        """On another thread."""
        try:
            return self._constraints.read(reading.constraint, reading.trial)
        except Exception as error:  # noqa: BLE001 - of those that wait for it, whatever it is
            return backend_failure(error)

    def _have_read(self, reading: _Reading[R], found: Any) -> None:
        if self._readings.get(reading.constraint) is reading:
            del self._readings[reading.constraint]
        for request in list(reading.waiting):
            self._ready(request, copy(found) if isinstance(found, TriremeError) else found)
