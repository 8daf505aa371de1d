"""Service times from the traces of real traffic."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.logs.request_log import LoggedRequest, LoggedResult
from trireme.engine.profiles.recorded import (
    LEAST_SAMPLES,
    RecordedBatch,
    batches_of_log,
    batches_of_traces,
    service_points,
)

NAMES = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


def traced(number: int, model: str, *ns: int) -> list[dict[str, Any]]:
    stamps = [{"name": name, "ns": each} for name, each in zip(NAMES, ns, strict=False)]
    return [{"id": number, "model_name": model, "model_version": 1}, {"id": number, "timestamps": stamps}]


def batch(rows: int, begun_s: float, ended_s: float) -> RecordedBatch:
    return RecordedBatch("m", 1, rows, begun_s, begun_s, ended_s, ended_s)


def test_requests_that_were_computed_together_were_one_batch() -> None:
    elements = [*traced(1, "m", 10, 11, 18, 20), *traced(2, "m", 10, 11, 18, 20), *traced(3, "m", 30, 31, 32, 33)]
    elements += traced(4, "other", 10, 11, 18, 20) + traced(5, "m", 50)  # not executed to its end
    first, other, third = batches_of_traces(json.dumps(elements), "t")
    assert (first.model, first.rows, first.begun_s, first.ended_s) == ("m", 2, 1e-8, 2e-8)
    assert (other.model, other.rows) == ("other", 1)
    assert (third.model, third.rows) == ("m", 1)


def test_rows_are_those_of_the_inputs_where_they_are_traced() -> None:
    tensor = {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": {"name": "I", "shape": "4,16"}}
    (only,) = batches_of_traces(json.dumps([*traced(1, "m", 1, 2, 3, 4), tensor]), "t")
    assert only.rows == 4


def test_a_log_with_results_tells_of_batches() -> None:
    """Requests of one instance that began together were one batch, of as many rows as the log says."""
    first = LoggedResult(
        2_000.0, queue_us=500.0, input_us=10.0, infer_us=900.0, output_us=90.0, batch=3, instance="m_0"
    )
    later = replace(first, queue_us=0.0)
    log = [
        LoggedRequest(1.0, "m", rows=1, result=first),
        LoggedRequest(1.0005, "m", rows=2, result=later),
        LoggedRequest(1.0005, "m", rows=3, result=replace(later, instance="m_1")),
        LoggedRequest(2.0, "m", result=replace(first, batch=1)),
        LoggedRequest(3.0, "m", result=replace(first, batch=0)),
        LoggedRequest(4.0, "m", result=replace(first, outcome="failed")),
        LoggedRequest(5.0, "m"),
    ]
    batches = batches_of_log(log)
    assert [each.rows for each in batches] == [3, 3, 1]
    assert all(each.ended_s - each.begun_s == pytest.approx(0.001) for each in batches)
    assert batches[0].input_end_s - batches[0].begun_s == pytest.approx(0.00001)


@pytest.mark.parametrize("text", ["", "{}", "[1]"])
def test_what_is_no_trace_file_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^t: "):
        batches_of_traces(text, "t")


def test_neighbours_are_counted() -> None:
    """Two instances that execute all the time are two side by side, one alone is one."""
    pairs = [batch(4, start, start + 1.0) for index in range(10) for start in (2.0 * index, 2.0 * index)]
    alone = [batch(4, 100.0 + 2 * index, 100.5 + 2 * index) for index in range(10)]
    points = service_points([*pairs, *alone], cores=1.0)
    assert [(point.rows, point.side_by_side, point.time.mean_s) for point in points] == [(4, 1, 0.5), (4, 2, 1.0)]


def test_few_samples_make_no_point_unless_there_are_no_others() -> None:
    many, few = [batch(1, 2.0 * i, 2.0 * i + 1) for i in range(LEAST_SAMPLES)], [batch(8, 1000.0, 1001.0)]
    assert [point.rows for point in service_points([*many, *few], 1.0)] == [1]
    assert [point.rows for point in service_points(few, 1.0)] == [8]
    with pytest.raises(InvalidArgumentError, match="no batch"):
        service_points([], 1.0)


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0, 100), st.floats(0.001, 10)), min_size=1, max_size=60))
def test_there_is_always_a_point_for_one_alone(drawn: list[tuple[int, float, float]]) -> None:
    batches = sorted((batch(rows, begun, begun + took) for rows, begun, took in drawn), key=lambda each: each.begun_s)
    points = service_points(batches, 0.5)
    assert any(point.side_by_side == 1 for point in points)
    assert {point.rows for point in points} <= {rows for rows, _, _ in drawn}
    longest = max(took for _, _, took in drawn)
    assert all(point.time.mean_s <= longest * 1.001 for point in points)
