"""How requests for routes end (`engine.routing.routed_reply`)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from trireme.engine.errors import (
    CancelledError,
    DeadlineError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TriremeError,
    UnavailableError,
)
from trireme.engine.job import ExecutionBatch, Job, Outcome, Phase
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.routing.route import Shadow, Target
from trireme.engine.routing.routed_reply import MOST_KEPT, RoutedReply, RoutedResult, result_of
from trireme.engine.routing.router import RouteChoice

TARGET = Target("m", 1)
ANSWER = InferenceResponse("m", 1, "", [])


@dataclass
class Clock:
    """Says what it is told."""

    ns: int = 0

    def now_ns(self) -> int:
        return self.ns

    def now_s(self) -> float:
        return self.ns * 1e-9

    def wall_ms(self) -> int:
        return 0


@dataclass
class Ends:
    """A request of a route, its reply, and what is told of its end."""

    shadow: Shadow | None = None
    clock: Clock = field(default_factory=Clock)
    told: list[tuple[Outcome, bool]] = field(default_factory=list)
    ended: list[RoutedReply] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job = Job(InferenceRequest("r"), {}, 1, "m", 1, self, received_ns=1_000)
        RoutedReply(self.job, RouteChoice(TARGET, self.shadow), self.clock, self._end)
        self.job.accept()

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        self.told.append((outcome, final))
        return True

    def _end(self, ended: RoutedReply, job: Job) -> None:
        assert (job, bool(self.told)) == (self.job, True), "the reply is told first"
        self.ended.append(ended)

    def answer(self, outcome: Outcome, final: bool = True) -> None:
        self.job.reply.deliver(outcome, final)


def test_latency_counts_from_admission_and_time_in_the_queue_to_the_execution() -> None:
    ends = Ends()
    batch = ends.job.batch = ExecutionBatch([ends.job], "i", ends.clock)
    ends.job.enqueued_ns = 2_000
    ends.clock.ns = 5_000
    batch.mark(Phase.COMPUTE_START)
    ends.clock.ns = 9_000
    ends.answer(ANSWER)
    assert ends.told == [(ANSWER, True)]
    (ended,) = ends.ended
    assert (ended.route, ended.choice.target, ended.result) == ("r", TARGET, RoutedResult.SUCCESS)
    assert (ended.latency_ns, ended.queue_ns) == (8_000, 3_000)


def test_what_was_never_queued_did_not_wait() -> None:
    ends = Ends()
    ends.job.enqueued_ns = 2_000
    ends.clock.ns = 9_000
    ends.answer(ANSWER)
    assert ends.ended[0].queue_ns == 0
    ends.answer(ANSWER)
    assert len(ends.ended) == 1, "told once"


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (InternalError("x"), RoutedResult.FAILURE),
        (UnavailableError("x"), RoutedResult.FAILURE),
        (DeadlineError("x"), RoutedResult.FAILURE),
        (InvalidArgumentError("x"), RoutedResult.OTHER),
        (NotFoundError("x"), RoutedResult.OTHER),
        (CancelledError("x"), RoutedResult.OTHER),
    ],
)
def test_errors_that_clients_are_not_to_blame_for_are_failures(error: TriremeError, result: RoutedResult) -> None:
    ends = Ends()
    ends.answer(error)
    assert ends.ended[0].result is result_of(error) is result


def test_the_first_error_of_several_answers_counts() -> None:
    ends = Ends()
    ends.answer(InternalError("x"), final=False)
    ends.answer(InvalidArgumentError("x"), final=False)
    ends.answer(ANSWER)
    assert ends.ended[0].result is RoutedResult.FAILURE


@pytest.mark.parametrize("outcome", [ANSWER, InternalError("x")])
def test_what_its_client_has_given_up_tells_nothing(outcome: Outcome) -> None:
    ends = Ends()
    ends.job.cancelled = True
    ends.answer(outcome)
    assert ends.ended[0].result is RoutedResult.OTHER


def test_answers_are_kept_for_a_shadow_if_they_are_not_too_many() -> None:
    for count, kept in ((MOST_KEPT, [ANSWER] * MOST_KEPT), (MOST_KEPT + 1, None)):
        ends = Ends(Shadow(Target("s")))
        for number in range(count):
            ends.answer(ANSWER, number == count - 1)
        assert ends.ended[0].kept == kept
    ends = Ends()
    ends.answer(ANSWER)
    assert ends.ended[0].kept is None, "for no one"
