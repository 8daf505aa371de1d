"""Supervision: what raises lives on, what dies is buried and replaced, and nobody is left waiting."""

from __future__ import annotations

import pytest
import trio

from trireme.engine.config.model import DynamicBatching
from trireme.engine.description import ModelState
from trireme.engine.errors import FailureReason, InternalError, TriremeError
from trireme.engine.job import ExecutionBatch
from trireme.simulations.executors import SimulatedFailure
from trireme.simulations.models import Profile


def scripted(*steps: object):
    """Work that takes 0.1 s; then does what its next step says: raise it, sleep that long, or (None) nothing."""
    remaining = list(steps)

    async def work(_spec: object, _batch: object) -> None:
        await trio.sleep(0.1)
        step = remaining.pop(0) if remaining else None
        if isinstance(step, Exception):
            raise step
        if isinstance(step, float):
            await trio.sleep(step)

    return work


async def test_a_backend_that_raises_answers_its_requests_and_lives_on(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(scripted(SimulatedFailure("bad weights")))) as server:
        with pytest.raises(InternalError, match=r"^bad weights$"):
            await server.infer(request_for())
        assert (await server.infer(request_for())).model_name == "m"
        (actor,) = server.model_statistics()
        (entry,) = server.statistics()
    assert actor.restarts == 0
    assert entry.statistics.failures[FailureReason.BACKEND] == 1
    assert entry.statistics.execution_count == 2, "a failed execution counts as an execution"


async def test_an_instance_that_dies_answers_what_it_held_and_is_restarted(
    autojump_clock, open_server, simulated, request_for
) -> None:
    batching = DynamicBatching((4,))
    work = scripted(None, RuntimeError("segment of memory gone"))
    async with open_server(simulated(work, batching=batching)) as server:
        answers: list[str] = []

        async def ask() -> None:
            try:
                await server.infer(request_for())
                answers.append("ok")
            except TriremeError as error:
                answers.append(error.message)

        async with trio.open_nursery() as nursery:
            for index in range(6):
                nursery.start_soon(ask)
                if index == 0:
                    await trio.testing.wait_all_tasks_blocked()
        died = "instance 'm_0' died: RuntimeError: segment of memory gone"
        assert sorted(answers) == sorted(["ok", died, died, died, died, "ok"])
        (actor,) = server.model_statistics()
        assert actor.restarts == 1
        assert actor.instances_alive == 1
        assert server.ready()
        assert server.budget_statistics().requests == 0


async def test_a_model_is_not_ready_while_an_instance_is_dead(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(scripted(RuntimeError("x")), count=2)) as server:
        with pytest.raises(InternalError):
            await server.infer(request_for())
        assert not server.model_ready("m")
        assert not server.ready()
        await trio.sleep(1)
        assert server.model_ready("m")
        assert server.ready()


async def test_an_instance_that_dies_again_and_again_comes_back_after_ever_longer_delays(
    autojump_clock, open_server, simulated, request_for
) -> None:
    deaths = [RuntimeError("again")] * 12
    async with open_server(simulated(scripted(*deaths)), restart_limit=5) as server:
        for _ in deaths:
            with pytest.raises(InternalError, match="died: RuntimeError: again"):
                await server.infer(request_for())
        await trio.testing.wait_all_tasks_blocked()
        (row,) = server.repository_index()
        assert row.state is ModelState.UNAVAILABLE
        assert row.reason == "1 of 1 instances have died and are being restarted; last: again"
        assert not server.ready()
        began_s = trio.current_time()
        assert (await server.infer(request_for())).model_name == "m"
        assert trio.current_time() - began_s == pytest.approx(30.1), "the longest delay, and the batch itself"
        assert server.ready()
        assert server.model_statistics()[0].restarts == 12


async def test_a_healthy_time_makes_restarts_quick_again(autojump_clock, open_server, simulated, request_for) -> None:
    steps = [*[RuntimeError("again")] * 8, None, RuntimeError("once more")]
    async with open_server(simulated(scripted(*steps)), restart_window_s=60) as server:
        for _ in range(8):
            with pytest.raises(InternalError):
                await server.infer(request_for())
        await server.infer(request_for())
        await trio.sleep(60)
        with pytest.raises(InternalError, match="once more"):
            await server.infer(request_for())
        began_s = trio.current_time()
        await server.infer(request_for())
        assert trio.current_time() - began_s == pytest.approx(0.2)


async def test_nobody_is_kept_waiting_behind_an_instance_that_goes_on_dying(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async def work(_spec: object, _batch: object) -> None:
        await trio.sleep(1)
        raise RuntimeError("always")

    failures: list[str] = []
    async with open_server(simulated(work), restart_limit=0) as server:

        async def ask() -> None:
            try:
                await server.infer(request_for())
            except TriremeError as error:
                failures.append(error.message)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(ask)
        text = "instance 'm_0' died 1 times in a row; it is started again in 0.1 s; last: always"
        assert sorted(failures) == [text] * 3 + ["instance 'm_0' died: RuntimeError: always"]
        assert server.budget_statistics().requests == 0
        await trio.sleep(0.2)
        assert server.ready()


async def test_a_server_that_stops_starts_no_instance_again(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """One has died, and would be started again while the other one, which has answered, is still executing."""
    begun = 0

    async def work(_spec: object, batch: ExecutionBatch) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            (job,) = batch.jobs
            job.respond(None, final=True)
            await trio.sleep(5)
            return
        await trio.sleep(1)
        raise RuntimeError("again")

    def answer(_config: object, _batch: ExecutionBatch) -> None:
        """Everything is said."""

    model = simulated(work, decoupled=True, count=2)
    model.answer = answer
    async with open_server(model, exit_timeout_s=1000) as server:
        for _ in range(2):
            await server.admit(request_for())
        await trio.sleep(1.05)
        assert server.budget_statistics().requests == 0
    assert trio.current_time() < 10


async def test_a_batch_that_hangs_is_given_up_and_the_instance_replaced(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(scripted(1e6)), hang_limit_s=5) as server:
        with pytest.raises(InternalError, match="instance 'm_0' gave no answer within 5 s and was given up"):
            await server.infer(request_for())
        assert not server.model_ready("m"), "a dead instance shows in readiness"
        assert (await server.infer(request_for())).model_name == "m"
        (actor,) = server.model_statistics()
        assert (actor.abandoned, actor.restarts) == (1, 1)
        assert server.model_ready("m")


async def test_a_restarted_instance_serves_those_who_waited(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(scripted(RuntimeError("once")))) as server:
        results: list[str] = []

        async def ask() -> None:
            try:
                await server.infer(request_for())
                results.append("ok")
            except InternalError:
                results.append("died")

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert sorted(results) == ["died", "ok", "ok"]


async def test_stopping_while_an_instance_waits_for_its_restart_does_not_hang(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(scripted(RuntimeError("x")), count=2)) as server:
        with pytest.raises(InternalError):
            await server.infer(request_for())
    assert server.drained


async def test_one_broken_model_does_not_touch_another(autojump_clock, open_server, simulated, request_for) -> None:
    async def broken(_spec: object, _batch: object) -> None:
        raise RuntimeError("always")

    models = (simulated(broken, name="bad"), simulated(Profile(0.1), name="good"))
    async with open_server(*models, restart_limit=0) as server:
        for _ in range(3):
            with pytest.raises(InternalError):
                await server.infer(request_for("bad"))
            await trio.testing.wait_all_tasks_blocked()
            assert (await server.infer(request_for("good"))).model_name == "good"
