"""A model's service times from batches that real traffic was executed in: no load is made for them.

Rules:
 1. Traces tell of requests. Those of one model that began and ended to compute at the same nanoseconds were one batch;
    its rows are those of its inputs, where the trace has tensors, else one a request. A batch of which some requests
    were not traced looks smaller than it was, so all requests must be (rate 1).
 2. Request logs with results tell of requests as well, and how many rows their batches had. Those of one instance that
    began to compute within `TOGETHER_S` were one batch.
 3. How many instances executed side by side is the mean over the batch's time, rounded.
 4. Batches of equal rows and neighbours make a point; points of fewer than `LEAST_SAMPLES` are left out, unless nothing
    else is known of the model. A model of which no batch ran alone gets its fewest neighbours for that.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError
from ..logs.request_log import LoggedRequest, LoggedResult
from .durations import TimeDistribution
from .profile import ServicePoint

LEAST_SAMPLES = 5
TOGETHER_S = 0.00005

_MARKS = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """A batch that was executed; times are seconds of one clock.

    Attributes:
        version: 0 for unknown: the client asked for none in particular.
        input_end_s, output_start_s: when its inputs were gathered, and its outputs computed.
    """

    model: str
    version: int
    rows: int
    begun_s: float
    input_end_s: float
    output_start_s: float
    ended_s: float


def batches_of_traces(text: str, where: str) -> list[RecordedBatch]:
    """The batches that a trace file tells of (docs/reference/traces.md), of all models, in the order of their
    beginnings.

    Raises:
        InvalidArgumentError: it is no trace file; the text begins with `where`.
    """
    try:
        elements = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{where}: not JSON: {error}") from error
    if not isinstance(elements, list) or not all(isinstance(each, dict) for each in elements):
        raise InvalidArgumentError(f"{where}: expected a list of objects, as trace files have them")
    subjects: dict[Any, tuple[str, int]] = {}
    marks: dict[Any, dict[str, int]] = {}
    rows: dict[Any, int] = {}
    for element in elements:
        trace = element.get("id")
        if "model_name" in element:
            subjects[trace] = str(element["model_name"]), int(element.get("model_version", 1))
        for stamp in element.get("timestamps", ()):
            marks.setdefault(trace, {}).setdefault(str(stamp.get("name")), stamp.get("ns"))
        if element.get("activity") == "TENSOR_QUEUE_INPUT":
            shape = str(element.get("tensor", {}).get("shape", "")).split(",")
            if shape[0].isdecimal() and len(shape) > 1:
                rows[trace] = int(shape[0])
    batches: dict[tuple[Any, ...], int] = {}
    for trace, (model, version) in subjects.items():
        found = marks.get(trace, {})
        times = tuple(found.get(name) for name in _MARKS)
        if all(isinstance(each, int) for each in times):
            key = model, version, *times
            batches[key] = batches.get(key, 0) + rows.get(trace, 1)
    made = [RecordedBatch(key[0], key[1], count, *(each / 1e9 for each in key[2:])) for key, count in batches.items()]
    return sorted(made, key=lambda batch: (batch.begun_s, batch.ended_s))


def batches_of_log(log: Iterable[LoggedRequest]) -> list[RecordedBatch]:
    """The batches that a request log with results tells of (rule 2), of all models, in order of their beginnings."""
    by_instance: dict[tuple[str, str], list[tuple[float, LoggedRequest, LoggedResult]]] = {}
    for request in log:
        result = request.result
        if result is not None and result.batch and not result.outcome:
            begun_s = request.offset_s + result.queue_us / 1e6
            by_instance.setdefault((request.model, result.instance), []).append((begun_s, request, result))
    batches: list[RecordedBatch] = []
    for (model, _), executed in by_instance.items():
        last_s = -math.inf
        for begun_s, request, result in sorted(executed, key=lambda each: each[0]):
            if begun_s - last_s > TOGETHER_S:
                last_s = begun_s
                input_end_s = begun_s + result.input_us / 1e6
                output_start_s = input_end_s + result.infer_us / 1e6
                times = begun_s, input_end_s, output_start_s, output_start_s + result.output_us / 1e6
                batches.append(RecordedBatch(model, max(0, request.version), result.batch, *times))
    return sorted(batches, key=lambda batch: (batch.begun_s, batch.ended_s))


def service_points(batches: Iterable[RecordedBatch], cores: float) -> tuple[ServicePoint, ...]:
    """What batches of one model say of its service times (rules 3 and 4).

    Args:
        batches: in the order of their beginnings.
        cores: processor seconds a second of execution, which batches do not tell.

    Raises:
        InvalidArgumentError: there are none.
    """
    groups: dict[tuple[int, int], list[RecordedBatch]] = {}
    for batch, neighbours in _with_neighbours(list(batches)):
        groups.setdefault((batch.rows, neighbours), []).append(batch)
    if not groups:
        raise InvalidArgumentError("no batch of the model was recorded")
    most = {key: group for key, group in groups.items() if len(group) >= LEAST_SAMPLES} or groups
    points = [_point(rows, neighbours, group, cores) for (rows, neighbours), group in sorted(most.items())]
    if not any(point.side_by_side == 1 for point in points):
        least = min(point.side_by_side for point in points)
        points += [
            ServicePoint(each.rows, 1, each.cores, each.time, each.copy_in_s, each.copy_out_s)
            for each in points
            if each.side_by_side == least
        ]
    return tuple(sorted(points, key=lambda point: (point.rows, point.side_by_side)))


def _with_neighbours(batches: Sequence[RecordedBatch]) -> Iterator[tuple[RecordedBatch, int]]:
    """Each batch, and how many of them were executed while it was, itself included."""
    overlap = _overlaps(batches)
    for index, batch in enumerate(batches):
        span = batch.ended_s - batch.begun_s
        yield batch, max(1, round(overlap.get(index, 0.0) / span + 1)) if span > 0 else 1


def _overlaps(batches: Sequence[RecordedBatch]) -> Mapping[int, float]:
    """By the index of a batch, for how many seconds others were executed while it was, added up."""
    overlap: dict[int, float] = {}
    running: list[tuple[float, int]] = []
    for index, batch in enumerate(batches):
        while running and running[0][0] <= batch.begun_s:
            heapq.heappop(running)
        for ended_s, other in running:
            shared = min(ended_s, batch.ended_s) - batch.begun_s
            overlap[index] = overlap.get(index, 0.0) + shared
            overlap[other] = overlap.get(other, 0.0) + shared
        heapq.heappush(running, (batch.ended_s, index))
    return overlap


def _point(rows: int, neighbours: int, group: Sequence[RecordedBatch], cores: float) -> ServicePoint:
    count = len(group)
    return ServicePoint(
        rows=rows,
        side_by_side=neighbours,
        cores=cores,
        time=TimeDistribution.of([each.ended_s - each.begun_s for each in group]),
        copy_in_s=sum(each.input_end_s - each.begun_s for each in group) / count,
        copy_out_s=sum(each.ended_s - each.output_start_s for each in group) / count,
    )
