"""The Pareto front of a plan, throughput against p99, as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape

from .objective import Aim, Measure, PlanObjective
from .settings import PlanSetting
from .trials import Trial

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 860, 420, 80, 50, 30
_TICKS = 5
_COLOURS = {"chosen": "#b3261e", "present": "#1f5fbf", "front": "#333333", "other": "#bbbbbb"}


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A setting in the picture.

    Attributes:
        rate: answers a second; of goodput, if that is the aim.
        p99_s: the middle one of its plays.
        label: `chosen`, `present`, `front` or `other`.
    """

    rate: float
    p99_s: float
    label: str
    setting: PlanSetting


def pareto_front(points: Iterable[tuple[float, float]]) -> list[int]:
    """Of points (more is better, less is better), the places of those that no other is better than, neither by one
    figure without the other being worse; of equal ones the first. In the order of the second figure."""
    placed = sorted(enumerate(points), key=lambda each: (each[1][1], -each[1][0], each[0]))
    front: list[int] = []
    most = -math.inf
    for place, (gain, _) in placed:
        if gain > most:
            front.append(place)
            most = gain
    return front


def front_points(
    trials: Sequence[Trial], chosen: PlanSetting, present: PlanSetting, objective: PlanObjective
) -> list[FrontPoint]:
    """All trials that answered something, labelled."""
    found = [(trial, _rate(trial, objective), trial.estimate(Measure.P99).value) for trial in trials]
    known = [(trial, rate, p99_s) for trial, rate, p99_s in found if p99_s == p99_s]
    front = set(pareto_front((rate, p99_s) for _, rate, p99_s in known))
    points: list[FrontPoint] = []
    for place, (trial, rate, p99_s) in enumerate(known):
        label = "front" if place in front else "other"
        label = {chosen: "chosen"}.get(trial.setting, "present" if trial.setting == present else label)
        points.append(FrontPoint(rate, p99_s, label, trial.setting))
    return points


def _rate(trial: Trial, objective: PlanObjective) -> float:
    return trial.gain(Aim.GOODPUT if objective.aim is Aim.GOODPUT else Aim.THROUGHPUT)


def front_svg(points: Sequence[FrontPoint], objective: PlanObjective) -> str:
    """A complete SVG document, with a tooltip on each point. Latencies are on a logarithmic scale."""
    return "\n".join([*_svg(points, objective), "</svg>\n"])


def _svg(points: Sequence[FrontPoint], objective: PlanObjective) -> Iterator[str]:
    rates = _widened([point.rate for point in points])
    logs = _widened([math.log10(max(point.p99_s, 1e-6)) for point in points])

    def place(rate: float, p99_s: float) -> tuple[float, float]:
        x = _LEFT + (rate - rates[0]) / (rates[1] - rates[0]) * (_WIDTH - _LEFT - 20)
        part = (math.log10(max(p99_s, 1e-6)) - logs[0]) / (logs[1] - logs[0])
        return x, _HEIGHT - _BOTTOM - part * (_HEIGHT - _BOTTOM - _TOP)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12">'
    )
    yield '<rect width="100%" height="100%" fill="white"/>'
    what = "goodput" if objective.aim is Aim.GOODPUT else "throughput"
    yield f'<text x="{_LEFT}" y="18">p99 (ms) against {what} (answers a second)</text>'
    for tick in range(_TICKS + 1):
        rate = rates[0] + (rates[1] - rates[0]) * tick / _TICKS
        p99_s = 10 ** (logs[0] + (logs[1] - logs[0]) * tick / _TICKS)
        x, y = place(rate, p99_s)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 30}" text-anchor="middle" fill="#555">{rate:.4g}</text>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{p99_s * 1e3:.3g}</text>'
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>'
    for limit_s in {bound.limit for bound in objective.bounds if bound.measure is Measure.P99 and not bound.model}:
        if logs[0] <= math.log10(limit_s) <= logs[1]:
            y = place(rates[0], limit_s)[1]
            line = f'x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line {line} stroke="#b3261e" stroke-dasharray="4 4"><title>{limit_s * 1e3:g} ms</title></line>'
    front = sorted((each for each in points if each.label != "other"), key=lambda each: each.p99_s)
    best = pareto_front((each.rate, each.p99_s) for each in front)
    path = " ".join("{:.1f},{:.1f}".format(*place(front[each].rate, front[each].p99_s)) for each in best)
    yield f'<polyline points="{path}" fill="none" stroke="#333"/>'
    for point in sorted(points, key=lambda each: list(_COLOURS).index(each.label), reverse=True):
        x, y = place(point.rate, point.p99_s)
        told = escape(f"{point.label}: {point.setting}; {point.rate:.1f}/s, p99 {point.p99_s * 1e3:.2f} ms")
        radius = 6 if point.label in ("chosen", "present") else 4
        colour = _COLOURS[point.label]
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"><title>{told}</title></circle>'
    for number, (label, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + 110 * number
        yield f'<circle cx="{x}" cy="{_HEIGHT - 10}" r="4" fill="{colour}"/>'
        yield f'<text x="{x + 8}" y="{_HEIGHT - 6}">{label}</text>'


def _widened(values: Sequence[float]) -> tuple[float, float]:
    """From the least to the most, and a little more; never nothing."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    more = (high - low) * 0.05 or max(abs(high) * 0.05, 0.05)
    return low - more, high + more


def write_front_png(path: Path, points: Sequence[FrontPoint]) -> bool:
    """The same as PNG, if matplotlib is installed; whether it is."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 4.2), dpi=120)
    axes = figure.add_subplot()
    for label, colour in reversed(_COLOURS.items()):
        those = [point for point in points if point.label == label]
        axes.scatter([each.rate for each in those], [each.p99_s * 1e3 for each in those], color=colour, label=label)
    axes.set(xlabel="answers a second", ylabel="p99 (ms)", yscale="log")
    axes.legend()
    figure.savefig(path, format="png", bbox_inches="tight")
    return True
