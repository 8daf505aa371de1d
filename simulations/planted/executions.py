"""Bugs of executions in place, and of the order in which others end, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...actors.instance import Instance
from ...actors.messages import Executed
from ...actors.scheduler import Scheduler
from ...engine.errors import TriremeError
from ...engine.scheduling.core import InstanceId
from ...engine.scheduling.dispatcher import Dispatcher, Seat


def _still_held_in_place(
    original: Any, dispatcher: Dispatcher, instance: InstanceId, jobs: Any, now: float, rescheduled: Any, in_place: bool
) -> None:
    """A batch that was executed in place counts as held for ever."""
    if in_place and instance in dispatcher._instances:
        dispatcher._instances[instance].held += 1
    original(dispatcher, instance, jobs, now, rescheduled, in_place)


def _answered_in_place(original: Any, scheduler: Scheduler, executed: Executed) -> None:
    """Answers of a batch that was executed in place do not wait for their turn."""
    original(scheduler, executed)
    if executed.in_place:
        order, scheduler._order = scheduler._order, None
        scheduler._send_answers()
        scheduler._order = order


def _one_batch_answers(original: Any, scheduler: Scheduler) -> None:
    """Of several batches that are over in one turn, the last is answered."""
    del scheduler._over[:-1]
    original(scheduler)


def _late_end_counts(original: Any, instance: Instance, error: Exception) -> None:
    """The end of a batch counts although its instance has died of it, as long as that is not buried."""
    held = dict(instance._held)
    original(instance, error)
    instance._held.update(held)


def _not_inherited(
    original: Any, dispatcher: Dispatcher, seat: Seat, error: TriremeError, heirs: Sequence[Seat] = ()
) -> None:
    """What an instance was to execute alone is refused when it is removed, though others could execute it."""
    del heirs
    original(dispatcher, seat, error)


EXECUTION_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "still-held-in-place": (Dispatcher, "over", _still_held_in_place),
    "answered-in-place": (Scheduler, "_executed", _answered_in_place),
    "one-batch-answers": (Scheduler, "_send_answers", _one_batch_answers),
    "not-inherited": (Dispatcher, "give_up", _not_inherited),
    "late-end-counts": (Instance, "fail", _late_end_counts),
}
