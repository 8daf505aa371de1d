"""What a replay prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from .prediction import Prediction
from .summary import Estimate, RunSummary

_WIDE = 16
_TEXTS = {
    "ttft_p50_s": ("first token p50", 1e3, "ms"),
    "ttft_p95_s": ("first token p95", 1e3, "ms"),
    "ttft_p99_s": ("first token p99", 1e3, "ms"),
    "itl_p50_s": ("next token p50", 1e3, "ms"),
    "itl_p95_s": ("next token p95", 1e3, "ms"),
    "itl_p99_s": ("next token p99", 1e3, "ms"),
    "tokens": ("tokens", 1.0, "/s"),
    "preempted": ("preempted", 100.0, "%"),
    "kv": ("memory in use", 100.0, "%"),
    "step_texts": ("texts a step", 1.0, ""),
    "step_tokens": ("tokens a step", 1.0, ""),
}
"""Of generated text: by attribute of `RunSummary`, how it is called, a factor, and a unit."""

_TIMES = {"p50_s": "p50", "p95_s": "p95", "p99_s": "p99", "mean_s": "mean"}


def report(prediction: Prediction, measured: RunSummary | None) -> str:
    """As text: each number with the bounds between which nine of ten plays lie, beside the measured one."""
    return "".join(f"{line}\n" for line in _lines(prediction, measured))


def _lines(prediction: Prediction, measured: RunSummary | None) -> Iterator[str]:
    beside = "     measured   difference" if measured is not None else ""
    yield f"{'':{_WIDE}}{'predicted':>12}{'from':>12}{'to':>12}{beside}"
    for name, label in _TIMES.items():
        yield _line(label, prediction.estimate(name), measured, name, 1e3, "ms")
    yield _line("throughput", prediction.estimate("throughput"), measured, "throughput", 1.0, "/s")
    yield _line("batch rows", prediction.estimate("batch_rows"), measured, "batch_rows", 1.0, "")
    for name, (label, scale, unit) in _TEXTS.items():
        found = prediction.estimate(name)
        if found.value == found.value:
            yield _line(label, found, measured, name, scale, unit)
    yield _line("event loop", prediction.estimate("loop"), measured, "loop", 100.0, "%")
    front_ends = prediction.estimate("front_ends")
    if front_ends.value == front_ends.value:
        yield _line("front ends", front_ends, measured, "front_ends", 100.0, "%")
    yield _line("cores busy", prediction.estimate("cores"), measured, "cores", 1.0, "")
    first = prediction.overall[0]
    yield f"{first.requests} requests, {first.answered} answered well in the first play"
    for reason in sorted({reason for each in prediction.overall for reason in each.refused}):
        count = Estimate.of([each.refused.get(reason, 0) for each in prediction.overall])
        real = f", measured {measured.refused.get(reason, 0)}" if measured is not None else ""
        yield f"  {reason}: {count.value:.0f} ({count.low:.0f} to {count.high:.0f}){real}"
    for model in first.instances:
        busy = Estimate.of([each.instances.get(model, float("nan")) for each in prediction.overall])
        yield f"  instances of {model} busy: {busy.value:.0%} ({busy.low:.0%} to {busy.high:.0%})"
    if len(prediction.models) > 1:
        for model in prediction.models:
            p50, p99 = prediction.estimate("p50_s", model), prediction.estimate("p99_s", model)
            rate = prediction.estimate("throughput", model)
            yield f"  {model}: p50 {p50.value * 1e3:.3f} ms, p99 {p99.value * 1e3:.3f} ms, {rate.value:.1f}/s"


def _line(label: str, found: Estimate, measured: RunSummary | None, name: str, scale: float, unit: str) -> str:
    if found.value != found.value:
        return f"{label:{_WIDE}}{'unknown':>12}"
    cells = "".join(f"{each * scale:>10.3f}{unit:2}" for each in (found.value, found.low, found.high))
    real = getattr(measured, name) if measured is not None else float("nan")
    beside = f"{real * scale:>11.3f}{unit:2}{(found.value / real - 1) * 100:>+11.1f}%" if real == real and real else ""
    return f"{label:{_WIDE}}{cells}{beside}"


def as_json(prediction: Prediction, measured: RunSummary | None) -> str:
    """The same for programs: estimates by name, of all requests and by model."""

    def estimates(model: str = "") -> dict[str, Any]:
        names = (*_TIMES, *_TEXTS, "throughput", "batch_rows", "loop", "front_ends", "cores")
        found = {name: asdict(prediction.estimate(name, model)) for name in names}
        return {name: None if each["value"] != each["value"] else each for name, each in found.items()}

    document: dict[str, Any] = {
        "predicted": estimates(),
        "models": {model: estimates(model) for model in prediction.models},
        "refused": [dict(each.refused) for each in prediction.overall],
        "instances": [dict(each.instances) for each in prediction.overall],
    }
    if measured is not None:
        document["measured"] = {
            name: None if isinstance(each, float) and each != each else each for name, each in asdict(measured).items()
        }
    return json.dumps(document, indent=1) + "\n"
