"""The statistics of replicas, added up (docs/reference/http.md#statistics).

Counts and durations are sums, by batch size and by index of response, too; the time of the last inference is the latest
one. What a machine's memory holds cannot be added up: the rows of all replicas stand one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..proto.messages import inference as pb

_COMPUTE = ("compute_input", "compute_infer", "compute_output")
_INFERENCE = ("success", "fail", "queue", *_COMPUTE, "cache_hit", "cache_miss")
_RESPONSES = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
_COUNTS = ("inference_count", "execution_count")

Sums = dict[str, dict[str, int]]


class _Record:
    """What is known of one version."""

    def __init__(self) -> None:
        self.last_inference = 0
        self.counts = dict.fromkeys(_COUNTS, 0)
        self.inference = _zeros(_INFERENCE)
        self.responses: dict[str, Sums] = {}
        self.batches: dict[int, Sums] = {}
        self.memory: list[dict[str, Any]] = []

    def add(self, row: pb.ModelStatistics) -> None:
        self.last_inference = max(self.last_inference, row.last_inference)
        for name in _COUNTS:
            self.counts[name] += getattr(row, name)
        _add(self.inference, row.inference_stats)
        for key, responses in row.response_stats.items():
            _add(self.responses.setdefault(key, _zeros(_RESPONSES)), responses)
        for batch in row.batch_stats:
            _add(self.batches.setdefault(batch.batch_size, _zeros(_COMPUTE)), batch)
        self.memory += [{"type": each.type, "id": each.id, "byte_size": each.byte_size} for each in row.memory_usage]

    def shown(self, name: str, version: str) -> dict[str, Any]:
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference,
            **self.counts,
            "inference_stats": self.inference,
            "response_stats": {
                key: self.responses[key] for key in sorted(self.responses, key=lambda key: (len(key), key))
            },
            "batch_stats": [{"batch_size": size, **sums} for size, sums in sorted(self.batches.items())],
            "memory_usage": self.memory,
        }


def _zeros(names: Iterable[str]) -> Sums:
    return {name: {"count": 0, "ns": 0} for name in names}


def _add(sums: Sums, given: object) -> None:
    for name, entry in sums.items():
        duration = getattr(given, name, None)
        if duration is not None:
            entry["count"] += duration.count
            entry["ns"] += duration.ns


def add_up(answers: Mapping[str, bytes]) -> dict[str, Any]:
    """The statistics of all, from the `ModelStatisticsResponse` of each replica."""
    records: dict[tuple[str, str], _Record] = {}
    for answer in answers.values():
        for row in pb.ModelStatisticsResponse.parse(answer).model_stats:
            records.setdefault((row.name, row.version), _Record()).add(row)
    return {"model_stats": [record.shown(*key) for key, record in sorted(records.items(), key=_by_version)]}


def _by_version(item: tuple[tuple[str, str], object]) -> tuple[str, int]:
    (name, version), _ = item
    return name, int(version) if version.isdecimal() else 0
