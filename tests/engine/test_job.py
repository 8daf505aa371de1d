"""Every job of a batch is answered exactly once for good, and the time marks never go back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.errors import FailureReason, InternalError, InvalidArgumentError, UnavailableError
from trireme.engine.job import ExecutionBatch, Job, Outcome, Phase, SealReason
from trireme.engine.metrics.statistics import ResponseOutcome, ResponseTimes
from trireme.engine.request import InferenceRequest


class _Reply:
    def deliver(self, outcome: Outcome, final: bool) -> bool:
        raise AssertionError("a batch never delivers by itself")


class _Clock:
    """A clock that shows the given times, one a reading, and then stands still."""

    def __init__(self, times: Iterator[int]) -> None:
        self._times = times
        self._now = 0

    def now_ns(self) -> int:
        self._now = next(self._times, self._now)
        return self._now

    def now_s(self) -> float:
        raise AssertionError("measurements are taken in nanoseconds")

    wall_ms = now_ns


def _job(request_id: str = "", rows: int = 1, outputs: tuple[str, ...] = ()) -> Job:
    return Job(InferenceRequest("m", id=request_id, requested_outputs=outputs), {}, rows, "m", 3, _Reply())


def _batch(*jobs: Job, times: tuple[int, ...] = ()) -> ExecutionBatch:
    return ExecutionBatch(jobs, "m_0_0", _Clock(iter(times)), SealReason.FULL)


def test_rows_are_summed() -> None:
    assert _batch(_job(rows=2), _job(rows=3)).rows == 5


def test_answers_are_collected_in_order() -> None:
    one, two = _job("1"), _job("2")
    batch = _batch(one, two)
    second, first = two.response([]), one.response([])
    two.respond(second)
    one.respond(first)
    batch.finish()
    assert batch.answers == [(two, second, True), (one, first, True)]
    assert (first.model_name, first.model_version, first.id) == ("m", 3, "1")


def test_nothing_follows_a_final_answer() -> None:
    job = _job()
    batch = _batch(job)
    job.respond(job.response([]))
    job.respond(job.response([]))
    job.fail(InternalError("late"))
    batch.finish(InternalError("later"))
    assert len(batch.answers) == 1
    assert job.answered


def test_what_raises_fails_only_the_unanswered() -> None:
    done, open_ = _job("1"), _job("2")
    batch = _batch(done, open_)
    response = done.response([])
    done.respond(response)
    error = UnavailableError("gone")
    batch.finish(error)
    assert batch.answers == [(done, response, True), (open_, error, True)]


def test_a_job_left_unanswered_is_an_internal_error() -> None:
    job = _job()
    batch = _batch(job)
    batch.finish()
    [(_, error, final)] = batch.answers
    assert isinstance(error, InternalError)
    assert "m_0_0" in error.message
    assert final
    assert error.reason is FailureReason.BACKEND


def test_a_backend_error_counts_as_the_backends_unless_it_says_otherwise() -> None:
    plain, cancelled = _job(), _job()
    batch = _batch(plain, cancelled)
    plain.fail(InternalError("x"))
    cancelled.fail(InternalError("y", reason=FailureReason.CANCELED))
    reasons = [outcome.reason for _, outcome, _ in batch.answers if isinstance(outcome, InternalError)]
    assert reasons == [FailureReason.BACKEND, FailureReason.CANCELED]


def test_a_decoupled_job_streams_answers_until_the_final_one() -> None:
    streamed: list[tuple[Job, Outcome, bool]] = []
    job = _job()
    batch = ExecutionBatch([job], "m_0_0", _Clock(iter(())), stream=lambda *answer: streamed.append(answer))
    first, second = job.response([]), job.response([])
    job.respond(first, final=False)
    job.respond(second, final=False)
    job.respond(None)
    job.respond(first, final=False)
    batch.finish()
    assert streamed == [(job, first, False), (job, second, False), (job, None, True)]
    assert batch.answers == []


def test_what_is_answered_after_the_batch_has_let_go_is_dropped() -> None:
    """A backend's thread may not have noticed yet that the event loop has done with the job."""
    job = _job()
    batch = _batch(job)
    job.respond(job.response([]))
    job.batch = None
    job.respond(job.response([]))
    job.fail(InternalError("late"))
    assert len(batch.answers) == 1


def test_a_job_outside_a_batch_cannot_be_rescheduled() -> None:
    with pytest.raises(AssertionError):
        _job().reschedule()


def test_rescheduling_needs_a_model_configured_for_it() -> None:
    job = _job()
    _batch(job)
    with pytest.raises(InvalidArgumentError, match="TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"):
        job.reschedule()


@pytest.mark.parametrize("answer_first", [True, False])
def test_a_job_that_is_answered_is_not_executed_again(answer_first: bool) -> None:
    """Whatever its backend asks for, and however often."""
    jobs = [_job("answered"), _job("again")]
    batch = ExecutionBatch(jobs, "m_0_0", _Clock(iter(())), iterative=True)
    if answer_first:
        jobs[0].respond(jobs[0].response([]))
    for job in (*jobs, *jobs):
        job.reschedule()
    jobs[0].respond(jobs[0].response([]))
    batch.finish()
    assert batch.rescheduled == [jobs[1]]
    assert [job for job, _, _ in batch.answers] == [jobs[0]]


def test_marks_taken_stay() -> None:
    batch = _batch(_job(), times=(10, 20, 30, 40))
    for phase in (Phase.COMPUTE_START, Phase.INFER_START, Phase.OUTPUT_START):
        batch.mark(phase)
    batch.finish()
    assert batch.marks == [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("taken", "marks"),
    [
        ([], [10, 10, 10, 10]),
        ([Phase.COMPUTE_START], [10, 20, 20, 20]),
        ([Phase.INFER_START], [10, 10, 20, 20]),
        ([Phase.COMPUTE_START, Phase.OUTPUT_START], [10, 20, 20, 30]),
        ([Phase.OUTPUT_START, Phase.INFER_START], [10, 10, 10, 30]),
    ],
)
def test_a_mark_not_taken_equals_the_next_one(taken: list[Phase], marks: list[int]) -> None:
    batch = _batch(_job(), times=(10, 20, 30, 40))
    for phase in taken:
        batch.mark(phase)
    batch.finish()
    assert batch.marks == marks


@settings(deadline=None)
@given(st.lists(st.sampled_from(list(Phase)), max_size=8), st.integers(0, 5))
def test_marks_never_go_back(taken: list[Phase], start: int) -> None:
    batch = _batch(_job(), times=tuple(range(start, start + 20)))
    for phase in taken:
        batch.mark(phase)
    batch.finish()
    assert batch.marks == sorted(batch.marks)
    assert min(batch.marks) >= start


def test_requested_outputs() -> None:
    assert _job().wants("anything")
    assert _job(outputs=("A",)).wants("A")
    assert not _job(outputs=("A",)).wants("B")


def test_reprs_tell_who_and_why() -> None:
    assert repr(_batch(_job(rows=2), _job())) == "<ExecutionBatch of 2 (3 rows) on m_0_0: full>"
    assert repr(_job(rows=2)) == "<Job m#0 rows=2 level=0>"


def test_an_execution_that_goes_on_is_measured_up_to_now() -> None:
    batch = _batch(_job(), times=(10, 40, 100))
    batch.mark(Phase.COMPUTE_START)
    assert batch.marks_until(30) == [10, 30, 30, 30]
    batch.mark(Phase.INFER_START)
    assert batch.marks_until(70) == [10, 40, 70, 70]
    assert batch.marks == [10, 40, -1, -1]
    batch.finish()
    assert batch.marks_until(1_000) == [10, 40, 100, 100]


def test_reported_responses_are_taken_once() -> None:
    job = _job()
    batch = _batch(job)
    times = [ResponseTimes(index, ResponseOutcome.SUCCESS, 1, 2, 3) for index in range(2)]
    assert list(batch.take_reported()) == []
    for each in times:
        job.report_response(each)
    assert list(batch.take_reported()) == times
    assert list(batch.take_reported()) == []
