"""Slots of stateful models that die (`actors.slot`, rule 4)."""

from __future__ import annotations

from collections.abc import Callable

from ..engine.scheduling.sequence.slot import Assign, Discard, Put, SlotMessage
from ..engine.scheduling.sequence.slot_core import Offer, SlotCore, SlotReport
from .history import request_number

SlotDies = Callable[[int], bool]
"""Whether a slot dies of the request of this number, now."""

MOMENTS = 3
"""By their numbers, requests kill their slot when they come, when they are to be offered, or with what the slot is told
after they were."""


class SlotCrash(Exception):
    """A slot dies of it."""


class DyingSlotCore:
    """A slot's core that may raise. It answers each `Discard`, or what continues the cancelled request would be lost or
    cancelled, by chance."""

    def __init__(self, core: SlotCore, dies: SlotDies) -> None:
        self._core = core
        self._dies = dies
        self._offered = 0

    @property
    def idle_s(self) -> float:
        return self._core.idle_s

    def receive(self, message: SlotMessage, now: float) -> SlotReport | None:
        if not isinstance(message, Discard):
            jobs = [message.job] if isinstance(message, Put) else message.jobs if isinstance(message, Assign) else ()
            for job in jobs:
                self._die_of(request_number(job), 0)
            self._die_of(self._offered, 2)
        return self._core.receive(message, now)

    def next_report(self, now: float) -> SlotReport | None:
        report = self._core.next_report(now)
        if isinstance(report, Offer):
            self._offered = request_number(report.job)
            self._die_of(self._offered, 1)
        return report

    def _die_of(self, request: int, moment: int) -> None:
        if request and request % MOMENTS == moment and self._dies(request):
            raise SlotCrash(f"of request {request}")

    def __len__(self) -> int:
        return len(self._core)

    def __repr__(self) -> str:
        return repr(self._core)
