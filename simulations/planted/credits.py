"""Bugs of credits and permits, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.scheduling.core import InstanceId, SchedulerCore
from ...engine.scheduling.dispatcher import Dispatcher
from ...engine.scheduling.forecast import Forecast
from ...engine.scheduling.permits import Permits
from ...engine.scheduling.queueing import QueueingCore


def _forgotten_in_place(original: Any, dispatcher: Dispatcher) -> None:
    """An instance that has executed in place is not idle again."""
    del original
    dispatcher.resting.clear()


def _bound_early(original: Any, forecast: Forecast) -> float:
    """The second credit of a GPU instance is used halfway through the first batch."""
    opens_s = original(forecast)
    begun_s = min([bound_s for _, bound_s in forecast._held.values()], default=opens_s)
    return (begun_s + opens_s) / 2


def _bound_never(original: Any, forecast: Forecast) -> float:
    """The second credit is used for full batches alone."""
    return max(original(forecast), 1e9)


def _kept_permit(original: Any, permits: Permits, core: SchedulerCore) -> None:
    """An instance that was granted, and gets no batch, keeps the grant."""
    del original
    while permits._granted:
        instance, _ = permits._granted.popitem()
        core.instance_paused(instance)
        permits._resting[instance] = None


def _spare_is_idle(original: Any, core: Any, instance: InstanceId, spare: bool = False) -> None:
    """An instance that still executes a batch counts as idle."""
    del spare
    original(core, instance)


def _credit_lost(original: Any, dispatcher: Dispatcher, action: Any, now: float) -> None:
    """The credit that is left is lost when a batch is of several requests."""
    its = dispatcher._instances[action.instance]
    most = its.credits
    its.credits = 1 if len(action.jobs) > 2 else most
    original(dispatcher, action, now)
    its.credits = most


CREDIT_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "forgotten-in-place": (Dispatcher, "end_rest", _forgotten_in_place),
    "bound-early": (Forecast, "opens_s", _bound_early),
    "bound-never": (Forecast, "opens_s", _bound_never),
    "kept-permit": (Permits, "give_back", _kept_permit),
    "spare-is-idle": (QueueingCore, "instance_idle", _spare_is_idle),
    "credit-lost": (Dispatcher, "_dispatched", _credit_lost),
}
