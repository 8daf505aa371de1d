"""The slot actor: one slot of a model that serves sequences (docs/reference/sequences.md).

`engine.scheduling.sequence.slot_core` decides; it has the sequence's requests, idle deadline and implicit state.

Rules:
 1. A slot is made when a sequence gets it, and ends when its batcher dismisses it. Its task is a child of its model. It
    sleeps until the idle deadline; requests go through the slot in turns.
 2. The idle deadline is put off by each request and costs nothing then: the task wakes at the earlier one, and looks
    again (`actor`, rule 8).
 3. Each request in its mailbox and in its queue holds a share of the server's budget, which bounds them.
 4. A slot that dies takes its sequence with it. Its supervisor tells the scheduler, whose core refuses what the slot
    held, and gives its place to another slot.

Messages: `SlotMessage` of the batcher's core; it answers with a `SlotReport` in the scheduler's mailbox.

States:

    SERVING ─ Dismiss ▶ FINISHED
    SERVING ─ receive or act raises ▶ FAILED: the scheduler is told
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

import trio

from ..engine.clock import Clock
from ..engine.scheduling.core import SchedulerCore
from ..engine.scheduling.sequence.batcher import SequenceBatcher
from ..engine.scheduling.sequence.slot import Dismiss, Slot, SlotMessage
from ..engine.scheduling.sequence.slot_core import Failed, SlotCore, SlotReport
from .actor import Actor, Turn

logger = logging.getLogger("trireme.sequence")

Report = Callable[[SlotReport], None]


class SlotActor(Actor[SlotMessage]):
    """One slot.

    Args:
        model: its name, for people.
        report: leaves a report in the scheduler's mailbox.
    """

    def __init__(self, model: str, core: SlotCore, clock: Clock, turn: Turn, report: Report) -> None:
        super().__init__(model, turn)
        self._core = core
        self._clock = clock
        self._report = report

    def receive(self, message: SlotMessage) -> None:
        if isinstance(message, Dismiss):
            self.finish()
            return
        report = self._core.receive(message, self._clock.now_s())
        if report is not None:
            self._report(report)

    def act(self) -> None:
        core = self._core
        now = self._clock.now_s()
        while (report := core.next_report(now)) is not None:
            self._report(report)
        self.deadline_s = core.idle_s


class SlotActors:
    """Makes the slots of a model in its nursery, and tells the scheduler when they die."""

    def __init__(self, model: str, nursery: trio.Nursery, clock: Clock, turn: Turn, report: Report) -> None:
        self._model = model
        self._nursery = nursery
        self._clock = clock
        self._turn = turn
        self._report = report

    def serve(self, core: SchedulerCore) -> None:
        """Make the slots of this core, which is a `SequenceBatcher`."""
        cast(SequenceBatcher, core).use_slots(self.start)

    def start(self, slot: Slot, core: SlotCore) -> Callable[[SlotMessage], None]:
        """Make the actor of a slot; what leaves a message in its mailbox."""
        actor = SlotActor(self._model, core, self._clock, self._turn, self._report)
        self._nursery.start_soon(self._keep, actor, slot)
        return actor.mailbox.send_nowait

    async def _keep(self, actor: SlotActor, slot: Slot) -> None:
        try:
            await actor.run()
        except Exception:  # supervision: a slot's death is dealt with here
            logger.exception("%r of model '%s' died", slot, self._model)
            self._report(Failed(slot))
