"""Bugs of instances, of what is loaded and unloaded, and of statistics, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

from ...actors.door import stopping_error
from ...actors.instances import Instances
from ...actors.model_control import ModelControl, NameLocks
from ...actors.repository import Repository
from ...actors.scheduler import Scheduler
from ...engine.instances.restart import RestartPolicy
from ...engine.metrics.statistics import ModelStatistics
from ...engine.scheduling.core import InstanceId


def _swallowed_death(original: Any, scheduler: Scheduler, instance: InstanceId) -> None:
    """A dead instance stays where it can be given work."""
    if instance in scheduler._dispatcher.dismissed:
        original(scheduler, instance)


def _healthy_corpse(original: Any, repository: Repository, name: str, *version: int) -> bool:
    """A model counts as ready without a look at its instances."""
    del original
    return any(model.name == name and model.ready for model in repository.models())


def _impatient_restart(original: Any, policy: RestartPolicy, now: float) -> float:
    """The delay does not grow while an instance goes on dying."""
    original(policy, now)
    return policy.first_delay_s


def _locks_nothing(original: Any, locks: NameLocks, names: frozenset[str]) -> Any:
    """Operations on one model do not wait for each other."""
    del original, locks, names
    return nullcontext()


def _drained_without_end(original: Any, instances: Instances, *about: Any) -> float | None:
    """An instance that dies while its model is drained is not started again, though clients still wait for it."""
    delay_s = original(instances, *about)
    return None if cast(Any, instances._scheduler._core)._stopping else delay_s


def _dropped_by_reload(original: Any, scheduler: Scheduler, **options: Any) -> None:
    """A model that is replaced answers nothing any more."""
    original(scheduler, **options)
    scheduler.fail_held(stopping_error())


def _swapped_durations(
    original: Any, statistics: ModelStatistics, requests: Any, marks: Sequence[int], *rest: Any
) -> None:
    """The time in the queue counts as time of the inference, and the other way round."""
    original(statistics, requests, marks, *rest)
    statistics.queue, statistics.compute_infer = statistics.compute_infer, statistics.queue


def _swapped_phases(
    original: Any, statistics: ModelStatistics, rows: int, marks: Sequence[int], *rest: Any, **options: Any
) -> None:
    """The inputs' time of an execution counts as the outputs', and the other way round."""
    start, infer, output, end = marks
    original(statistics, rows, (start, start + end - output, start + end - infer, end), *rest, **options)


async def _start_taken_for_good(original: Any, control: ModelControl) -> bool:
    """A server starts though a model could not be loaded, unless it is the only one."""
    good = await original(control)
    return good or len(control.repository.models()) > 1


SERVING_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "swallowed-death": (Scheduler, "detach", _swallowed_death),
    "healthy-corpse": (Repository, "model_ready", _healthy_corpse),
    "impatient-restart": (RestartPolicy, "died", _impatient_restart),
    "locks-nothing": (NameLocks, "hold", _locks_nothing),
    "drained-without-end": (Instances, "_next_step", _drained_without_end),
    "dropped-by-reload": (Scheduler, "stop", _dropped_by_reload),
    "swapped-durations": (ModelStatistics, "record_successes", _swapped_durations),
    "start-taken-for-good": (ModelControl, "start", _start_taken_for_good),
    "swapped-phases": (ModelStatistics, "record_execution", _swapped_phases),
}
