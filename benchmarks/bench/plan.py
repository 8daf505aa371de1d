"""The order in which samples are taken: servers in turn, so that all of them see the machine as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from .models import Model
from .peers.base import Form, Peer
from .settings import Settings
from .workloads import Row, Workload

RUNTIME = "runtime"
OVER_GRPC = frozenset({Form.GRPC, Form.STREAMS, Form.SHARED_MEMORY})


@dataclass(frozen=True)
class Turn:
    """A sample that is to be taken."""

    row: Row
    peer: str
    alternation: int


@dataclass(frozen=True)
class Stage:
    """Turns for which the same servers run.

    Attributes:
        models: names of those that are served.
        grpc: whether it is asked over gRPC.
    """

    models: tuple[str, ...]
    grpc: bool
    turns: tuple[Turn, ...]

    @property
    def peers(self) -> list[str]:
        return list(dict.fromkeys(turn.peer for turn in self.turns))


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        refused: why peers have no part in rows, by row and then by peer.
    """

    stages: tuple[Stage, ...]
    refused: Mapping[str, Mapping[str, str]]

    @property
    def rows(self) -> list[Row]:
        return list({turn.row.key: turn.row for stage in self.stages for turn in stage.turns}.values())

    @property
    def turns(self) -> int:
        return sum(len(stage.turns) for stage in self.stages)


def concerns(row: Row, peer: str) -> bool:
    """Whether the peer has a column in this row at all."""
    return row.limited or peer != RUNTIME


def to_measure(workloads: Iterable[Workload], *, quick: bool, concurrencies: Sequence[int] = ()) -> list[Workload]:
    """The workloads without the rows that are not asked for, and without those that have none left.

    Args:
        concurrencies: if some are given, only rows with one of them.
    """
    chosen: list[Workload] = []
    for workload in workloads:
        rows = [row for row in workload.rows if row.quick or not quick]
        rows = [row for row in rows if not concurrencies or row.concurrency in concurrencies]
        if rows:
            chosen.append(replace(workload, rows=tuple(rows)))
    return chosen


def without(workloads: Iterable[Workload], keys: Collection[str]) -> list[Workload]:
    """The workloads without some rows, and without those that have none left."""
    left = [replace(each, rows=tuple(row for row in each.rows if row.key not in keys)) for each in workloads]
    return [each for each in left if each.rows]


def make_plan(
    workloads: Iterable[Workload], peers: Sequence[Peer], models: Mapping[str, Model], settings: Settings
) -> Plan:
    """Plan every row of the workloads for every peer that can take part. Workloads of the same models that follow each
    other are measured on the same servers."""
    stages: list[Stage] = []
    refused: dict[str, dict[str, str]] = {}
    for served, together in groupby(workloads, key=lambda workload: workload.models):
        turns: list[Turn] = []
        for row in (row for workload in together for row in workload.rows):
            able = [peer for peer in peers if concerns(row, peer.name)]
            reasons = {peer.name: row.client.refuses(peer, models[row.model]) for peer in able}
            refused[row.key] = {name: reason for name, reason in reasons.items() if reason is not None}
            for alternation in range(1 if settings.quick and row.slow else settings.alternations):
                turns += [Turn(row, peer.name, alternation) for peer in able if reasons[peer.name] is None]
        if turns:
            stages.append(Stage(served, any(turn.row.client.form in OVER_GRPC for turn in turns), tuple(turns)))
    return Plan(tuple(stages), refused)


def expected_s(plan: Plan, peers: Mapping[str, Peer], settings: Settings) -> float:
    """How long it takes, roughly."""
    total = 0.0
    for stage in plan.stages:
        total += sum(turn.row.client.expected_s(settings, peers[turn.peer]) for turn in stage.turns)
        if not stage.turns[0].row.client.starts:
            total += sum(peers[name].start_s + 1 for name in stage.peers)
    return total
