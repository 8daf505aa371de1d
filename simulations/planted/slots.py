"""Bugs of sequence slots, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.scheduling.sequence.backlog import Vacancies
from ...engine.scheduling.sequence.batcher import SequenceBatcher
from ...engine.scheduling.sequence.slot import Again, Put, Slot, SlotMessage
from ...engine.scheduling.sequence.slot_core import SlotCore


def _reordered_sequence(original: Any, core: SlotCore, message: SlotMessage, now: float) -> Any:
    """A request that comes to a slot where others wait goes before the last of them."""
    report = original(core, message, now)
    if isinstance(message, Put) and len(core._jobs) > 1:
        core._jobs.insert(-2, core._jobs.pop())
    return report


def _comes_back_last(original: Any, core: SlotCore, message: SlotMessage, now: float) -> Any:
    """A request that is to be executed again goes behind the others of its sequence."""
    report = original(core, message, now)
    if isinstance(message, Again):
        core._jobs.rotate(-1)
    return report


def _idle_since_its_first(original: Any, core: SlotCore, message: SlotMessage, now: float) -> Any:
    """The idle deadline is not put off: a sequence is over when its first request is too long ago."""
    idle_s = core.idle_s
    report = original(core, message, now)
    if isinstance(message, Put):
        core.idle_s = idle_s
    return report


def _loses_a_request(original: Any, core: SlotCore, message: SlotMessage, now: float) -> Any:
    """A slot with two requests loses the next one."""
    report = original(core, message, now)
    if isinstance(message, Put) and len(core._jobs) > 2:
        core._jobs.pop()
    return report


def _offers_before_they_settle(original: Any, core: SlotCore, now: float) -> Any:
    """A slot with three requests offers the second before the first is settled."""
    if len(core) > 2:
        core._offered = 0
    return original(core, now)


def _slot_released_twice(original: Any, vacancies: Vacancies, slot: Slot) -> None:
    """A slot that becomes free is put down as free twice, so that two sequences get it."""
    original(vacancies, slot)
    if slot.number:
        original(vacancies, slot)


def _place_lost_with_its_slot(original: Any, batcher: SequenceBatcher, slot: Slot) -> None:
    """A slot that died is not replaced, nor are the free slots of its instance given away any more."""
    original(batcher, slot)
    batcher._vacancies.forget(slot.instance)


def _outlives_its_slot(original: Any, batcher: SequenceBatcher, slot: Slot) -> None:
    """The sequence of a slot that died can be continued."""
    sequence = slot.sequence
    goes_on = sequence is not None and not sequence.over
    original(batcher, slot)
    if sequence is not None and goes_on:
        sequence.over = False
        batcher._known[sequence.id] = sequence


SLOT_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "reordered-sequence": (SlotCore, "receive", _reordered_sequence),
    "comes-back-last": (SlotCore, "receive", _comes_back_last),
    "idle-since-its-first": (SlotCore, "receive", _idle_since_its_first),
    "offers-before-they-settle": (SlotCore, "next_report", _offers_before_they_settle),
    "slot-loses-a-request": (SlotCore, "receive", _loses_a_request),
    "place-lost-with-its-slot": (SequenceBatcher, "_slot_failed", _place_lost_with_its_slot),
    "sequence-outlives-its-slot": (SequenceBatcher, "_slot_failed", _outlives_its_slot),
    "slot-released-twice": (Vacancies, "add", _slot_released_twice),
}
