"""The results of a run as one JSON document, and the figures that follow from it.

Everything that is shown is made from this document alone, so that tables and charts can be made again from the file.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SUBJECT = "trireme"
"""Every ratio is this peer's figure by another one's."""


@dataclass(frozen=True)
class Metric:
    """What a figure means.

    Attributes:
        digits: behind the point.
    """

    title: str
    more_is_better: bool
    digits: int = 0


METRICS = {
    "throughput": Metric("infer/s", True),
    "p50_us": Metric("p50 µs", False),
    "p99_us": Metric("p99 µs", False),
    "cpu_us": Metric("server CPU µs a request", False, 1),
    "engine_us": Metric("engine CPU µs a request", False, 1),
    "front_end_us": Metric("front end CPU µs a request", False, 1),
    "growth": Metric("CPU by that without the others", False, 2),
    "ready_ms": Metric("ms until ready", False),
    "connections": Metric("open connections", True),
    "connection_kib": Metric("memory a connection, KiB", False, 1),
    "memory_mib": Metric("idle memory, MiB", False),
    "model_kib": Metric("memory a model, KiB", False),
}


@dataclass(frozen=True)
class RowFacts:
    """A row of the tables: its key, and its metrics, of which the first is what it is about."""

    key: str
    workload: str
    what: str
    concurrency: int
    client: str
    metrics: Sequence[str]


@dataclass(frozen=True)
class Sample:
    """A row, measured once on a peer.

    Attributes:
        others_cpu: of one core, what the other servers used meanwhile.
        load: average of the last minute, afterwards.
    """

    row: str
    peer: str
    alternation: int
    metrics: Mapping[str, float]
    others_cpu: float = 0.0
    load: float = 0.0


@dataclass
class Document:
    """All that is known of a run.

    Attributes:
        peers: titles by name, in the order of the columns.
        versions: of peers and clients.
        unavailable: why peers could not take part, by name.
        missing: why a row has no figures of a peer, by row and then by peer.
        notes: how a peer serves a row, where that is not as others do; likewise.
        facts: machine, commit, options, load before and the like.
        ended: "complete", or why it ended earlier.
    """

    peers: dict[str, str]
    rows: list[RowFacts]
    versions: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    missing: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: dict[str, dict[str, str]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    ended: str = "running"

    def write(self, path: Path) -> None:
        """Replace the file, at once."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        os.replace(partial, path)

    @classmethod
    def read(cls, path: Path) -> Document:
        values = json.loads(path.read_text())
        rows = [RowFacts(**row) for row in values.pop("rows")]
        samples = [Sample(**sample) for sample in values.pop("samples")]
        return cls(rows=rows, samples=samples, **values)

    def values(self, row: str, peer: str, metric: str) -> dict[int, float]:
        """What was measured, by alternation."""
        return {
            sample.alternation: sample.metrics[metric]
            for sample in self.samples
            if (sample.row, sample.peer) == (row, peer) and metric in sample.metrics
        }

    def reason(self, row: str, peer: str) -> str | None:
        """Why there are no figures."""
        known = self.missing.get(row, {}).get(peer) or self.unavailable.get(peer)
        return known or (None if self.ended == "complete" or peer not in self.peers else "not reached")

    def has_all(self, row: str, peers: Iterable[str], alternations: int) -> bool:
        """Whether a row was measured so often on each of these peers, or has a reason why one was not."""
        taken = Counter(sample.peer for sample in self.samples if sample.row == row)
        known = self.missing.get(row, {}).keys() | self.unavailable.keys()
        return all(taken[peer] >= alternations or peer in known for peer in peers)


class DifferentError(Exception):
    """Results do not belong together; the message says why not."""


def merge(parts: Sequence[Document], order: Sequence[str] = ()) -> Document:
    """Results of several runs as one: of a row that is in more than one, those of the last run that measured it.

    Args:
        parts: at least one; those that were taken first come first.
        order: keys of rows, those of other rows come behind.

    Raises:
        DifferentError: the machines or versions differ.
    """
    first = parts[0]
    for other in parts[1:]:
        _check_same("machine", first.facts.get("machine", {}), other.facts.get("machine", {}))
        _check_same("versions", first.versions, other.versions)
    whole = Document({}, [])
    rows: dict[str, RowFacts] = {}
    for part in parts:
        whole.peers |= part.peers
        whole.versions |= part.versions
        measured = {sample.row for sample in part.samples}
        for row in part.rows:
            if row.key in rows and row.key not in measured:
                continue
            rows[row.key] = row
            whole.missing[row.key] = {**part.unavailable, **part.missing.get(row.key, {})}
            whole.notes[row.key] = part.notes.get(row.key, {})
            whole.samples = [sample for sample in whole.samples if sample.row != row.key]
            whole.samples += [sample for sample in part.samples if sample.row == row.key]
        found = {**whole.facts.get("runtime_settings", {}), **part.facts.get("runtime_settings", {})}
        whole.facts |= {**part.facts, "runtime_settings": found}
    for name in ("began", "commit", "warning", "alternations", "seconds"):
        values = [part.facts[name] for part in parts if part.facts.get(name)]
        whole.facts[name] = "; ".join(dict.fromkeys(map(str, values)))
    whole.facts["load_before"] = first.facts.get("load_before", ["?"])
    places = {key: place for place, key in enumerate(order)}
    whole.rows = sorted(rows.values(), key=lambda row: places.get(row.key, len(places)))
    whole.ended = next((part.ended for part in parts if part.ended != "complete"), "complete")
    return whole


def _check_same(what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    for name in ours.keys() & theirs.keys():
        if ours[name] != theirs[name]:
            raise DifferentError(f"the runs differ in {what}: {name} is {ours[name]} in one, {theirs[name]} in another")


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of some figures."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread | None:
    """None if there are none."""
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def ratio(document: Document, row: str, peer: str, metric: str) -> Spread | None:
    """The subject's figure by the peer's: of medians, and the lowest and highest of the same alternation."""
    ours, theirs = document.values(row, SUBJECT, metric), document.values(row, peer, metric)
    pairs = [ours[number] / theirs[number] for number in ours if theirs.get(number)]
    if not pairs:
        return None
    medians = statistics.median(ours.values()) / statistics.median(theirs.values())
    return Spread(medians, min(*pairs, medians), max(*pairs, medians))


def is_ahead(metric: str, value: float) -> bool:
    """Whether a ratio speaks for the subject."""
    return value > 1 if METRICS[metric].more_is_better else value < 1
