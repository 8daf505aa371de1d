"""Logs that are drawn have the rates, kinds and sequences that were asked for."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.logs.generators import (
    ArrivalProcess,
    BurstArrivals,
    DiurnalArrivals,
    PoissonArrivals,
    RequestKind,
    StepArrivals,
    generate,
    generate_closed,
)
from trireme.engine.logs.request_log import LoggedLoop, LoggedRequest, read_traffic, write_request_log

RATES = st.floats(0.1, 50)
PROCESSES = st.one_of(
    st.builds(PoissonArrivals, RATES),
    st.builds(BurstArrivals, RATES, st.floats(0.1, 5), st.floats(0.1, 5), st.floats(0, 5)),
    st.builds(DiurnalArrivals, st.floats(0, 0.1), RATES, st.floats(1, 50)),
    st.builds(StepArrivals, st.lists(RATES, min_size=1, max_size=4).map(tuple), st.floats(0.1, 5)),
)
KINDS = st.builds(
    RequestKind,
    model=st.sampled_from(("a", "b")),
    weight=st.floats(0.1, 9),
    rows=st.lists(st.integers(1, 8), min_size=1, max_size=3).map(tuple),
    row_nbytes=st.integers(0, 99),
    sequence_length=st.just(0) | st.floats(1, 5),
    think_s=st.floats(0, 1),
)


@given(PROCESSES, st.lists(KINDS, min_size=1, max_size=3), st.floats(0.1, 5), st.integers())
def test_a_log_is_in_order_and_can_be_written(
    process: ArrivalProcess, kinds: list[RequestKind], seconds: float, seed: int
) -> None:
    traffic = generate(process, kinds, seconds, seed)
    assert generate(process, kinds, seconds, seed) == traffic
    assert read_traffic(write_request_log(traffic)) == traffic
    offsets = [request.offset_s for request in traffic.requests]
    assert offsets == sorted(offsets)
    assert all(request.offset_s <= seconds for request in traffic.requests if not request.sequence or request.start)
    check_sequences(traffic.requests)


@given(st.lists(KINDS, min_size=1, max_size=3), st.integers(1, 50), st.integers())
def test_a_closed_loop_has_what_its_clients_ask(kinds: list[RequestKind], count: int, seed: int) -> None:
    traffic = generate_closed(LoggedLoop(4, 0.5), kinds, count, seed)
    assert read_traffic(write_request_log(traffic)) == traffic
    assert len(traffic.requests) >= count
    assert {request.offset_s for request in traffic.requests} == {0.0}
    check_sequences(traffic.requests)


def check_sequences(requests: object) -> None:
    """Each begins once, ends once, and goes on in between."""
    sequences: dict[int | str, list[LoggedRequest]] = {}
    for request in requests:  # type: ignore[attr-defined]
        if request.sequence:
            sequences.setdefault(request.sequence, []).append(request)
        else:
            assert (request.start, request.end) == (False, False)
    for steps in sequences.values():
        assert [step.start for step in steps] == [True] + [False] * (len(steps) - 1)
        assert [step.end for step in steps] == [False] * (len(steps) - 1) + [True]


def rates(process: ArrivalProcess, seconds: int) -> list[int]:
    """Arrivals of each second."""
    counts = Counter(int(at_s) for at_s in process.offsets(Random(7), seconds))
    return [counts[second] for second in range(seconds)]


def test_poisson_keeps_its_rate() -> None:
    found = rates(PoissonArrivals(100), 200)
    mean = sum(found) / 200
    assert mean == pytest.approx(100, rel=0.03)
    assert sum((count - mean) ** 2 for count in found) / 200 == pytest.approx(100, rel=0.25)


def test_a_day_rises_and_falls() -> None:
    found = rates(DiurnalArrivals(10, 200, 100), 200)
    assert sum(found) / 200 == pytest.approx(105, rel=0.05)
    assert sum(found[45:55]) / 10 == pytest.approx(200, rel=0.1)
    assert sum(found[95:105]) / 10 == pytest.approx(10, rel=0.6)


def test_steps_follow_one_another_and_begin_anew() -> None:
    found = rates(StepArrivals((100, 0, 300), 10), 60)
    averages = [sum(found[at : at + 10]) / 10 for at in range(0, 60, 10)]
    assert averages == [pytest.approx(rate, rel=0.15) for rate in (100, 0, 300, 100, 0, 300)]


def test_bursts_have_quiet_times_between_them() -> None:
    process = BurstArrivals(1000, on_s=1, off_s=3)
    offsets = list(process.offsets(Random(3), 400))
    assert len(offsets) / 400 == pytest.approx(250, rel=0.3)
    gaps = [later - earlier for earlier, later in pairwise(offsets) if later - earlier > 0.1]
    assert 60 < len(gaps) < 140
    assert sum(gaps) / 400 == pytest.approx(0.75, rel=0.2)


def test_kinds_come_as_often_as_their_weights_say() -> None:
    kinds = [RequestKind("a", weight=3, rows=(2, 4), row_nbytes=10), RequestKind("b", sequence_length=4)]
    requests = generate(PoissonArrivals(1000), kinds, 20).requests
    found = Counter(request.model for request in requests)
    assert found["a"] / 20 == pytest.approx(750, rel=0.05)
    assert found["b"] / 20 == pytest.approx(1000, rel=0.1)
    assert {(request.rows, request.nbytes) for request in requests if request.model == "a"} == {(2, 20), (4, 40)}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PoissonArrivals(0), "rate_hz must be more than 0 and finite, not 0"),
        (lambda: PoissonArrivals(float("nan")), "rate_hz must be more than 0 and finite, not nan"),
        (lambda: BurstArrivals(1, 1, 1, -1), "quiet_hz must be at least 0 and finite, not -1"),
        (lambda: DiurnalArrivals(3, 2, 1), "least_hz must be from 0 to 2, not 3"),
        (lambda: StepArrivals((), 1), "rates_hz must be more than 0 and finite, not 0.0"),
        (lambda: StepArrivals((1, -1), 1), "each of rates_hz must be at least 0 and finite, not -1"),
        (lambda: RequestKind(""), "a kind of requests needs the name of a model"),
        (lambda: RequestKind("m", rows=()), "each of rows must be at least 1 and finite, not 0"),
        (lambda: RequestKind("m", sequence_length=0.5), "sequence_length must be at least 1 and finite, not 0.5"),
        (lambda: generate(PoissonArrivals(1), [], 1), "there is no kind of requests, expected one at least"),
        (lambda: generate(PoissonArrivals(1), [RequestKind("m")], 0), "seconds must be more than 0 and finite, not 0"),
    ],
)
def test_what_cannot_be_is_named(make, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make()
    assert caught.value.message == text
