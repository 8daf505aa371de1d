"""Models that answer any number of times, when they like, from where they like
(docs/reference/python-backend.md#senders-and-decoupled-models, docs/reference/python-backend.md#cancelled-requests)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.lowlevel
from calling_models import DECOUPLED, HEAD, REPEAT, UNTIL_CANCELLED
from python_models import ask, child_processes, open_repository, until, write_model

from trireme.engine.errors import CancelledError, InternalError, TriremeError


async def numbers(server, *values: float, **fields) -> list[float]:
    """The first value of each response of model m."""
    reply = await server.admit(ask("m", *values, **fields))
    return [response.outputs[0].array[0, 0] async for response in reply.responses()]


@pytest.mark.parametrize("count", [0, 1, 5, 200])
async def test_any_number_of_responses_comes_in_order(tmp_path: Path, count: int) -> None:
    write_model(tmp_path, "m", REPEAT, DECOUPLED)
    async with open_repository(tmp_path) as server:
        assert await numbers(server, count) == list(range(count))
        await until(lambda: server.statistics()[0].statistics.execution_count == 1)
        assert server.budget_statistics().requests == 0


async def test_the_next_batch_is_executed_while_earlier_requests_still_stream(tmp_path: Path) -> None:
    """The first request is answered by a thread, which waits for the second to be executed."""
    code = (
        HEAD
        + """
        def initialize(self, args):
            self.second = threading.Event()

        def execute(self, requests):
            for request in requests:
                if int(value_of(request)) == 1:
                    threading.Thread(target=self.later, args=(request.get_response_sender(),)).start()
                else:
                    request.get_response_sender().send(response(2), FINAL)
                    self.second.set()

        def later(self, sender):
            self.second.wait()
            sender.send(response(10))
            sender.send(response(11), FINAL)
"""
    )
    write_model(tmp_path, "m", code, DECOUPLED)
    async with open_repository(tmp_path) as server:
        answers: dict[int, list[float]] = {}

        async def go(value: int) -> None:
            answers[value] = await numbers(server, value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go, 1)
            await until(lambda: server.statistics()[0].statistics.execution_count == 1)
            nursery.start_soon(go, 2)
        assert answers == {1: [10, 11], 2: [2]}


async def test_a_batch_may_be_answered_in_any_order(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def execute(self, requests):
            senders = [(int(value_of(request)), request.get_response_sender()) for request in requests]
            for value, sender in reversed(senders):
                sender.send(response(value))
            for value, sender in senders:
                sender.send(response(-value), FINAL)
"""
    )
    write_model(tmp_path, "m", code, DECOUPLED + "\ndynamic_batching { max_queue_delay_microseconds: 30000000 }")
    async with open_repository(tmp_path) as server:
        answers: dict[int, list[float]] = {}

        async def go(value: int) -> None:
            answers[value] = await numbers(server, value)

        async with trio.open_nursery() as nursery:
            for value in range(1, 9):
                nursery.start_soon(go, value)
        assert answers == {value: [value, -value] for value in range(1, 9)}
        await until(lambda: server.statistics()[0].statistics.execution_count == 1)


async def test_a_slow_client_holds_the_model_back(tmp_path: Path) -> None:
    """What it may send ahead is limited: the model notes how far it has come."""
    code = (
        HEAD
        + """
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            for number in range(1000):
                sender.send(response(number))
                with open(os.path.join(pb_utils.get_model_dir(), "sent"), "w") as file:
                    file.write(str(number + 1))
            sender.send(flags=FINAL)
"""
    )
    directory = write_model(tmp_path, "m", code, DECOUPLED)

    def sent() -> int:
        try:
            return int((directory / "1" / "sent").read_text() or 0)
        except OSError:
            return 0

    async with open_repository(tmp_path) as server:
        reply = await server.admit(ask("m", 1))
        reply.notify_each(lambda _reply: None)
        await until(lambda: sent() >= 64)
        await trio.sleep(0.2)
        assert sent() <= 64 + 2 * 16 + 1
        got: list[float] = []
        while not reply.final or got[-1:] != [999]:
            for outcome, _ in reply.take():
                if outcome is not None:
                    assert not isinstance(outcome, TriremeError)
                    got.append(outcome.outputs[0].array[0, 0])
            await trio.lowlevel.checkpoint()
        assert got == list(range(1000))


async def test_a_client_that_leaves_is_noticed_and_holds_no_model_back(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            number = 0
            while not sender.is_cancelled():
                sender.send(response(number))
                number += 1
                if value_of(requests[0]) < number:
                    break
            error = pb_utils.TritonError("left", pb_utils.TritonError.CANCELLED)
            sender.send(pb_utils.InferenceResponse(error=error), FINAL)
"""
    )
    write_model(tmp_path, "m", code, DECOUPLED)
    async with open_repository(tmp_path) as server:
        reply = await server.admit(ask("m", 1_000_000))
        began = trio.Event()
        reply.notify_each(lambda _reply: began.set())
        await began.wait()
        await trio.sleep(0.1)
        reply.cancel()
        await until(lambda: reply.final)
        outcome, final = reply.take()[-1]
        assert final
        assert isinstance(outcome, CancelledError)
        assert outcome.message == "left"


async def test_an_ordinary_model_sees_that_its_client_left(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "m", UNTIL_CANCELLED) / "1"
    async with open_repository(tmp_path) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.infer, ask("m", 1))
            await until((directory / "began").exists)
            nursery.cancel_scope.cancel()
        await until((directory / "noticed").exists)


async def test_errors_come_between_responses(tmp_path: Path) -> None:
    """An error does not end the request; only the final flag does."""
    code = (
        HEAD
        + """
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            sender.send(response(1))
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("hm")))
            sender.send(response(2))
            sender.send(flags=FINAL)
"""
    )
    write_model(tmp_path, "m", code, DECOUPLED)
    async with open_repository(tmp_path) as server:
        reply = await server.admit(ask("m", 1))
        reply.notify_each(lambda _reply: None)
        await until(lambda: reply.final)
        outcomes = [(str(o) if isinstance(o, TriremeError) else o and "response", final) for o, final in reply.take()]
        assert outcomes == [("response", False), ("hm", False), ("response", False), (None, True)]


async def test_an_exception_ends_every_open_request_of_the_batch(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def execute(self, requests):
            requests[0].get_response_sender().send(response(1))
            raise ValueError("broken")
"""
    )
    write_model(tmp_path, "m", code, DECOUPLED)
    async with open_repository(tmp_path) as server:
        reply = await server.admit(ask("m", 1))
        reply.notify_each(lambda _reply: None)
        await until(lambda: reply.final)
        (first, last) = reply.take()
        assert first[1] is False
        assert "ValueError: broken" in str(last[0])
        assert "ValueError: broken" in str((await _failure(server)).message)


async def _failure(server) -> TriremeError:
    with pytest.raises(TriremeError) as caught:
        await numbers(server, 1)
    return caught.value


async def test_a_sender_that_is_dropped_is_an_error_at_once(tmp_path: Path) -> None:
    """Although the model's main thread sleeps."""
    code = (
        HEAD
        + """
        def execute(self, requests):
            threading.Thread(target=time.sleep, args=(0.2, ), daemon=True).start()
            thread = threading.Thread(target=self.forget, args=(requests[0].get_response_sender(),))
            thread.start()

        def forget(self, sender):
            time.sleep(0.2)
"""
    )
    write_model(tmp_path, "m", code, DECOUPLED)
    async with open_repository(tmp_path) as server:
        assert "dropped the request" in (await _failure(server)).message


async def test_open_requests_are_answered_when_the_process_dies(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def initialize(self, args):
            self.kept = []

        def execute(self, requests):
            self.kept += [request.get_response_sender() for request in requests]
            for sender in self.kept[-len(requests):]:
                sender.send(response(1))
"""
    )
    write_model(tmp_path, "m", code, DECOUPLED)
    async with open_repository(tmp_path) as server:
        errors: list[str] = []

        async def go() -> None:
            with pytest.raises(InternalError) as caught:
                await numbers(server, 1)
            errors.append(caught.value.message)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(go)
            await until(lambda: server.statistics()[0].statistics.execution_count == 5)
            (pid,) = child_processes()
            os.kill(pid, signal.SIGKILL)
        assert errors == ["Stub process 'm_0' is not healthy."] * 5
        assert server.budget_statistics().requests == 0


async def test_large_responses_of_many_requests_flow(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def execute(self, requests):
            for request in requests:
                sender, value = request.get_response_sender(), int(value_of(request))
                threading.Thread(target=self.stream, args=(sender, value)).start()

        def stream(self, sender, value):
            for number in range(30):
                array = np.full((1, 100_000), value * 100 + number, np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            sender.send(flags=FINAL)
"""
    )
    write_model(tmp_path, "m", code, DECOUPLED)
    async with open_repository(tmp_path) as server:

        async def go(value: int) -> None:
            reply = await server.admit(ask("m", value))
            number = 0
            async for response in reply.responses():
                array = response.outputs[0].array
                assert (array == value * 100 + number).all()
                number += 1
            assert number == 30

        async with trio.open_nursery() as nursery:
            for value in range(6):
                nursery.start_soon(go, value)


async def test_a_request_can_be_executed_again(tmp_path: Path) -> None:
    """An iterative sequence: three rounds, then an answer."""
    code = (
        HEAD
        + """
        def initialize(self, args):
            self.rounds = {}

        def execute(self, requests):
            for request in requests:
                round = self.rounds[request.correlation_id()] = self.rounds.get(request.correlation_id(), 0) + 1
                sender = request.get_response_sender()
                sender.send(response(round), FINAL if round == 3 else 0)
                if round < 3:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
"""
    )
    config = DECOUPLED + "\nsequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } }"
    write_model(tmp_path, "m", code, config)
    async with open_repository(tmp_path) as server:
        rounds = await numbers(server, 1, correlation_id=7, sequence_start=True, sequence_end=True)
        assert rounds == [1, 2, 3]
        assert np.isfinite(rounds).all()


ITERATIVE = DECOUPLED + "\nsequence_batching { iterative_sequence: true }"

KEEPING = (
    HEAD
    + """
        def initialize(self, args):
            self.kept = None
            self.second = threading.Event()

        def execute(self, requests):
            for request in requests:
                if self.kept is None:
                    self.kept = request.get_response_sender()
                    thread = threading.Thread(target=self.answer, args=(self.kept, int(value_of(request))))
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    thread.start()
                else:
                    self.kept = None
                    request.get_response_sender()
                    self.second.set()

        def answer(self, sender, count):
            for number in range(count):
                sender.send(response(number))
            self.second.wait()
            self.second.clear()
            sender.send(response(count), FINAL)
"""
)


@pytest.mark.parametrize("count", [0, 1, 500])
async def test_a_sender_stays_good_if_its_request_is_rescheduled(tmp_path: Path, count: int) -> None:
    """Whether it sends while the request is executed, waits to be executed again, or was executed again. There are more
    responses than may be on their way at once."""
    write_model(tmp_path, "m", KEEPING, ITERATIVE)
    async with open_repository(tmp_path) as server:
        for _ in range(2):
            assert await numbers(server, count) == [*range(count), count]


async def test_a_request_that_is_rescheduled_without_a_sender_that_is_kept_may_still_be_lost(tmp_path: Path) -> None:
    """Being rescheduled is no promise to answer: the last execution has to see to it."""
    code = (
        HEAD
        + """
        again = False

        def execute(self, requests):
            self.again = not self.again
            for request in requests:
                if self.again:
                    request.get_response_sender().send(response(1))
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
"""
    )
    write_model(tmp_path, "m", code, ITERATIVE)
    async with open_repository(tmp_path) as server:
        with pytest.raises(TriremeError, match="without a final response"):
            await numbers(server, 1)
