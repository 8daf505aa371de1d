"""What a replica has done between two looks at its statistics, by model (`engine.fleet.scaling.LoadReading`), and how
it tells that, and what the models' memory needs, in numbers with names, which is what Ray collects from replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.fleet.scaling import LoadReading

_SEPARATOR = "|"
_FIELDS = ("rate_hz", "queue_s", "busy", "instances")
_NEEDED = "needed"


class LoadMeter:
    """Takes records of `Management.model_statistics`, which count from the start of each model, one after the other."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float, float]] = {}
        self._looked_s = 0.0

    def read(
        self, records: Sequence[Mapping[str, Any]], instances: Mapping[str, int], now_s: float
    ) -> dict[str, LoadReading]:
        """What was done since the last call, of each model that has instances; nothing the first time."""
        counts: dict[str, tuple[float, float, float]] = {}
        for record in records:
            queue, batches = record["inference_stats"]["queue"], record["batch_stats"]
            phases = ("compute_input", "compute_infer", "compute_output")
            busy_ns = sum(int(batch[phase]["ns"]) for batch in batches for phase in phases)
            before = counts.get(record["name"], (0.0, 0.0, 0.0))
            added = (float(queue["count"]), float(queue["ns"]) / 1e9, busy_ns / 1e9)
            counts[record["name"]] = (before[0] + added[0], before[1] + added[1], before[2] + added[2])
        elapsed_s = now_s - self._looked_s
        readings = {
            name: _reading(counts[name], self._before[name], elapsed_s, count)
            for name, count in instances.items()
            if count and name in counts and name in self._before and elapsed_s > 0
        }
        self._before, self._looked_s = counts, now_s
        return readings


def _reading(
    after: tuple[float, float, float], before: tuple[float, float, float], elapsed_s: float, instances: int
) -> LoadReading:
    if after[0] < before[0]:  # it was loaded again
        before = (0.0, 0.0, 0.0)
    count, queued_s, busy_s = (one - other for one, other in zip(after, before, strict=True))
    return LoadReading(count / elapsed_s, queued_s / count if count else 0.0, busy_s / elapsed_s, instances)


def write_readings(readings: Mapping[str, LoadReading], needed: int = 0) -> dict[str, float]:
    """Args: needed: replicas, for the memory of the models."""
    numbers = {
        f"{field}{_SEPARATOR}{name}": float(getattr(reading, field))
        for name, reading in readings.items()
        for field in _FIELDS
    }
    return numbers | {_NEEDED: float(needed)}


def read_needed(numbers: Mapping[str, Mapping[Any, float]]) -> int:
    """How many replicas the models need for their memory, by the one that says most; see `read_readings`."""
    return round(max(numbers.get(_NEEDED, {}).values(), default=0.0))


def read_readings(numbers: Mapping[str, Mapping[Any, float]]) -> dict[str, list[LoadReading]]:
    """By model, those of all replicas, of what Ray gives: for each name the number of each replica."""
    found: dict[str, dict[Any, dict[str, float]]] = {}
    for key, by_replica in numbers.items():
        field, separator, name = key.partition(_SEPARATOR)
        if not separator:
            continue
        for replica, value in by_replica.items():
            found.setdefault(name, {}).setdefault(replica, {})[field] = value
    return {
        name: [
            LoadReading(told["rate_hz"], told["queue_s"], told["busy"], max(round(told["instances"]), 1))
            for told in by_replica.values()
            if len(told) == len(_FIELDS)
        ]
        for name, by_replica in found.items()
    }
