"""A model that hangs hurts only itself: what waits for it leaves when its client does, readiness says that it is stuck,
and after its limit it is replaced."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import trio
import trio.lowlevel
from google.protobuf import text_format

from trireme.actors.reply import ANSWER_WINDOW
from trireme.engine.config import model_config
from trireme.engine.config.model import DynamicBatching, ModelConfigMessage
from trireme.engine.description import ModelState
from trireme.engine.errors import InternalError
from trireme.engine.job import ExecutionBatch
from trireme.engine.options import ServerOptions
from trireme.simulations.models import Profile, SimulatedModel, simple_request


def hanging_at(*numbers: int):
    """Work that takes 1 s, but in the batches of these numbers, counted from 0, takes for ever."""
    count = 0

    async def work(_spec: object, _batch: object) -> None:
        nonlocal count
        hangs = count in numbers
        count += 1
        await trio.sleep(math.inf if hangs else 1)

    return work


@pytest.mark.parametrize("batching", [None, DynamicBatching((4,))])
async def test_the_requests_of_clients_that_have_gone_leave_the_queue_of_a_hung_model(
    autojump_clock, open_server, simulated, request_for, batching: DynamicBatching | None
) -> None:
    async with open_server(simulated(hanging_at(0), batching=batching), exit_timeout_s=0) as server:
        async with trio.open_nursery() as clients:
            for _ in range(100):
                clients.start_soon(server.infer, request_for())
            await trio.testing.wait_all_tasks_blocked()
            assert server.budget_statistics().requests == 100
            clients.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        executing = 1 if batching is None else 4
        assert server.budget_statistics().requests == executing
        (actor,) = server.model_statistics()
        assert actor.inflight == executing


@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
async def test_those_of_sequences_leave_their_slots_and_the_backlog(autojump_clock, open_server, strategy: str) -> None:
    text = (
        'name: "m" max_batch_size: 2 input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 } instance_group { name: "m" count: 1 kind: KIND_CPU } '
        f'backend: "simulated" sequence_batching {{ {strategy} max_sequence_idle_microseconds: 900000000 }}'
    )
    config = model_config(text_format.Parse(text, ModelConfigMessage()))
    async with open_server(SimulatedModel(config, hanging_at(0)), exit_timeout_s=0) as server:
        replies = []
        for key in range(1, 9):  # two or four of them have a slot
            for number in range(3):
                request = replace(simple_request("m"), correlation_id=key, sequence_start=number == 0)
                replies.append(await server.admit(request))
        await trio.testing.wait_all_tasks_blocked()
        for reply in replies:
            reply.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert server.budget_statistics().requests <= 2, "what is being executed"


async def test_by_default_a_batch_may_take_five_minutes(autojump_clock, open_server, simulated, request_for) -> None:
    assert ServerOptions().hang_limit_s == 300
    async with open_server(simulated(Profile(299), name="slow"), simulated(hanging_at(0), name="hung")) as server:
        assert (await server.infer(request_for("slow"))).model_name == "slow"
        with pytest.raises(InternalError, match="gave no answer within 300 s and was given up"):
            await server.infer(request_for("hung"))
        assert (await server.infer(request_for("hung"))).model_name == "hung"


async def test_a_model_may_have_a_limit_of_its_own(autojump_clock, open_server, simulated, request_for) -> None:
    hasty = simulated(hanging_at(0), parameters={"EXECUTION_LIMIT_SECS": "2"})
    patient = simulated(Profile(1e5), name="patient", parameters={"EXECUTION_LIMIT_SECS": "0"})
    async with open_server(hasty, patient) as server:
        with pytest.raises(InternalError, match="gave no answer within 2 s and was given up"):
            await server.infer(request_for())
        assert (await server.infer(request_for("patient"))).model_name == "patient"


async def test_a_limit_that_is_no_number_fails_the_load(autojump_clock, open_server, simulated) -> None:
    model = simulated(Profile(1), parameters={"EXECUTION_LIMIT_SECS": "soon"})
    async with open_server(model, exit_on_error=False) as server:
        (row,) = server.repository_index()
    assert "parameter 'EXECUTION_LIMIT_SECS' is 'soon'" in row.reason


async def test_a_model_whose_instances_are_all_stuck_is_not_ready_until_one_goes_on(
    autojump_clock, open_server, simulated, request_for, caplog
) -> None:
    """Both have shown that a batch takes them 1 s; then they take 31 s and more."""
    released = trio.Event()
    count = 0

    async def work(_spec: object, _batch: object) -> None:
        nonlocal count
        count += 1
        if count > 2:
            await released.wait()
        await trio.sleep(1)

    async with open_server(simulated(work, count=2), simulated(Profile(1), name="other")) as server:
        async with trio.open_nursery() as clients:
            for _ in range(2):
                clients.start_soon(server.infer, request_for())
        async with trio.open_nursery() as clients:
            clients.start_soon(server.infer, request_for())
            await trio.sleep(65)
            assert server.model_ready("m"), "one instance is stuck, and the other one free"
            clients.start_soon(server.infer, request_for())
            await trio.sleep(25)
            assert server.ready()
            await trio.sleep(40)
            assert not server.model_ready("m")
            assert not await server.check_ready()
            assert server.model_ready("other")
            row = next(row for row in server.repository_index() if row.name == "m")
            assert row.state is ModelState.UNAVAILABLE
            assert row.reason == "all 2 instances have been executing one batch for too long"
            assert [row.name for row in server.repository_index(ready_only=True)] == ["other"]
            assert "instance 'm_1' has been executing one batch for 30 s, and counts as stuck" in caplog.text
            released.set()
            await trio.sleep(2)
            assert server.model_ready("m")
            assert server.ready()
            assert all(row.state is ModelState.READY and not row.reason for row in server.repository_index())


async def test_a_decoupled_model_that_goes_on_answering_does_not_hang(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """It takes far longer than the limit, with an answer now and then; and then it says nothing more."""

    async def work(_spec: object, batch: ExecutionBatch) -> None:
        (job,) = batch.jobs
        for _ in range(5):
            await trio.sleep(8)
            job.respond(job.response([]), final=False)
        await trio.sleep_forever()

    responses = 0
    async with open_server(simulated(work, decoupled=True), hang_limit_s=10) as server:
        reply = await server.admit(request_for())
        try:
            async for _ in reply.responses():
                responses += 1
        except InternalError as error:
            assert error.message == "instance 'm_0' gave no answer within 10 s and was given up"  # noqa: PT017
        assert responses == 5
        assert server.model_statistics()[0].abandoned == 1


async def test_a_stuck_model_that_answers_after_all_is_ready_again(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """Its first response comes late, and the batch takes long after that."""

    async def work(_spec: object, batch: ExecutionBatch) -> None:
        (job,) = batch.jobs
        await trio.sleep(150)
        while True:
            job.respond(job.response([]), final=False)
            await trio.sleep(10)

    async with open_server(simulated(work, decoupled=True), hang_limit_s=200, exit_timeout_s=0) as server:
        reply = await server.admit(request_for())
        reply.notify_each(lambda reply: reply.take())
        await trio.sleep(140)
        assert not server.model_ready("m")
        await trio.sleep(100)
        assert server.model_ready("m")


async def test_a_client_that_does_not_read_does_not_make_a_decoupled_model_hang(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """The window of the request is full, so the model is held back, by the client."""

    async def work(_spec: object, batch: ExecutionBatch) -> None:
        (job,) = batch.jobs
        window = job.window
        assert window is not None
        while not window.crowded:
            job.respond(job.response([]), final=False)
            await trio.lowlevel.checkpoint()
        room = trio.Event()
        window.on_room = room.set
        await room.wait()
        job.respond(None, final=True)

    def answer(_config: object, _batch: ExecutionBatch) -> None:
        """Everything is said."""

    model = simulated(work, decoupled=True)
    model.answer = answer
    async with open_server(model, hang_limit_s=10) as server:
        reply = await server.admit(request_for())
        reply.notify_each(lambda _reply: None)  # a reader, who takes nothing
        await trio.sleep(100)
        assert server.model_statistics()[0].restarts == 0
        assert len(reply.take()) == ANSWER_WINDOW
        await trio.sleep(2)
        assert reply.final
