"""Which models leave memory to make room for others (`residency`, rules 2, 3 and 8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from .residents import STAYING, Residence, Resident


@dataclass(frozen=True, slots=True)
class Evictions:
    """What is to leave; if that does not make enough room, why not.

    Attributes:
        short: bytes that are missing.
        again_s: when the choice may be another one though nothing has happened, or None.
    """

    leaving: tuple[Resident, ...]
    short: int = 0
    again_s: float | None = None


def choose_evictions(
    in_memory: Collection[Resident],
    needed: int,
    now_s: float,
    *,
    patient_until_s: float,
    priority: float,
    held: Collection[str],
    is_busy: Callable[[Resident], bool],
) -> Evictions:
    """Make room for a model.

    Args:
        in_memory: the one used least recently first.
        needed: bytes.
        patient_until_s: from then on busy ones may leave, too.
        priority: of the model that is wanted.
        held: names of those that must stay.
    """
    movable = sorted(
        (each for each in in_memory if each.state is Residence.RESIDENT and not each.pinned and each.name not in held),
        key=lambda each: each.priority,
    )
    free = [each for each in movable if each.stays_until_s <= now_s]
    patient = now_s < patient_until_s
    lower = [each for each in free if each.priority <= priority]
    candidates = [each for each in lower if not is_busy(each)]
    others = not patient or needed > sum(
        each.nbytes for each in in_memory if each.state in STAYING and not each.pinned and each.priority <= priority
    )
    if not patient:
        candidates += [each for each in lower if is_busy(each)]
    if others:
        higher = [each for each in free if each.priority > priority]
        candidates += [each for each in higher if not is_busy(each)]
        if not patient:
            candidates += [each for each in higher if is_busy(each)]
    chosen, short = _take(candidates, needed, in_memory)
    if short <= 0:
        return Evictions(tuple(_only_needed(chosen, -short)))
    times = [each.stays_until_s for each in movable if each.stays_until_s > now_s]
    times += [patient_until_s] * patient
    return Evictions(tuple(chosen), short, min(times, default=None))


def _take(candidates: list[Resident], needed: int, in_memory: Iterable[Resident]) -> tuple[list[Resident], int]:
    """The first ones that make enough room, and what is missing. One that others need leaves only with all of them."""
    gone = Counter(name for each in in_memory if each.state not in STAYING for name in each.needs)
    chosen: list[Resident] = []
    left = list(candidates)
    while needed > 0:
        model = next((each for each in left if each.users <= gone[each.name]), None)
        if model is None:
            break
        left.remove(model)
        chosen.append(model)
        needed -= model.nbytes
        gone.update(model.needs)
    return chosen, needed


def _only_needed(chosen: list[Resident], spare: int) -> list[Resident]:
    """Without those that make more room than it takes, used most recently first."""
    leaving = list(chosen)
    for model in reversed(chosen):
        if model.nbytes <= spare and not any(each.name in model.needs for each in leaving):
            spare -= model.nbytes
            leaving.remove(model)
    return leaving
