"""Metric families are written the way Triton's library writes them (docs/reference/metrics.md#text)."""

from __future__ import annotations

import math

import pytest

from trireme.engine.metrics.family import MetricFamily
from trireme.engine.metrics.page import write_text


def lines(*families: MetricFamily) -> list[str]:
    return [line for line in write_text(families).splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3.0, "3"),
        (-2.0, "-2"),
        (0.25, "0.25"),
        (25276502016.0, "25276502016"),
        (2**63, "9223372036854775808"),
        (1e300, "1e+300"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "Nan"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert lines(MetricFamily("g", "help", "gauge", value)) == [f"g {text}"]


def test_counters_keep_their_name() -> None:
    family = MetricFamily("c", "help", "counter")
    family.add({"a": "x"}, 1)
    assert write_text([family]) == '# HELP c help\n# TYPE c counter\nc{a="x"} 1\n'


def test_labels_are_sorted_and_escaped() -> None:
    family = MetricFamily("g", "help", "gauge")
    family.add({"z": 'quo"te', "_a": "back\\slash", "m": "new\nline"}, 1)
    assert lines(family) == ['g{_a="back\\\\slash",m="new\\nline",z="quo\\"te"} 1']


def test_help_is_escaped() -> None:
    assert write_text([MetricFamily("g", "a\\b\nc", "gauge", 1)]).startswith("# HELP g a\\\\b\\nc\n")


def test_a_family_without_series_is_left_out() -> None:
    assert write_text([MetricFamily("g", "help", "gauge")]) == ""


def test_a_summary_has_count_and_sum_first_and_the_quantile_last_in_the_labels() -> None:
    family = MetricFamily("s", "help", "summary")
    for quantile in ("0.5", "0.9"):
        family.add({"quantile": quantile, "z": "1"}, 7)
    for labels, number, total in (({"z": "1"}, 4, 10.5), ({"z": "2"}, 0, 0)):
        family.add(labels, number, "_count")
        family.add(labels, total, "_sum")
    assert lines(family) == [
        's_count{z="1"} 4',
        's_sum{z="1"} 10.5',
        's{z="1",quantile="0.5"} 7',
        's{z="1",quantile="0.9"} 7',
        's_count{z="2"} 0',
        's_sum{z="2"} 0',
    ]


def test_a_histogram_has_count_and_sum_first_and_its_buckets_in_order() -> None:
    family = MetricFamily("h", "help", "histogram")
    for bound, number in (("100", 1), ("500", 2), ("+Inf", 3)):
        family.add({"z": "1", "le": bound}, number, "_bucket")
    family.add({"z": "1"}, 3, "_count")
    family.add({"z": "1"}, 1234, "_sum")
    assert lines(family) == [
        'h_count{z="1"} 3',
        'h_sum{z="1"} 1234',
        'h_bucket{z="1",le="100"} 1',
        'h_bucket{z="1",le="500"} 2',
        'h_bucket{z="1",le="+Inf"} 3',
    ]
