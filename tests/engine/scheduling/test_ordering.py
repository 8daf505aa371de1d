"""Answers of a model with preserve_ordering leave in the order in which its requests arrived
(docs/reference/scheduling.md#preserved-order)."""

from __future__ import annotations

import heapq
import threading

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.errors import CancelledError, UnavailableError
from trireme.engine.instances.answer_window import AnswerWindow
from trireme.engine.scheduling.ordering import OrderedByInstance, OrderedRelease, answer_order


@pytest.fixture
def admitted(make_job):
    """An `OrderedRelease` and the four jobs admitted to it."""
    ordered = OrderedRelease()
    jobs = [make_job(n) for n in range(4)]
    for job in jobs:
        ordered.admit(job)
    return ordered, jobs


def test_fast_answers_wait_for_a_slow_earlier_one(admitted):
    """Two instances and requests of 0.6 s, 0.05 s and 0.05 s: all are answered at 0.6 s, in order."""
    ordered, jobs = admitted
    durations = [0.6, 0.05, 0.05]
    free = [0.0, 0.0]
    ends: list[tuple[float, int]] = []
    for number, duration in enumerate(durations):
        ends.append((heapq.heappop(free) + duration, number))
        heapq.heappush(free, ends[-1][0])
    answered = [
        (at_s, job.id) for at_s, number in sorted(ends) for job, _, _ in ordered.settle(jobs[number], None, True)
    ]
    assert answered == [(0.6, "0"), (0.6, "1"), (0.6, "2")]


def test_answers_in_order_go_out_at_once(admitted):
    ordered, jobs = admitted
    for job in jobs:
        assert ordered.settle(job, None, True) == [(job, None, True)]
    assert len(ordered) == 0


@pytest.mark.parametrize("error", [UnavailableError("Request timeout expired"), CancelledError("")])
def test_job_that_ends_in_the_queue_frees_its_place(admitted, error):
    ordered, jobs = admitted
    assert ordered.settle(jobs[1], error, True) == []
    assert ordered.settle(jobs[0], None, True) == [(jobs[0], None, True), (jobs[1], error, True)]
    assert ordered.settle(jobs[2], None, True) == [(jobs[2], None, True)]


def test_answers_held_back_do_not_hold_their_model_back(admitted):
    """One thread answers both: it must be able to go on to the first one's answers."""
    ordered, (first, second, *_) = admitted
    window = second.window = AnswerWindow(2, threading.get_ident())
    for _ in range(5):
        window.enter()
        assert ordered.settle(second, None, False) == []
    assert not window.crowded
    assert len(ordered.settle(first, None, True)) == 6
    assert window.crowded, "now they wait for their reader"


def test_first_job_streams_while_later_ones_wait_for_its_final_answer(admitted):
    ordered, jobs = admitted
    first, second, third, _ = jobs
    early = UnavailableError("1")
    assert ordered.settle(first, None, False) == [(first, None, False)]
    assert ordered.settle(second, early, False) == []
    assert ordered.settle(third, None, True) == []
    assert ordered.held == 2
    assert ordered.settle(first, None, False) == [(first, None, False)]
    assert ordered.settle(first, None, True) == [(first, None, True), (second, early, False)]
    assert ordered.settle(second, None, False) == [(second, None, False)]
    assert ordered.settle(second, None, True) == [(second, None, True), (third, None, True)]
    assert ordered.held == 0


def test_answers_after_the_final_one_are_dropped(admitted):
    ordered, jobs = admitted
    ordered.settle(jobs[0], None, True)
    assert ordered.settle(jobs[0], None, True) == []
    ordered.settle(jobs[2], None, True)
    assert ordered.settle(jobs[2], None, True) == []
    assert ordered.settle(jobs[1], None, True) == [(jobs[1], None, True), (jobs[2], None, True)]


@given(st.data())
def test_every_answer_goes_out_once_in_order_as_early_as_it_may(make_job, data):
    """Against the plain definition: an answer may go out once all jobs before its own have ended."""
    count = data.draw(st.integers(1, 6))
    script = [(number, final) for number in range(count) for final in [False] * data.draw(st.integers(0, 2)) + [True]]
    order = data.draw(st.permutations([number for number, _ in script]))
    ordered = OrderedRelease()
    jobs = [make_job(number) for number in range(count)]
    for job in jobs:
        ordered.admit(job)
    given_finals = {number: [final for other, final in script if other == number] for number in range(count)}
    given_so_far: list[tuple[int, bool]] = []
    released: list[tuple[int, bool]] = []
    for number in order:
        final = given_finals[number].pop(0)
        given_so_far.append((number, final))
        released += [(jobs.index(job), last) for job, _, last in ordered.settle(jobs[number], None, final)]
        ended = {other for other, last in given_so_far if last}
        first = next((other for other in range(count) if other not in ended), count)
        expected = sorted(number for number, _ in given_so_far if number <= first)
        assert [number for number, _ in released] == expected
        assert ordered.held == len(given_so_far) - len(released)
    assert len(ordered) == 0
    assert sorted(released) == sorted(script)


# The oldest strategy's own batchers (docs/reference/sequences.md#oldest-strategy)


def test_each_instance_keeps_its_own_order(make_job):
    order = OrderedByInstance()
    one, two, three, other = (make_job(n) for n in range(4))
    order.dispatched(1, [one])
    order.dispatched(2, [other])
    order.dispatched(1, [two, three])
    assert order.settle(three, None, True) == []
    assert order.settle(other, None, True) == [(other, None, True)]
    assert order.settle(two, None, False) == []
    assert order.settle(one, None, True) == [(one, None, True), (two, None, False)]
    assert order.settle(two, None, True) == [(two, None, True), (three, None, True)]


def test_a_job_refused_in_the_queue_is_answered_at_once(make_job):
    order = OrderedByInstance()
    running, refused = make_job(0), make_job(1)
    order.admit(running)
    order.admit(refused)
    order.dispatched(1, [running])
    error = UnavailableError("Request timeout expired")
    assert order.settle(refused, error, True) == [(refused, error, True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dynamic_batching { }", None),
        ("dynamic_batching { preserve_ordering: true }", OrderedRelease),
        ("sequence_batching { oldest { } }", None),
        ("sequence_batching { oldest { preserve_ordering: true } }", OrderedByInstance),
        ("sequence_batching { direct { } }", None),
    ],
)
def test_the_configuration_chooses_the_order(text, expected):
    order = answer_order(model_config(text_format.Parse(f'name: "m" {text}', ModelConfigMessage())))
    assert type(order) is (expected or type(None))
