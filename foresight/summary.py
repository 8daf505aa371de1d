"""What became of traffic, in numbers: of a predicted run or of a real one."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..engine.generation.records import quantile_of
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
        front_ends: part of the time for which each front end worked, or waited for a core; NaN if there are none, or it
            is unknown.
        instances: by model, part of the time for which its instances executed; empty if unknown.

    Of requests for generated text, NaN if there were none, or it is unknown; times are the server's own:
        ttft_p50_s, ttft_p95_s, ttft_p99_s: time to the first token, from when the server had the request.
        itl_p50_s, itl_p95_s, itl_p99_s: between two tokens of a text (inter-token latency).
        tokens: generated a second.
        preempted: part of the requests that made room for others.
        kv: part of the memory of keys and values that was in use, mean over steps.
        step_texts, step_tokens: means over steps.
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
    front_ends: float = float("nan")
    instances: Mapping[str, float] = field(default_factory=dict)
    ttft_p50_s: float = float("nan")
    ttft_p95_s: float = float("nan")
    ttft_p99_s: float = float("nan")
    itl_p50_s: float = float("nan")
    itl_p95_s: float = float("nan")
    itl_p99_s: float = float("nan")
    tokens: float = float("nan")
    preempted: float = float("nan")
    kv: float = float("nan")
    step_texts: float = float("nan")
    step_tokens: float = float("nan")


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
    its = run.models.index(model) if model else -1
    wanted = run.model == its if model else np.ones(len(run), bool)
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
        front_ends=run.front_ends_busy_s / span_s if span_s > 0 and run.front_ends_busy_s else float("nan"),
        cores=(run.loop_busy_s + run.cores_busy_s) / span_s if span_s > 0 else float("nan"),
        instances={name: _busy(run, name, count) for name, count in instances.items() if name in run.models},
        **text_figures(run, its),
    )


def _busy(run: PlayedRun, model: str, instances: int) -> float:
    index = run.models.index(model)
    if run.generated is not None and (run.generated.step_model == index).any():
        return run.generated.busy_s(index) / (instances * run.span_s) if run.span_s > 0 else 0.0
    return run.utilisation(model, instances)


def text_figures(run: PlayedRun, model: int = -1) -> dict[str, Any]:
    """The figures of `RunSummary` that tell of generated text, of one model or of all (-1); empty if there is none."""
    texts = run.generated
    if texts is None:
        return {}
    well = run.refusal == 0
    wanted = well if model < 0 else well & (run.model == model)
    its, between = wanted[texts.request], wanted[texts.between_request]
    steps = np.ones(len(texts.step_model), bool) if model < 0 else texts.step_model == model
    if not its.any() or not steps.any():
        return {}
    first = (texts.first_s - texts.received_s)[its]
    pairs = list(zip(texts.between_s[between].tolist(), texts.between_count[between].tolist(), strict=True))
    return {
        **{f"ttft_{name}": float(np.nanquantile(first, place)) for name, place in PLACES.items()},
        **{f"itl_{name}": quantile_of(pairs, place) for name, place in PLACES.items()},
        "tokens": float(texts.tokens[its].sum()) / run.span_s if run.span_s > 0 else float("nan"),
        "preempted": float((texts.preemptions[its] > 0).mean()),
        "kv": float(texts.step_memory[steps].mean()),
        "step_texts": float(texts.step_texts[steps].mean()),
        "step_tokens": float(texts.step_tokens[steps].mean()),
    }


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
