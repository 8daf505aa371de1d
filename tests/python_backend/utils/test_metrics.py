"""A model's own metrics: checked here, kept by the host, gone with their Python objects."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from recording_host import RecordingHost

from trireme.python_backend.child.utils.errors import TritonModelException
from trireme.python_backend.child.utils.triton_python_backend_utils import Metric, MetricFamily, MetricKind

pytestmark = pytest.mark.usefixtures("model")

WRAPPED = "Failed to process the request for model 'm_0', message: "


def family(kind: int = MetricFamily.COUNTER) -> MetricFamily:
    return MetricFamily(name="n", description="d", kind=MetricKind(kind))


def text_of(call: Callable[[], Any]) -> str:
    with pytest.raises(TritonModelException) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(MetricFamily.COUNTER, "counter"), (MetricFamily.GAUGE, "gauge"), (MetricFamily.HISTOGRAM, "histogram")],
)
def test_host_keeps_what_is_made(host: RecordingHost, kind: Any, name: str) -> None:
    made = family(kind)
    buckets = [1, 2.5] if name == "histogram" else None
    metric = made.Metric(labels={"a": "b"}, buckets=buckets)
    kept = buckets and tuple(buckets)
    assert host.calls == [("create_family", "n", "d", name), ("create_metric", 1, {"a": "b"}, kept)]
    host.calls.clear()
    metric.increment(1)
    metric.set(2)
    metric.observe(3)
    assert metric.value() == 2.5
    assert host.calls == [
        ("metric_increment", 2, 1.0),
        ("metric_set", 2, 2.0),
        ("metric_observe", 2, 3.0),
        ("metric_value", 2),
    ]


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        (2, {}, "Failed to create metric. Missing required buckets."),
        (2, {"buckets": 5}, "Failed to create metric. Buckets must be a list."),
        (2, {"buckets": (1, 2)}, "Failed to create metric. Buckets must be a list."),
        (0, {"buckets": [1]}, "Failed to create metric. Unexpected buckets found."),
        (1, {"buckets": [1]}, "Failed to create metric. Unexpected buckets found."),
        (0, {"labels": [1]}, "Failed to create metric. Labels must be a dictionary."),
    ],
)
def test_bad_arguments_are_told_in_tritons_words(kind: int, arguments: dict[str, Any], text: str) -> None:
    made = family(kind)
    assert text_of(lambda: made.Metric(**arguments)) == text


def test_labels_may_be_left_out(host: RecordingHost) -> None:
    made = family()
    made.Metric()
    assert ("create_metric", 1, {}, None) in host.calls


def test_refusals_are_told_with_what_failed(host: RecordingHost) -> None:
    made = family()
    metric = made.Metric({"a": "b"})
    methods = ("create_family", "create_metric", "metric_increment", "metric_set", "metric_observe", "metric_value")
    host.refusals = dict.fromkeys(methods, "no")
    assert text_of(family) == f"Error when creating MetricFamily: {WRAPPED}no"
    assert text_of(made.Metric) == f"Error when creating Metric: {WRAPPED}no"
    assert text_of(lambda: metric.increment(-1)) == f"Failed to increment metric value: {WRAPPED}no"
    assert text_of(lambda: metric.set(1)) == f"Failed to set metric value: {WRAPPED}no"
    assert text_of(lambda: metric.observe(1)) == f"Failed to observe metric value: {WRAPPED}no"
    assert text_of(metric.value) == f"Failed to get metric value: {WRAPPED}no"


def test_metric_goes_with_its_object(host: RecordingHost) -> None:
    made = family()
    metric: Metric | None = made.Metric({"a": "b"})
    host.calls.clear()
    assert metric is not None
    metric = None
    gc.collect()
    assert host.calls == [("delete_metric", 2)]


def test_metric_is_of_no_use_without_its_family(host: RecordingHost) -> None:
    metric = family().Metric({"a": "b"})
    gc.collect()
    assert ("delete_family", 1) in host.calls
    host.calls.clear()
    assert text_of(metric.value) == (
        "Failed to get metric value: Invalid metric operation as the corresponding 'MetricFamily' has been deleted. "
        "The 'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
    )
    del metric
    gc.collect()
    assert host.calls == []


def test_kinds_and_values_are_checked_before_the_host_hears_of_them(host: RecordingHost) -> None:
    made = family()
    metric = made.Metric()
    host.calls.clear()
    for nonsense in (lambda: MetricFamily("n", "d", 7), lambda: metric.increment("x")):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            nonsense()
    assert host.calls == []
