"""What the figures are to be, and what they are: a table in Markdown, made from results.

A goal is a bound on one figure of one row: a ratio to a peer, or Trireme's own. One that has not been measured says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .document import METRICS, SUBJECT, Document, RowFacts, ratio, spread

REAL = "triton"
OTHERS = ("mlserver", "litserve", "ray-serve")


@dataclass(frozen=True)
class Goal:
    """A bound on a figure.

    Attributes:
        title: what it is about, where it has not been measured.
        workload, concurrency: the rows that it concerns; 0 for any concurrency.
        metric: a name in `document.METRICS`.
        bound: of the ratio to a peer, or of Trireme's own figure if there is none.
        least: whether the bound is the least that is wanted, and not the most.
    """

    title: str
    workload: str
    concurrency: int
    metric: str
    bound: float
    least: bool
    peer: str | None = REAL
    unit: str = "×"

    @property
    def text(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.bound:g} {self.unit}"

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.least else value <= self.bound


def _least(title: str, workload: str, concurrency: int, bound: float, metric: str = "throughput") -> Goal:
    return Goal(title, workload, concurrency, metric, bound, least=True)


def _most(title: str, workload: str, bound: float, concurrency: int = 1, metric: str = "p50_us") -> Goal:
    return Goal(title, workload, concurrency, metric, bound, least=False)


def _own(title: str, workload: str, metric: str, bound: float, unit: str) -> Goal:
    return Goal(title, workload, 0, metric, bound, least=False, peer=None, unit=unit)


COMPARED = ("identity-json", "identity-grpc-loop", "large-json", "digits", "resnet50", "encoder")
"""Workloads that other peers than Triton can serve."""
LARGE = {"large-http": "HTTP", "large-grpc": "gRPC", "large-shm": "shared memory"}

GOALS = (
    _least("identity FP32[16], HTTP", "identity-http", 16, 2.5),
    _most("identity FP32[16], HTTP, p50", "identity-http", 0.55),
    _least("identity FP32[16], gRPC", "identity-grpc", 16, 3.0),
    _least("identity FP32[16], streams", "identity-streams", 16, 2.5),
    _most("identity FP32[16], gRPC, p50", "identity-grpc", 0.55),
    _most("the same model.py, p50", "python", 0.8),
    _least("BLS chain of three", "chain", 1, 1.3),
    _least("BLS chain of three", "chain", 16, 1.3),
    *(
        goal
        for name, how in LARGE.items()
        for concurrency in (1, 4)
        for goal in (
            _least(f"FP32[1M], {how}", name, concurrency, 1.2),
            _most(f"FP32[1M], {how}, p99", name, 1.0, concurrency, "p99_us"),
        )
    ),
    *(Goal("the same models", name, 0, "throughput", 3, True, peer) for name in COMPARED for peer in OTHERS),
    Goal("ResNet-50, of the runtime alone", "resnet50", 0, "throughput", 0.97, True, "runtime"),
    Goal("encoder, of the runtime alone", "encoder", 0, "throughput", 0.97, True, "runtime"),
    _own("engine's CPU a request, front ends apart", "front-ends", "engine_us", 20, "µs"),
    _own("front end's CPU a request", "front-ends", "front_end_us", 30, "µs"),
    _own("1,000 models, CPU a request by that of one", "models", "growth", 1.1, "×"),
    _own("10,000 connections, CPU a request by that of few", "connections", "growth", 1.1, "×"),
    _own("ready with five small models", "startup", "ready_ms", 600, "ms"),
    _own("idle memory with five small models", "startup", "memory_mib", 80, "MiB"),
)


def lines(document: Document) -> Iterator[str]:
    """When and where it was measured, and the table, line by line."""
    facts, machine = document.facts, document.facts.get("machine", {})
    where = f"{machine.get('processor', 'unknown processor')}, {machine.get('cores', '?')} cores"
    yield f"Measured: {facts.get('began', '?')}. Commit: {facts.get('commit', '?')}. {where}."
    yield ""
    yield "| What | Figure | Beside | Goal | Measured | |"
    yield "|---|---|---|---|---|---|"
    for goal in GOALS:
        rows = [row for row in document.rows if _concerns(goal, row)]
        measured = [(row, value) for row in rows if (value := _figure(document, goal, row)) is not None]
        if not measured and goal.peer not in OTHERS:
            yield _line(document, goal, goal.title, "–", "not measured")
        for row, value in measured:
            yield _line(document, goal, row.key, _shown(value, goal), "met" if goal.is_met(value) else "**missed**")


def _concerns(goal: Goal, row: RowFacts) -> bool:
    return row.workload == goal.workload and goal.concurrency in {0, row.concurrency}


def _figure(document: Document, goal: Goal, row: RowFacts) -> float | None:
    if goal.peer is None:
        own = spread(list(document.values(row.key, SUBJECT, goal.metric).values()))
        return None if own is None else own.median
    by = ratio(document, row.key, goal.peer, goal.metric)
    return None if by is None else by.median


def _shown(value: float, goal: Goal) -> str:
    return f"{value:,.0f} {goal.unit}" if goal.unit in {"ms", "MiB"} else f"{value:.3g} {goal.unit}"


def _line(document: Document, goal: Goal, what: str, measured: str, verdict: str) -> str:
    beside = "" if goal.peer is None else document.peers.get(goal.peer, goal.peer)
    return f"| {what} | {METRICS[goal.metric].title} | {beside} | {goal.text} | {measured} | {verdict} |"
