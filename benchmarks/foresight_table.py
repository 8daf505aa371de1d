"""The table of residuals of `foresight.py`, and what their reasons may be.

`Others' cores` are those that programs beside server and player used while a log was played.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        "| Case | Requests | p50 | p99 | Throughput | Rows a batch | Refused | Others' cores | Held back |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    missed = apart = 0
    missing = [case for case in held if not (found / f"{case}.predicted.json").exists()]
    shown = {case: its for case, its in held.items() if case not in missing}
    for case, its in shown.items():
        measured, predicted = _found(found, case)
        cells = []
        for name in BOUNDS:
            values, real = ([each[name] for each in runs] for runs in (predicted, measured["runs"]))
            text, well, steady = _cell(name, values, real)
            missed += not well
            apart += not well and not steady
            cells.append(text)
        refused = " / ".join(_each((run["refused"] for run in runs), "d") for runs in (predicted, measured["runs"]))
        others = _each((run["others"] for run in measured["runs"]), ".1f")
        row = [case, str(measured["requests"]), *cells, refused, others, "yes" if its else ""]
        lines.append(f"| {' | '.join(row)} |")
    total = len(BOUNDS) * len(shown)
    lines.append("")
    lines.append(
        f"{total - missed} of {total} numbers are within their bounds; the others are printed in bold. {apart} of "
        "these are numbers by which two real runs, or two profiles, are further apart than the bound (≠)."
    )
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def _found(found: Path, case: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    measured, predicted = (
        json.loads((found / f"{case}.{kind}.json").read_text()) for kind in ("measured", "predicted")
    )
    return measured, predicted


def _cell(name: str, values: Sequence[float], real: Sequence[float]) -> tuple[str, bool, bool]:
    """The text; whether the mean of the predictions is within the bound of that of the real runs; whether they are all
    within it of their like."""
    scale, unit = _SHOWN[name]
    bound, means = BOUNDS[name], [sum(each) / len(each) for each in (values, real)]
    off = means[0] / means[1] - 1
    well = abs(off) <= bound
    steady = all(max(each) - min(each) <= bound * mean for each, mean in zip((values, real), means, strict=True))
    texts = (_each((each * scale for each in side), ".3g") for side in (values, real))
    text = f"{' / '.join(texts)}{unit}, {off:+.1%}" + ("" if steady else " ≠")
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


def _reasons(measured: Mapping[str, Any], predicted: Sequence[Mapping[str, Any]], case: str) -> Iterator[str]:
    both = predicted, measured["runs"]
    others, stolen = (_each((run[name] for run in both[1]), ".3f") for name in ("others", "stolen"))
    loop = _pair([[run["loop"] for run in runs] for runs in both])
    yield f"{case}: loop {loop}, others' cores {others}, stolen {stolen}"
    for name in predicted[0]["models"]:
        its = [[run["models"][name] for run in runs] for runs in both]
        yield f"  {name}: queue {_pair([[each['queue_s'] * 1e3 for each in side] for side in its])} ms"
        for size in sorted({size for side in its for each in side for size in each["sizes"]}, key=int):
            sizes = [[each["sizes"].get(size, (0, float("nan"))) for each in side] for side in its]
            counts = " / ".join(_each((each[0] for each in side), "d") for side in sizes)
            yield f"    {size} rows: {counts}, {_pair([[each[1] * 1e3 for each in side] for side in sizes])} ms"


def _pair(sides: Sequence[Sequence[float]]) -> str:
    return " / ".join(_each(side, ".3f") for side in sides)


def _each(values: Iterable[float], form: str) -> str:
    return " … ".join(f"{value:{form}}" for value in values)
