"""Trace settings: sampling, overriding field by field, clearing, replacing (docs/reference/traces.md#settings)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import Collected

from trireme.engine.clock import SystemClock
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.tracing import TraceConfig, TraceLevel, TraceMode, Tracer
from trireme.engine.tracing.record import SpanContext

ON = TraceLevel.TIMESTAMPS
CONTEXT = SpanContext(1, 2)


def tracer(sink: Collected | None = None, **fields: object) -> Tracer:
    settings: dict = {"level": ON, "rate": 1, "file": "t", **fields}
    return Tracer(TraceConfig(**settings), SystemClock(), sink or Collected())


def sampled(of: Tracer, requests: int, model: str = "m") -> list[int]:
    """Which of so many requests are traced; their traces end at once."""
    numbers = []
    for number in range(requests):
        trace = of.begin(model)
        if trace is not None:
            numbers.append(number)
            trace.leave()
    return numbers


@given(st.integers(1, 7), st.integers(-1, 5), st.integers(0, 40))
def test_of_every_rate_requests_the_last_is_traced_while_the_count_lasts(rate: int, count: int, requests: int) -> None:
    expected = list(range(rate - 1, requests, rate))
    if count >= 0:
        expected = expected[:count]
    one = tracer(rate=rate, count=count)
    assert sampled(one, requests) == expected
    assert one.setting().count == (count - len(expected) if count >= 0 else -1)


@pytest.mark.parametrize("fields", [{"level": TraceLevel.OFF}, {"file": ""}, {"rate": 0}, {"count": 0}])
def test_what_cannot_trace_traces_nothing_and_is_not_even_asked(fields: dict) -> None:
    one = tracer(**fields)
    assert not one.active
    assert sampled(one, 3) == []


def test_a_model_with_a_setting_of_its_own_is_counted_apart() -> None:
    one = tracer(rate=2)
    one.change("m", rate=3)
    assert sampled(one, 7, "m") == [2, 5]
    assert sampled(one, 5, "other") == [1, 3]


def test_fields_that_were_not_set_follow_the_server() -> None:
    one = tracer(rate=2, log_frequency=5)
    one.change("m", rate=3)
    one.change(rate=4, log_frequency=6, level=TraceLevel.TENSORS)
    setting = one.setting("m")
    assert (setting.rate, setting.log_frequency, setting.level) == (3, 6, TraceLevel.TENSORS)
    one.change("m", rate=None)
    assert one.setting("m") is one.setting()


def test_clearing_a_field_of_the_server_restores_the_start() -> None:
    one = tracer(rate=2, count=9)
    one.change(rate=4, count=5)
    sampled(one, 8)
    assert one.setting().count == 3
    one.change(rate=None, count=None)
    assert (one.setting().rate, one.setting().count) == (2, 9)


def test_every_change_begins_to_count_anew() -> None:
    one = tracer(rate=3)
    assert sampled(one, 2) == []
    one.change(log_frequency=1)
    assert sampled(one, 3) == [2]


def test_a_count_that_was_set_goes_on_and_one_that_was_not_begins_with_what_is_left_behind_it() -> None:
    one = tracer(count=50)
    sampled(one, 2)
    one.change("own", rate=2)
    assert one.setting("own").count == 48
    one.change(rate=2)
    assert one.setting().count == 50  # as at start: it was never set
    one.change(count=7)
    sampled(one, 4)
    one.change(rate=1)
    assert one.setting().count == 5


@pytest.mark.parametrize(
    ("fields", "change", "reason"),
    [
        ({"file": "", "level": TraceLevel.OFF}, {"level": ON}, "trace file name is not given"),
        ({}, {"rate": 0}, "sample rate must be non-zero"),
        ({}, {"count": 0}, "trace count must be non-zero"),
    ],
)
def test_a_setting_that_would_trace_but_cannot_is_refused_as_a_whole(fields: dict, change: dict, reason: str) -> None:
    one = tracer(**fields)
    before = one.setting()
    with pytest.raises(InvalidArgumentError, match=f"^Attempting to set invalid trace setting :{reason}$"):
        one.change(log_frequency=77, **change)
    assert one.setting() is before


def test_what_does_not_trace_may_have_any_numbers() -> None:
    one = tracer(level=TraceLevel.OFF, file="")
    one.change(rate=0, count=0)
    assert (one.setting().rate, one.setting().count) == (0, 0)


def test_a_model_whose_count_ran_out_does_not_stand_in_the_way_of_the_server() -> None:
    one = tracer()
    one.change("m", count=1)
    assert sampled(one, 3) == [0]
    one.change(rate=5)
    assert (one.setting("m").count, one.setting("m").rate) == (0, 5)


def test_active_follows_the_settings() -> None:
    one = tracer(level=TraceLevel.OFF)
    assert not one.active
    one.change("m", level=ON)
    assert one.active
    one.change("m", level=None)
    assert not one.active


def test_replaced_settings_are_retired() -> None:
    sink = Collected()
    one = tracer(sink)
    one.change("m", rate=2)
    (server, model) = (one.setting(), one.setting("m"))
    one.change(rate=3)
    assert sink.retired == [server, model]
    assert all(setting.retired for setting in sink.retired)
    one.close()
    assert len(sink.retired) == 4
    assert not one.active


def test_a_request_that_comes_again_is_traced_then() -> None:
    one = tracer(rate=3, count=2)
    for _ in range(5):
        assert one.begin("m") is None
        one.forget("m", None)
    sampled(one, 2)
    trace = one.begin("m")
    assert trace is not None
    one.forget("m", trace)
    assert (one.setting().count, one.setting().open) == (2, 0)
    assert sampled(one, 1) == [0]


def test_a_callers_context_is_traced_whatever_rate_and_count_but_not_when_off() -> None:
    one = tracer(mode=TraceMode.OPENTELEMETRY, rate=0, count=0, file="")
    assert one.active
    trace = one.begin("m", CONTEXT)
    assert trace is not None
    assert trace.context is CONTEXT
    assert one.begin("m") is None
    assert one.setting().count == 0
    one.change(level=TraceLevel.OFF)
    assert one.begin("m", CONTEXT) is None
    assert not one.active


def test_contexts_mean_nothing_to_trace_files() -> None:
    assert tracer(rate=5).begin("m", CONTEXT) is None
