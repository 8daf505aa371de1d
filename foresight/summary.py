"""What became of traffic, in numbers: of a predicted run or of a real one."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..simulations.planning import PlayedRun

PLACES = {"p50_s": 0.50, "p95_s": 0.95, "p99_s": 0.99}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Of all requests, or of those to one model.

    Attributes:
        requests: how many there were; `answered` well.
        p50_s, p95_s, p99_s, mean_s: latency of those answered well, as their clients see it; NaN if there are none.
        throughput: requests answered well a second, from the first that was sent to the last answer.
        batch_rows: mean rows of an execution; NaN if unknown, or if there were executions of several models.
        refused: how many, by reason.
        loop: part of the time for which the event loop worked; NaN if unknown.
        cores: cores that were busy on average, the loop's included; NaN if unknown.
        instances: by model, part of the time for which its instances executed; empty if unknown.
    """

    requests: int
    answered: int
    p50_s: float
    p95_s: float
    p99_s: float
    mean_s: float
    throughput: float
    batch_rows: float = float("nan")
    refused: Mapping[str, int] = field(default_factory=dict)
    loop: float = float("nan")
    cores: float = float("nan")
    instances: Mapping[str, float] = field(default_factory=dict)


def latencies(seconds: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """Quantiles and mean of latencies, by the names that `RunSummary` has for them; NaN if there are none."""
    values = np.asarray(seconds, np.float64)
    if not len(values):
        return dict.fromkeys((*PLACES, "mean_s"), float("nan"))
    found = {name: float(np.quantile(values, place)) for name, place in PLACES.items()}
    return {**found, "mean_s": float(values.mean())}


def mean_rows(run: PlayedRun, models: Sequence[str], stateful: Container[str] = ()) -> float:
    """Rows of an execution by these models; NaN if there was none. Rows that only fill gaps, as batches of stateful
    models have them, do not count."""
    rows = [
        (run.batch_requests if name in stateful else run.batch_rows)[run.batch_model == run.models.index(name)]
        for name in models
    ]
    joined = np.concatenate(rows) if rows else np.empty(0)
    return float(joined.mean()) if len(joined) else float("nan")


def summarise(
    run: PlayedRun, instances: Mapping[str, int], model: str = "", stateful: Container[str] = ()
) -> RunSummary:
    """Of a run in virtual time.

    Args:
        instances: that execute, by model; ensembles have none.
        model: of whose requests; empty for all.
        stateful: models with sequences.
    """
    wanted = run.model == run.models.index(model) if model else np.ones(len(run), bool)
    executed = [name for name in instances if name in run.models]
    of_batches = [model] if model in executed else executed
    span_s = run.span_s
    return RunSummary(
        requests=int(wanted.sum()),
        answered=int(run.well(model).sum()),
        **latencies(run.latencies_s(model)),
        throughput=run.throughput(model),
        batch_rows=mean_rows(run, of_batches, stateful) if len(of_batches) == 1 else float("nan"),
        refused=dict(run.refused(model)),
        loop=run.loop_busy_s / span_s if span_s > 0 else float("nan"),
        cores=(run.loop_busy_s + run.cores_busy_s) / span_s if span_s > 0 else float("nan"),
        instances={name: run.utilisation(name, count) for name, count in instances.items() if name in run.models},
    )


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that several plays gave: the middle one, and between which two nine of ten lie."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """NaN if they all are."""
        known = [each for each in values if each == each]
        if not known:
            return cls(*[float("nan")] * 3)
        low, value, high = np.quantile(known, [0.05, 0.5, 0.95])
        return cls(float(value), float(low), float(high))


def estimate(summaries: Sequence[RunSummary], name: str) -> Estimate:
    """Of one attribute of several plays."""
    values: list[Any] = [getattr(summary, name) for summary in summaries]
    return Estimate.of(values)
