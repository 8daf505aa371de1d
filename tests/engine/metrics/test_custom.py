"""Models' own metrics: shared by name and labels, gone with their last holder, printed as they stand."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from trireme.engine.backends.interface import Backend, LoadedModel
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.errors import InternalError, InvalidArgumentError, UnsupportedError
from trireme.engine.metrics.custom import CustomMetrics, MetricKind
from trireme.engine.metrics.page import write_text

DELETED = "Invalid metric operation as the corresponding 'MetricFamily' has been deleted"


@pytest.fixture
def metrics() -> CustomMetrics:
    return CustomMetrics()


def page(metrics: CustomMetrics) -> list[str]:
    return [line for line in write_text(metrics.families()).splitlines() if not line.startswith("#")]


def test_every_kind_on_the_page(metrics: CustomMetrics) -> None:
    counter = metrics.create_metric(
        metrics.create_family("requests_total", 'A "counter"', MetricKind.COUNTER), {"b": "2", "a": "1"}
    )
    gauge = metrics.create_metric(metrics.create_family("vllm:depth", "A gauge", MetricKind.GAUGE))
    histogram = metrics.create_metric(
        metrics.create_family("sizes", "A histogram", MetricKind.HISTOGRAM), {"z": "1"}, [0.5, 1]
    )
    metrics.increment(counter, 2)
    metrics.increment(counter, 0.5)
    metrics.increment(gauge, 5)
    metrics.increment(gauge, -7)
    for value in (0.5, 0.75, 3):
        metrics.observe(histogram, value)
    assert write_text(metrics.families()) == (
        '# HELP requests_total A "counter"\n'
        "# TYPE requests_total counter\n"
        'requests_total{a="1",b="2"} 2.5\n'
        "# HELP vllm:depth A gauge\n"
        "# TYPE vllm:depth gauge\n"
        "vllm:depth -2\n"
        "# HELP sizes A histogram\n"
        "# TYPE sizes histogram\n"
        'sizes_count{z="1"} 3\n'
        'sizes_sum{z="1"} 4.25\n'
        'sizes_bucket{z="1",le="0.5"} 1\n'
        'sizes_bucket{z="1",le="1"} 2\n'
        'sizes_bucket{z="1",le="+Inf"} 3\n'
    )


def test_series_are_there_at_once_and_families_without_series_are_not(metrics: CustomMetrics) -> None:
    family = metrics.create_family("depth", "", MetricKind.GAUGE)
    assert write_text(metrics.families()) == ""
    metrics.create_metric(family, {"empty": ""})
    assert page(metrics) == ['depth{empty=""} 0']


def test_a_family_is_shared_by_name_and_kind(metrics: CustomMetrics) -> None:
    first = metrics.create_family("depth", "the first description", MetricKind.GAUGE)
    second = metrics.create_family("depth", "another one", MetricKind.GAUGE)
    with pytest.raises(InvalidArgumentError, match=r"^Family name already exists with different type$"):
        metrics.create_family("depth", "", MetricKind.COUNTER)
    one = metrics.create_metric(first, {"a": "1", "b": "2"})
    same = metrics.create_metric(second, {"b": "2", "a": "1"})
    metrics.set(one, 3)
    assert metrics.value(same) == 3
    assert "the first description" in write_text(metrics.families())
    assert page(metrics) == ['depth{a="1",b="2"} 3']


def test_a_series_lives_until_its_last_holder_lets_go(metrics: CustomMetrics) -> None:
    family = metrics.create_family("depth", "", MetricKind.GAUGE)
    one, two = metrics.create_metric(family), metrics.create_metric(family)
    metrics.set(one, 9)
    metrics.delete_metric(one)
    assert metrics.value(two) == 9
    metrics.delete_metric(two)
    metrics.delete_metric(two)
    assert page(metrics) == []
    assert metrics.value(metrics.create_metric(family)) == 0


def test_a_family_takes_its_holders_metrics_with_it_and_no_others(metrics: CustomMetrics) -> None:
    mine = metrics.create_family("depth", "", MetricKind.GAUGE)
    yours = metrics.create_family("depth", "", MetricKind.GAUGE)
    shared = {"shared": "yes"}
    my_shared, your_shared = metrics.create_metric(mine, shared), metrics.create_metric(yours, shared)
    my_own = metrics.create_metric(mine)
    metrics.set(my_shared, 4)
    metrics.delete_family(mine)
    for gone in (my_shared, my_own):
        for use in (metrics.value, lambda metric: metrics.set(metric, 1), lambda metric: metrics.increment(metric, 1)):
            with pytest.raises(InternalError, match=DELETED):
                use(gone)
    metrics.delete_metric(my_own)
    assert metrics.value(your_shared) == 4
    assert page(metrics) == ['depth{shared="yes"} 4']
    metrics.delete_family(yours)
    assert write_text(metrics.families()) == ""
    metrics.create_family("depth", "its name is free for another kind", MetricKind.COUNTER)
    for use in (metrics.delete_family, metrics.create_metric):
        with pytest.raises(InvalidArgumentError, match=f"there is no metric family {mine}"):
            use(mine)


def test_counters_never_fall_and_are_never_set(metrics: CustomMetrics) -> None:
    counter = metrics.create_metric(metrics.create_family("total", "", MetricKind.COUNTER))
    text = r"^TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.$"
    with pytest.raises(InvalidArgumentError, match=text):
        metrics.increment(counter, -1e-9)
    metrics.increment(counter, 0)
    with pytest.raises(UnsupportedError, match=r"^TRITONSERVER_METRIC_KIND_COUNTER does not support Set$"):
        metrics.set(counter, 1)
    with pytest.raises(UnsupportedError, match=r"^TRITONSERVER_METRIC_KIND_COUNTER does not support Observe$"):
        metrics.observe(counter, 1)
    assert metrics.value(counter) == 0


def test_a_gauge_takes_any_number_and_observes_none(metrics: CustomMetrics) -> None:
    gauge = metrics.create_metric(metrics.create_family("depth", "", MetricKind.GAUGE))
    for value, text in ((math.nan, "Nan"), (-math.inf, "-Inf"), (1e30, "1e+30"), (-0.5, "-0.5")):
        metrics.set(gauge, value)
        assert page(metrics) == [f"depth {text}"]
    with pytest.raises(UnsupportedError, match=r"^TRITONSERVER_METRIC_KIND_GAUGE does not support Observe$"):
        metrics.observe(gauge, 1)


def test_a_histogram_only_observes(metrics: CustomMetrics) -> None:
    histogram = metrics.create_metric(metrics.create_family("sizes", "", MetricKind.HISTOGRAM), {}, [])
    with pytest.raises(UnsupportedError, match=r"^TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment$"):
        metrics.increment(histogram, 1)
    with pytest.raises(UnsupportedError, match=r"^TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set$"):
        metrics.set(histogram, 1)
    with pytest.raises(UnsupportedError, match=r"^Unsupported TRITONSERVER_MetricKind$"):
        metrics.value(histogram)
    assert page(metrics) == ["sizes_count 0", "sizes_sum 0", 'sizes_bucket{le="+Inf"} 0']


@pytest.mark.parametrize(
    ("kind", "labels", "buckets", "text"),
    [
        (MetricKind.HISTOGRAM, {}, None, "^Failed to create metric. Missing required buckets.$"),
        (MetricKind.GAUGE, {}, [1.0], "^Failed to create metric. Unexpected buckets found.$"),
        (MetricKind.COUNTER, {}, [], "^Failed to create metric. Unexpected buckets found.$"),
        (MetricKind.HISTOGRAM, {}, [2.0, 1.0], "must increase"),
        (MetricKind.HISTOGRAM, {}, [1.0, math.nan], "must increase"),
        (MetricKind.HISTOGRAM, {"le": "1"}, [1.0], "'le' is no name"),
        (MetricKind.GAUGE, {"a-b": "1"}, None, "'a-b' is no name for a label"),
        (MetricKind.GAUGE, {"": "1"}, None, "'' is no name for a label"),
        (MetricKind.GAUGE, {"__x": "1"}, None, "'__x' is no name for a label"),
        (MetricKind.GAUGE, {"a": "x\udc80"}, None, r"^the value of label 'a' is no valid Unicode: 'x\\udc80'$"),
        (MetricKind.GAUGE, {"a": 1}, None, "^attempt to access JSON non-string as string$"),
    ],
)
def test_what_cannot_be_printed_is_refused(
    metrics: CustomMetrics, kind: MetricKind, labels: dict[str, str], buckets: list[float] | None, text: str
) -> None:
    family = metrics.create_family("f", "", kind)
    with pytest.raises(InvalidArgumentError, match=text):
        metrics.create_metric(family, labels, buckets)
    assert page(metrics) == []


@pytest.mark.parametrize("name", ["", "my gauge", "1st", "nv_inference_count", "nv_gpu_x", "trireme_x"])
def test_names_that_are_none_or_the_servers_own_are_refused(metrics: CustomMetrics, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'{name}'"):
        metrics.create_family(name, "", MetricKind.GAUGE)


def test_a_description_that_is_no_text_is_refused(metrics: CustomMetrics) -> None:
    with pytest.raises(InvalidArgumentError, match="the description of a metric family is no valid Unicode"):
        metrics.create_family("depth", "\ud800", MetricKind.GAUGE)


@given(
    st.dictionaries(
        st.from_regex(r"(?!__|le$|quantile$)[a-zA-Z_][a-zA-Z0-9_]*", fullmatch=True), st.text(), max_size=3
    ),
    st.text(),
    st.floats(allow_nan=False),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_accepted_comes_back_from_prometheus_own_parser(
    labels: dict[str, str], description: str, value: float
) -> None:
    metrics = CustomMetrics()
    metrics.set(metrics.create_metric(metrics.create_family("depth", description, MetricKind.GAUGE), labels), value)
    text = write_text(metrics.families()).encode().decode()
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    assert (sample.name, sample.labels, sample.value) == ("depth", labels, value)


def test_values_of_a_family_can_be_read(metrics: CustomMetrics) -> None:
    family = metrics.create_family("blocks", "", MetricKind.GAUGE)
    for number, kind in enumerate(("used", "max")):
        metrics.set(metrics.create_metric(family, {"kind": kind}), number)
    assert metrics.values("blocks") == [({"kind": "used"}, 0), ({"kind": "max"}, 1)]
    assert metrics.values("unknown") == []


def test_threads_lose_no_increment_and_leave_nothing_behind(metrics: CustomMetrics) -> None:
    keeper = metrics.create_metric(metrics.create_family("total", "", MetricKind.COUNTER))

    def work() -> None:
        for _ in range(200):
            family = metrics.create_family("total", "", MetricKind.COUNTER)
            metric = metrics.create_metric(family)
            metrics.increment(metric, 1)
            assert len(page(metrics)) == 1
            metrics.delete_family(family)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    assert metrics.value(keeper) == 800
    assert len(page(metrics)) == 1


def test_backends_are_given_the_registrys_services() -> None:
    class Plain(Backend):
        name = "plain"

        def load(self, config: object, files: object) -> LoadedModel:
            raise AssertionError

    registry = BackendRegistry(lambda _name: {}, {"plain": Plain})
    assert registry.get("plain").services.custom_metrics is registry.services.custom_metrics
