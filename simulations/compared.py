"""What a run comes to in figures, and what sets two apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .events import BatchSealed, RequestAnswered, RequestSubmitted
from .generations import model_of
from .history import History
from .said_once import errors_said_once

QUANTILES = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure of two runs; None where one has none."""

    model: str
    what: str
    first: float | None
    second: float | None


def figures(history: History) -> dict[tuple[str, str], float]:
    """By model and name: how many requests and batches, why those were closed, what was refused, and latencies of what
    was answered well, in ms."""
    counts: Counter[tuple[str, str]] = Counter()
    rows: Counter[str] = Counter()
    submitted: dict[int, RequestSubmitted] = {}
    latencies: dict[str, list[int]] = {}
    for event in history.events:
        if isinstance(event, RequestSubmitted):
            submitted[event.request] = event
            counts[model_of(event.model), "requests"] += 1
        elif isinstance(event, BatchSealed):
            model = model_of(event.model)
            counts[model, "batches"] += 1
            counts[model, f"batches closed: {event.reason}"] += 1
            rows[model] += event.rows
        elif isinstance(event, RequestAnswered) and not event.error and event.request in submitted:
            asked = submitted[event.request]
            latencies.setdefault(model_of(asked.model), []).append(event.at_ns - asked.at_ns)
    found: dict[tuple[str, str], float] = dict(counts)
    for model, total in rows.items():
        found[model, "rows a batch"] = total / counts[model, "batches"]
    for model, taken in latencies.items():
        found[model, "answered well"] = len(taken)
        taken.sort()
        for quantile in QUANTILES:
            found[model, f"p{quantile * 100:g} in ms"] = taken[min(len(taken) - 1, int(quantile * len(taken)))] / 1e6
    for said in errors_said_once(history):
        found[said.model, f"error: {said.text}"] = len(said.at_ns)
    return found


def differences(first: History, second: History) -> list[Difference]:
    """All figures of both, by model: equal ones as well, for it matters that they are."""
    mine, others = figures(first), figures(second)
    return [Difference(*key, mine.get(key), others.get(key)) for key in sorted({*mine, *others})]


def changed(of: Iterable[Difference]) -> list[Difference]:
    """Those that are not equal."""
    return [each for each in of if each.first != each.second]


def first_difference(first: History, second: History) -> str:
    """Where two histories part: empty if they are equal."""
    for number, (one, other) in enumerate(zip(first.events, second.events, strict=False), start=1):
        if one != other:
            return f"they part at event {number}, at {one.at_ns / 1e6:g} ms: {one} here, {other} there"
    if len(first.events) != len(second.events):
        shorter = min(len(first.events), len(second.events))
        return f"they are equal up to event {shorter}, where one of them ends"
    return ""


def told_differences(first: tuple[str, History], second: tuple[str, History]) -> list[str]:
    """What sets two runs apart, a line each, with the runs' titles in front."""
    (title, mine), (other_title, others) = first, second
    parting = first_difference(mine, others)
    if not parting:
        return [f"{title}, and {other_title}: equal, event for event"]
    lines = [f"here {title}, there {other_title}: {parting}"]
    for each in changed(differences(mine, others)):
        values = ["none" if value is None else f"{value:g}" for value in (each.first, each.second)]
        lines.append(f"    {each.model}: {each.what}: {values[0]} here, {values[1]} there")
    return lines
