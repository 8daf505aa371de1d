"""What the batchers of models with a latency objective have learnt and chosen (docs/adaptive_batching.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .families import model_labels
from .family import MetricFamily
from .statistics import ModelStatisticsEntry


def adaptive_families(entries: Iterable[ModelStatisticsEntry]) -> Iterator[MetricFamily]:
    """Gauges of the models with an objective. Service times are there as soon as a batch was over."""
    objective = MetricFamily("trireme_adaptive_objective_seconds", "Latency objective of the model", "gauge")
    target = MetricFamily(
        "trireme_adaptive_target_batch_size",
        "Number of rows that a batch is to hold, chosen for the objective",
        "gauge",
    )
    delay = MetricFamily(
        "trireme_adaptive_delay_seconds", "How long a batch may wait to grow, chosen for the objective", "gauge"
    )
    service = MetricFamily(
        "trireme_adaptive_service_seconds", "What a batch of so many rows is expected to take, as learnt", "gauge"
    )
    for entry in entries:
        learnt = entry.statistics.learnt
        if learnt is None:
            continue
        labels = model_labels(entry)
        objective.add(labels, learnt.objective_s)
        target.add(labels, learnt.target)
        delay.add(labels, learnt.delay_s)
        for rows, seconds in learnt.expected():
            service.add({**labels, "batch_size": str(rows)}, seconds)
    yield from (objective, target, delay, service)
