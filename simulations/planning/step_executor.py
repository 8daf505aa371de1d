"""The step executors of a planned run: the server's own, on threads that are played (`steps`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import outcome

from ...actors.offload import Outcomes, result_of
from ...actors.step_executor import StepExecutor
from ...engine.backends.interface import ModelInstance
from ..clock import JumpingClock
from .event_loop import PlannedLoop
from .host import HostCosts
from .notes import Notes
from .steps import ModelInSteps, PlayedInstance, StepRests

T = TypeVar("T")

_ALMOST = 1e-6
"""Of a second: less than that holds up no step."""


@dataclass(slots=True)
class _Piece:
    """Work of the thread that an instance would have."""

    done: Outcomes
    then: Outcomes | None
    result: outcome.Outcome[Any]
    number: int = -1
    heard_s: float = 0.0
    texts: int = 0


class _PlayedThread:
    """A `Worker` in virtual time: steps take theirs, all else takes none."""

    def __init__(self, loop: PlannedLoop, clock: JumpingClock, costs: HostCosts | None, notes: Notes) -> None:
        self._loop, self._clock, self._costs, self._notes = loop, clock, costs, notes
        self._instance: PlayedInstance
        self._model: ModelInSteps

    def serve(self, instance: PlayedInstance) -> None:
        """From now on: for this instance."""
        self._instance, self._model, self._number = instance, instance.model, instance.model.instances
        self._model.instances += 1
        self._rests = StepRests(instance.model.planned.rested)
        instance.note = self._notes.text_over

    def put(self, work: Callable[[], object], done: Outcomes, then: Outcomes | None = None) -> None:
        instance = self._instance
        piece = _Piece(done, then, result_of(work))
        step = instance.network.taken()
        if step is None:
            self._loop.at(self._clock.now_s(), self._heard, piece)
            return
        memory = instance.core.memory
        used = 1 - memory.free / memory.count
        now_s = self._clock.now_s()
        piece.number = self._notes.step_begun_at(self._model.index, self._number, step, used, now_s)
        piece.texts = sum(each.draws for each in step.pieces)
        piece.heard_s = self._loop.busy_s
        self._compute(self._model.planned.seconds(step, self._model.chance) + self._rests.more_s(now_s), piece)

    def _compute(self, seconds: float, piece: _Piece) -> None:
        planned = self._model.planned
        if self._loop.cores is None or planned.on_device or planned.cores <= 0:
            self._loop.at(self._clock.now_s() + seconds, self._heard, piece)
        else:
            self._loop.compute(seconds, planned.cores, self._computed, piece)

    def _computed(self, end_s: float, piece: _Piece) -> None:
        self._loop.at(end_s, self._heard, piece)

    def _heard(self, piece: _Piece) -> None:
        """The event loop hears of the end, if it is one (`steps`, rule 3)."""
        if piece.number >= 0:
            worked_s = self._loop.busy_s - piece.heard_s
            more_s = worked_s * self._model.planned.held_up
            if more_s > _ALMOST:
                piece.heard_s = self._loop.busy_s
                self._compute(more_s, piece)
                return
            self._notes.step_ended[piece.number] = self._clock.now_s()
            self._rests.ends(self._clock.now_s())
        if piece.then is not None:
            piece.then(piece.result)
        piece.done(piece.result)
        if piece.texts and self._costs is not None:
            self._loop.work(self._costs.token(self._model.name, piece.texts))

    def close(self) -> None:
        """Nothing to give back."""


class PlannedStepExecutor(StepExecutor):
    """One instance's: the server's own, on a thread that is played."""

    def __init__(self, loop: PlannedLoop, clock: JumpingClock, costs: HostCosts | None, notes: Notes) -> None:
        self._thread = _PlayedThread(loop, clock, costs, notes)
        super().__init__(self._thread)

    async def call(self, work: Callable[[], T]) -> T:
        result = work()
        if isinstance(result, PlayedInstance):
            self._thread.serve(result)
        return result

    async def end_instance(self, instance: ModelInstance) -> None:
        instance.close()
