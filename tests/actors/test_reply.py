"""How answers reach their reader: one or many, by task or by callback."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import aclosing

import pytest
import trio

from trireme.actors.actor import Turn
from trireme.actors.budget import InflightBudget
from trireme.actors.reply import ANSWER_WINDOW, Reply
from trireme.engine.errors import FailureReason, InternalError, InvalidArgumentError, UnavailableError
from trireme.engine.job import Job, Outcome
from trireme.engine.request import InferenceRequest, InferenceResponse


def response(number: int) -> InferenceResponse:
    return InferenceResponse("m", 1, str(number), [])


class Case:
    """A reply with its job, and what became of them."""

    def __init__(self, *, many: bool = False) -> None:
        self.budget = InflightBudget(10, 1000)
        share = self.budget.share("m")
        assert self.budget.take_nowait(share, 7)
        self.turn = Turn()
        self.reply = Reply(self.turn, share, 7, ANSWER_WINDOW if many else 0)
        self.cancelled: list[Job] = []
        self.job = Job(InferenceRequest("m"), {}, 1, "m", 1, self.reply)
        self.reply.attach(self.job, lambda message: self.cancelled.append(message.job))

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        with self.turn:
            return self.reply.deliver(outcome, final)

    def notify(self, callback: Callable[[Reply], None]) -> None:
        with self.turn:
            self.reply.notify(callback)

    def notify_each(self, callback: Callable[[Reply], None]) -> None:
        with self.turn:
            self.reply.notify_each(callback)


@pytest.fixture
async def one() -> Case:
    return Case()


@pytest.fixture
async def many() -> Case:
    return Case(many=True)


async def test_the_only_answer_is_waited_for(one: Case) -> None:
    async with trio.open_nursery() as nursery:
        got: list[InferenceResponse] = []

        async def wait() -> None:
            got.append(await one.reply.response())

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert one.deliver(response(1), True)
    assert [each.id for each in got] == ["1"]
    assert one.budget.statistics().requests == 0


async def test_a_callback_hears_of_the_final_answer_once(one: Case) -> None:
    heard: list[InferenceResponse] = []
    one.notify(lambda reply: heard.append(reply.answer()))
    one.deliver(response(1), True)
    one.deliver(response(2), True)
    assert [each.id for each in heard] == ["1"]
    one.notify(lambda reply: heard.append(reply.answer()))
    assert [each.id for each in heard] == ["1", "1"], "who asks late is told at once"


async def test_a_failure_is_raised_by_answer(one: Case) -> None:
    one.deliver(InvalidArgumentError("bad"), True)
    with pytest.raises(InvalidArgumentError, match="bad"):
        one.reply.answer()


@pytest.mark.parametrize("answers", [0, 2, 100])
async def test_one_answer_is_expected_of_a_model_that_gives_another_number(many: Case, answers: int) -> None:
    """And a flood of them is counted, not kept."""
    for number in range(answers):
        many.deliver(response(number), False)
    many.deliver(None, True)
    with pytest.raises(InternalError, match=f"expected a single response, got {answers}"):
        await many.reply.response()
    assert repr(many.reply) == f"<Reply final, {min(2, answers)} answers>"


async def test_answers_that_come_when_one_is_waited_for_are_counted_too(many: Case) -> None:
    heard: list[Reply] = []
    many.notify(heard.append)
    for number in range(5):
        many.deliver(response(number), False)
    many.deliver(None, True)
    assert heard == [many.reply]
    with pytest.raises(InternalError, match="expected a single response, got 5"):
        many.reply.answer()


async def test_each_answer_is_announced_and_taken_once(many: Case) -> None:
    taken: list[tuple[str | None, bool]] = []

    def take(reply: Reply) -> None:
        for outcome, final in reply.take():
            assert outcome is None or isinstance(outcome, InferenceResponse)
            taken.append((outcome and outcome.id, final))

    many.deliver(response(1), False)
    many.notify_each(take)
    assert taken == [("1", False)]
    many.deliver(response(2), False)
    many.deliver(None, True)
    assert taken == [("1", False), ("2", False), (None, True)]


async def test_responses_iterates_until_the_final_answer(many: Case) -> None:
    async def answer() -> None:
        for number in range(3):
            await trio.testing.wait_all_tasks_blocked()
            many.deliver(response(number), number == 2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        assert [each.id async for each in many.reply.responses()] == ["0", "1", "2"]


async def test_answers_that_come_while_the_reader_is_busy_are_not_missed(many: Case) -> None:
    """The last answers come while nobody waits for news, and no news follows them."""
    many.deliver(response(0), False)
    with trio.fail_after(20):
        async with aclosing(many.reply.responses()) as responses:
            assert (await anext(responses)).id == "0"
            many.deliver(response(1), False)
            many.deliver(None, True)
            assert [each.id async for each in responses] == ["1"]


async def test_responses_raises_what_the_model_answers(many: Case) -> None:
    many.deliver(response(0), False)
    many.deliver(InternalError("broke"), True)
    async with aclosing(many.reply.responses()) as responses:
        assert (await anext(responses)).id == "0"
        with pytest.raises(InternalError, match="broke"):
            await anext(responses)


async def test_who_stops_iterating_cancels_the_request(many: Case) -> None:
    many.deliver(response(0), False)
    async with aclosing(many.reply.responses()) as responses:
        await anext(responses)
    assert many.cancelled == [many.job]


async def test_cancelling_the_waiting_task_cancels_the_job_but_keeps_its_budget(one: Case) -> None:
    """What the job occupies is given back when it is answered, not when its client goes."""
    with trio.move_on_after(0):
        await one.reply.response()
    assert one.cancelled == [one.job]
    assert one.budget.statistics().requests == 1
    one.deliver(InternalError("cancelled"), True)
    assert one.budget.statistics().requests == 0


async def test_a_model_is_held_back_while_its_answers_wait(many: Case) -> None:
    """The thread that answers stops at the window, goes on when answers are taken, and is let go by a cancellation."""
    assert many.job.window is not None
    entered = 0
    changed = threading.Condition()

    def answer() -> None:
        nonlocal entered
        window = many.job.window
        assert window is not None
        for _ in range(3 * ANSWER_WINDOW):
            window.enter()
            with changed:
                entered += 1
                changed.notify_all()

    def until(count: int) -> bool:
        with changed:
            return changed.wait_for(lambda: entered >= count, 10)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    many.notify_each(lambda _reply: None)
    assert await trio.to_thread.run_sync(until, ANSWER_WINDOW)
    for number in range(ANSWER_WINDOW):
        many.deliver(response(number), False)
    assert entered == ANSWER_WINDOW
    assert len(many.reply.take()) == ANSWER_WINDOW
    assert await trio.to_thread.run_sync(until, 2 * ANSWER_WINDOW)
    assert entered == 2 * ANSWER_WINDOW
    many.reply.cancel()
    await trio.to_thread.run_sync(thread.join, 10)
    assert entered == 3 * ANSWER_WINDOW


class _OddError(UnavailableError):
    """A backend's own, which takes more than a message to be made."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, reason=FailureReason.BACKEND)
        self.code = code


async def test_what_is_kept_of_a_failure_does_not_hold_on_to_who_raised_it(one: Case, many: Case) -> None:
    """An error that is raised refers to the frames that it passes: of a lost instance, to all that it had on a GPU. And
    one error answers every request of its batch."""
    error = _OddError("lost", 7)
    for each in (one, many):
        assert each.deliver(error, True)
    for _ in range(2):
        with pytest.raises(_OddError, match=r"^lost$") as caught:
            await one.reply.response()
        raised = caught.value
        assert (raised.message, raised.reason, raised.code) == ("lost", FailureReason.BACKEND, 7)
    with pytest.raises(_OddError, match=r"^lost$"):
        async with aclosing(many.reply.responses()) as responses:
            await anext(responses)
    assert error.__traceback__ is None
    assert error.__context__ is None


async def test_what_a_reader_raises_is_logged_and_gets_nowhere_else(
    one: Case, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_reply: Reply) -> None:
        raise KeyError("a defect")

    one.notify(fail)
    assert one.deliver(response(1), True)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError]


async def test_a_reader_is_called_after_the_turn_of_who_answers(one: Case) -> None:
    heard: list[Reply] = []
    one.reply.notify(heard.append)
    with one.turn:
        one.reply.deliver(response(1), True)
        assert not heard
    assert heard == [one.reply]


async def test_it_tells_acceptance_from_refusal(one: Case) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.reply.admitted)
        await trio.testing.wait_all_tasks_blocked()
        with one.turn:
            one.job.accept()
    assert not one.reply.final
    one.deliver(InternalError("broke"), True)
    assert one.reply.accepted
    await one.reply.admitted()


async def test_a_refusal_is_raised_to_who_waits_for_admission(one: Case) -> None:
    async def wait() -> None:
        with pytest.raises(UnavailableError, match="full"):
            await one.reply.admitted()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        one.deliver(UnavailableError("full"), True)
    assert not one.reply.accepted


async def test_answers_that_come_before_their_reader_are_kept_for_it(many: Case) -> None:
    """As while a front end waits for the request to be accepted."""
    for number in range(5):
        many.deliver(response(number), number == 4)
    taken: list[int] = []
    many.notify_each(lambda reply: taken.append(len(reply.take())))
    assert taken == [5]


async def test_a_window_of_one_answer_keeps_all_of_them_too(one: Case) -> None:
    reply = Reply(one.turn, one.budget.share("m"), 0, 1)
    for number in (1, 2, 3):
        reply.deliver(response(number), False)
    assert [outcome.id for outcome, _ in reply.take() if isinstance(outcome, InferenceResponse)] == ["1", "2", "3"]


async def test_giving_up_after_the_final_answer_cancels_nothing(one: Case) -> None:
    one.deliver(response(1), True)
    one.reply.cancel()
    assert one.cancelled == []


async def test_the_newest_answers_are_those_since_the_last_look(many: Case) -> None:
    looks: list[list[str]] = []
    for number in (1, 2, 3):
        many.deliver(response(number), False)
        if number != 2:
            looks.append([each.id for each in many.reply.newest() if isinstance(each, InferenceResponse)])
    assert looks == [["1"], ["2", "3"]]
