"""Metrics of models that are loaded on demand (docs/on_demand.md#metrics)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..repository.residency import Residency
from ..repository.residents import Residence
from .family import MetricFamily


@dataclass(slots=True)
class OnDemandCounts:
    """What was done since the server began.

    Attributes:
        requests: that were handed in to models.
        loads: that have ended, `failures` of them without success.
        unloads: to make room, or by hand.
        waits: requests that have waited for a model and got it; `waits_s` is how long altogether.
    """

    requests: int = 0
    loads: int = 0
    failures: int = 0
    unloads: int = 0
    waits: int = 0
    waits_s: float = 0.0

    def waited(self, for_s: float) -> None:
        """A request has got its model."""
        self.waits += 1
        self.waits_s += for_s


def on_demand_families(core: Residency, counts: OnDemandCounts) -> Iterator[MetricFamily]:
    """All of them; no series is of a single model."""
    requests = MetricFamily("trireme_on_demand_requests_total", "Number of requests, by what they found", "counter")
    requests.add({"outcome": "hit"}, max(0, counts.requests - counts.waits))
    requests.add({"outcome": "miss"}, counts.waits)
    yield requests
    loads = MetricFamily("trireme_on_demand_loads_total", "Number of loads on demand, by outcome", "counter")
    loads.add({"outcome": "success"}, counts.loads - counts.failures)
    loads.add({"outcome": "failure"}, counts.failures)
    yield loads
    yield MetricFamily(
        "trireme_on_demand_unloads_total", "Number of models that have left memory", "counter", counts.unloads
    )
    waits = MetricFamily("trireme_on_demand_wait_seconds", "Time that requests have waited for models", "summary")
    waits.add({}, counts.waits, "_count")
    waits.add({}, counts.waits_s, "_sum")
    yield waits
    waiting = core.waiting
    yield MetricFamily("trireme_on_demand_waiting", "Number of requests that wait for a model", "gauge", waiting)
    models = MetricFamily("trireme_on_demand_models", "Number of models, by what is done with them", "gauge")
    states = dict.fromkeys((state.value for state in Residence), 0)
    for model in core:
        states[model.state.value] += 1
    for state, count in states.items():
        models.add({"state": state}, count)
    yield models
    yield MetricFamily("trireme_on_demand_bytes", "Bytes that models take", "gauge", core.used_bytes)
    yield MetricFamily("trireme_on_demand_limit_bytes", "Bytes that models may take", "gauge", core.limit_bytes)
