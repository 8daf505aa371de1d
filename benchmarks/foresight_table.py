"""The table of residuals of `foresight.py`, and what their reasons may be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trireme.simulations.planning import PlayedRun

BOUNDS = {"p50": 0.05, "p99": 0.10, "throughput": 0.03, "batch": 0.05}
_SHOWN = {"p50": (1e3, " ms"), "p99": (1e3, " ms"), "throughput": (1, "/s"), "batch": (1, "")}


def residuals(found: Path, held: Mapping[str, bool]) -> str:
    """Predicted beside measured, in Markdown.

    Args:
        found: where the steps keep what they have found.
        held: by case, whether it was held back from tuning.
    """
    lines = [
        "| Case | Requests | p50 | p99 | Throughput | Rows a batch | Refused | Held back |",
        "|---|---|---|---|---|---|---|---|",
    ]
    missed = apart = 0
    for case, its in held.items():
        measured, predicted = _found(found, case)
        cells = []
        for name in BOUNDS:
            text, well, steady = _cell(name, predicted[name]["value"], [run[name] for run in measured["runs"]])
            missed += not well
            apart += not well and not steady
            cells.append(text)
        refused = f"{predicted['refused']} / {' … '.join(str(run['refused']) for run in measured['runs'])}"
        lines.append(f"| {case} | {measured['requests']} | {' | '.join(cells)} | {refused} | {'yes' if its else ''} |")
    total = len(BOUNDS) * len(held)
    lines.append("")
    lines.append(
        f"{total - missed} of {total} numbers are within their bounds; the others are printed in bold. Of these, "
        f"{apart} are numbers by which two real runs are further apart than the bound (≠)."
    )
    return "\n".join(lines) + "\n"


def _found(found: Path, case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return tuple(json.loads((found / f"{case}.{kind}.json").read_text()) for kind in ("measured", "predicted"))  # type: ignore[return-value]


def _cell(name: str, value: float, real: Sequence[float]) -> tuple[str, bool, bool]:
    """The text; whether the prediction is within the bound of the mean of the real runs; whether these are within it of
    each other."""
    scale, unit = _SHOWN[name]
    mean = sum(real) / len(real)
    off, bound = value / mean - 1, BOUNDS[name]
    well, steady = abs(off) <= bound, (max(real) - min(real)) / mean <= bound
    runs = " … ".join(f"{each * scale:.3g}" for each in real)
    text = f"{value * scale:.3g} / {runs}{unit}, {off:+.1%}"
    text += "" if steady else " ≠"
    return (text if well else f"**{text}**"), well, steady


def executed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's instances did between two looks at its statistics."""
    earlier = {each["batch_size"]: each for each in before["batch_stats"]}
    sizes: dict[str, list[float]] = {}
    for each in after["batch_stats"]:
        was = earlier.get(each["batch_size"])
        kinds = "compute_input", "compute_infer", "compute_output"
        count = each["compute_infer"]["count"] - (was["compute_infer"]["count"] if was else 0)
        ns = sum(each[kind]["ns"] - (was[kind]["ns"] if was else 0) for kind in kinds)
        if count:
            sizes[str(each["batch_size"])] = [count, ns / count / 1e9]
    queue = [each["inference_stats"]["queue"] for each in (before, after)]
    count = queue[1]["count"] - queue[0]["count"]
    return {
        "rows": after["inference_count"] - before["inference_count"],
        "batches": after["execution_count"] - before["execution_count"],
        "queue_s": (queue[1]["ns"] - queue[0]["ns"]) / max(1, count) / 1e9,
        "sizes": sizes,
    }


def planned_batches(run: PlayedRun, model: str) -> dict[str, Any]:
    """The same of a run in virtual time."""
    its = run.batch_model == run.models.index(model)
    rows, took_s = run.batch_rows[its], (run.batch_ended_s - run.batch_started_s)[its]
    sizes = {str(size): [int((rows == size).sum()), float(took_s[rows == size].mean())] for size in np.unique(rows)}
    waited_s = (run.dispatched_s - run.admitted_s)[np.isin(run.batch, np.flatnonzero(its))]
    queue_s = float(waited_s.mean()) if len(waited_s) else float("nan")
    return {"rows": int(rows.sum()), "batches": int(its.sum()), "queue_s": queue_s, "sizes": sizes}


def reasons(found: Path, cases: Sequence[str]) -> str:
    """By case, the parts of a latency: predicted / measured in each of the runs."""
    return "\n".join(line for case in cases for line in _reasons(*_found(found, case), case)) + "\n"


def _reasons(measured: Mapping[str, Any], predicted: Mapping[str, Any], case: str) -> Iterator[str]:
    runs = measured["runs"]
    loop, others, stolen = (_each(run[name] for run in runs) for name in ("loop", "others", "stolen"))
    yield f"{case}: loop {predicted['loop']:.3f} / {loop}, others' cores {others}, stolen {stolen}"
    for name, its in predicted["models"].items():
        real = [run["models"][name] for run in runs]
        queue = _each(each["queue_s"] * 1e3 for each in real)
        yield f"  {name}: queue {its['queue_s'] * 1e3:.3f} / {queue} ms"
        for size in sorted({*its["sizes"], *(size for each in real for size in each["sizes"])}, key=int):
            nothing = [0, float("nan")]
            count, took_s = its["sizes"].get(size, nothing)
            theirs = [each["sizes"].get(size, nothing) for each in real]
            counts, times = [each[0] for each in theirs], _each(each[1] * 1e3 for each in theirs)
            yield f"    {size} rows: {count} / {counts}, {took_s * 1e3:.3f} / {times} ms"


def _each(values: Iterator[float]) -> str:
    return " … ".join(f"{value:.3f}" for value in values)
