"""The facade in virtual time: answers, limits, cancellation, statistics, drain."""

from __future__ import annotations

import pytest
import trio

from trireme.actors import InferenceServer, StartupError
from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.engine.description import ModelState
from trireme.engine.errors import (
    FailureReason,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from trireme.engine.request import InferenceRequest
from trireme.simulations.models import Profile, SimulatedModel
from trireme.simulations.plan import ModelPlan, StepPlan


async def test_a_request_is_answered_with_its_id_model_and_version(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(Profile(0.1), versions=(1, 3))) as server:
        response = await server.infer(request_for(id="abc", rows=2))
    assert (response.id, response.model_name, response.model_version) == ("abc", "m", 3)
    assert response.output("OUTPUT0").shape == (2, 4)


async def test_an_older_version_answers_when_asked_for(autojump_clock, open_server, simulated, request_for) -> None:
    async with open_server(simulated(Profile(0.1), versions=(1, 3))) as server:
        assert (await server.infer(request_for(model_version=1))).model_version == 1


@pytest.mark.parametrize(
    ("name", "version", "kind", "text"),
    [
        ("x", -1, NotFoundError, "Request for unknown model: 'x' is not found"),
        ("x", 1, NotFoundError, "Request for unknown model: 'x' is not found"),
        ("m", 7, NotFoundError, "Request for unknown model: 'm' version 7 is not found"),
    ],
)
async def test_unknown_models_and_versions_are_named(
    autojump_clock, open_server, simulated, name, version, kind, text
) -> None:
    async with open_server(simulated(Profile(0.1))) as server:
        with pytest.raises(kind) as caught:
            server.describe(name, version)
    assert caught.value.message == text


async def test_one_instance_executes_one_batch_at_a_time(autojump_clock, open_server, simulated, request_for) -> None:
    async with open_server(simulated(Profile(1.0))) as server:
        started_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(server.infer, request_for())
        assert trio.current_time() - started_s == pytest.approx(3.0)


async def test_requests_that_wait_are_batched_together(autojump_clock, open_server, simulated, request_for) -> None:
    """13 quick requests to one instance with max_batch_size 8 run as 1, 8, 4
    (docs/reference/scheduling.md#preferred-batch-sizes)."""
    batching = DynamicBatching(preferred_batch_sizes=(8,))
    async with open_server(simulated(Profile(1.0), batching=batching)) as server:
        async with trio.open_nursery() as nursery:
            for index in range(13):
                nursery.start_soon(server.infer, request_for())
                if index == 0:
                    await trio.testing.wait_all_tasks_blocked()
        (entry,) = server.statistics("m")
    statistics = entry.statistics
    assert {rows: batch.compute_infer.count for rows, batch in statistics.batches.items()} == {1: 1, 8: 1, 4: 1}
    assert statistics.inference_count == 13
    assert statistics.execution_count == 3
    assert statistics.success.count == 13
    assert statistics.compute_infer.count == 13
    phases = (statistics.compute_input, statistics.compute_infer, statistics.compute_output)
    assert sum(phase.ns for phase in phases) == 13 * 1_000_000_000, "each request is charged its batch's whole time"
    assert statistics.pending == 0


async def test_a_full_queue_refuses_at_once_and_counts_nothing(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """With max_queue_size 2 and one instance, one executing and two queued, the fourth is refused
    (docs/reference/scheduling.md#queue-policies)."""
    batching = DynamicBatching((1,), default_queue_policy=QueuePolicy(max_queue_size=2))
    async with open_server(simulated(Profile(1.0), max_batch_size=1, batching=batching)) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(server.infer, request_for())
                await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(UnavailableError) as caught:
                await server.infer(request_for(id="late"))
        (entry,) = server.statistics()
    assert caught.value.message == "[request id: late] Exceeds maximum queue size"
    assert entry.statistics.success.count == 3
    assert entry.statistics.fail.count == 0


async def test_requests_of_one_moment_fit_into_idle_instances(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """A queue of one, two idle instances: three requests at once are one for each instance and one for the queue."""
    batching = DynamicBatching((1,), default_queue_policy=QueuePolicy(max_queue_size=1))
    async with open_server(simulated(Profile(1.0), count=2, max_batch_size=1, batching=batching)) as server:
        replies = [await server.admit(request_for()) for _ in range(3)]
        with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
            await server.infer(request_for())
        for reply in replies:
            await reply.response()


async def test_an_expired_request_is_answered_and_counted(autojump_clock, open_server, simulated, request_for) -> None:
    batching = DynamicBatching((1,), default_queue_policy=QueuePolicy(default_timeout_us=200_000))
    async with open_server(simulated(Profile(1.0), max_batch_size=1, batching=batching)) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.infer, request_for())
            await trio.testing.wait_all_tasks_blocked()
            started_s = trio.current_time()
            with pytest.raises(UnavailableError, match=r"^Request timeout expired$"):
                await server.infer(request_for())
            assert trio.current_time() - started_s == pytest.approx(0.2)
        (entry,) = server.statistics()
    assert entry.statistics.fail.count == 1
    assert entry.statistics.failures[FailureReason.REJECTED] == 1


async def test_a_cancelled_request_leaves_the_dynamic_queue(
    autojump_clock, open_server, simulated, request_for
) -> None:
    batching = DynamicBatching((1,))
    async with open_server(simulated(Profile(1.0), max_batch_size=1, batching=batching)) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.infer, request_for())
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0.1) as scope:
                await server.infer(request_for())
            assert scope.cancelled_caught
        (entry,) = server.statistics()
        assert server.budget_statistics().requests == 0
    assert entry.statistics.execution_count == 1
    assert entry.statistics.failures[FailureReason.CANCELED] == 1


async def test_ordering_is_preserved_across_instances(autojump_clock, open_server, simulated, request_for) -> None:
    """Two instances, requests of 0.6, 0.05 and 0.05 s, all answered at 0.6 s
    (docs/reference/scheduling.md#preserved-order)."""
    seconds = iter((0.6, 0.05, 0.05))

    async def work(_spec: object, _batch: object) -> None:
        await trio.sleep(next(seconds))

    batching = DynamicBatching((1,), preserve_ordering=True)
    answered: list[tuple[int, float]] = []
    async with open_server(simulated(work, count=2, max_batch_size=1, batching=batching)) as server:
        started_s = trio.current_time()

        async def ask(number: int) -> None:
            await server.infer(request_for())
            answered.append((number, round(trio.current_time() - started_s, 3)))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(ask, number)
                await trio.testing.wait_all_tasks_blocked()
    assert sorted(answered) == [(0, 0.6), (1, 0.6), (2, 0.6)]


async def test_beyond_a_models_share_of_the_budget_callers_wait_instead_of_being_refused(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(Profile(1.0)), max_inflight_requests=4) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(server.infer, request_for())
            await trio.testing.wait_all_tasks_blocked()
            assert server.budget_statistics().requests == 2
            assert server.budget_statistics().waiting == 3
        (entry,) = server.statistics()
    assert entry.statistics.success.count == 5


async def test_invalid_requests_are_refused_before_the_queue(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(Profile(1.0))) as server:
        with pytest.raises(InvalidArgumentError, match="inference request batch-size must be <= 8 for 'm'"):
            await server.infer(request_for(rows=9))
        (entry,) = server.statistics()
    assert entry.statistics.fail.count == 0
    assert server.budget_statistics().requests == 0


async def test_leaving_the_block_answers_what_is_in_flight(autojump_clock, open_server, simulated, request_for) -> None:
    responses: list[object] = []
    refused: list[str] = []
    async with trio.open_nursery() as nursery, open_server(simulated(Profile(2.0))) as server:

        async def ask() -> None:
            responses.append(await server.infer(request_for()))

        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()

        async def ask_late() -> None:
            await trio.sleep(1)
            try:
                await server.infer(request_for(id="late"))
            except UnavailableError as error:
                refused.append(error.message)

        nursery.start_soon(ask_late)
    assert len(responses) == 2
    assert refused == [
        "[request id: late] Server is stopping, scheduler for model has stopped accepting new inference requests"
    ]
    assert server.drained


async def test_the_exit_timeout_bounds_the_drain_and_still_answers(
    autojump_clock, open_server, simulated, request_for
) -> None:
    failures: list[str] = []
    async with trio.open_nursery() as nursery, open_server(simulated(Profile(100.0)), exit_timeout_s=3) as server:

        async def ask() -> None:
            try:
                await server.infer(request_for())
            except UnavailableError as error:
                failures.append(error.message)

        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
    assert trio.current_time() - began_s == pytest.approx(3, abs=0.5)
    assert len(failures) == 2
    assert all("Server is stopping" in text for text in failures)
    assert not server.drained


async def test_a_model_that_cannot_load_stops_the_server_from_starting(autojump_clock, open_server, simulated) -> None:
    broken = simulated(Profile(1.0), name="broken", backend="nothing")
    with pytest.raises(StartupError, match="failed to load all models"):
        async with open_server(simulated(Profile(1.0)), broken):
            pytest.fail("the server must not open")


async def test_without_exit_on_error_the_others_are_served(autojump_clock, open_server, simulated, request_for) -> None:
    broken = simulated(Profile(1.0), name="broken", backend="nothing")
    async with open_server(simulated(Profile(1.0)), broken, exit_on_error=False) as server:
        assert (await server.infer(request_for())).model_name == "m"
        assert server.live()
        assert not server.ready()
        assert not server.model_ready("broken")
        entries = {entry.name: entry for entry in server.repository_index()}
        assert entries["broken"].state is ModelState.UNAVAILABLE
        assert entries["broken"].reason == (
            "Invalid argument: unable to find backend library for backend 'nothing', try specifying runtime on the "
            "model configuration."
        )
        assert [entry.name for entry in server.repository_index(ready_only=True)] == ["m"]
        with pytest.raises(NotFoundError, match="'broken' has no available versions"):
            server.describe("broken")
        with pytest.raises(UnavailableError, match="'broken' version 1 is not at ready state"):
            server.describe("broken", 1)


async def test_an_error_in_the_block_is_raised_as_it_is(autojump_clock, open_server, simulated) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_server(simulated(Profile(1.0))):
            _ = 1 / 0


async def test_a_model_that_answers_twice_is_reported(autojump_clock, open_server, simulated, request_for) -> None:
    async with open_server(simulated(Profile(0.1), decoupled=True)) as server:
        reply = await server.admit(request_for())
        reply.deliver(None, False)
        reply.deliver(InternalError("first"), False)
        reply.deliver(InternalError("second"), True)
        with pytest.raises(InternalError, match="expected a single response, got 2"):
            await reply.response()


async def test_what_model_control_says_in_mode_none(autojump_clock, open_server, simulated) -> None:
    async with open_server(simulated(Profile(0.1))) as server:
        with pytest.raises(UnavailableError) as caught:
            await server.load_model("m", {})
    assert caught.value.message == "explicit model load / unload is not allowed if polling is enabled"


async def test_arrivals_are_told_each_once_when_there_is_room(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """Those that wait for room in the server are told when there is some, those that are refused as invalid never."""
    arrivals: list[tuple[str, int]] = []

    def tell(request: InferenceRequest, rows: int) -> None:
        arrivals.append((request.id, rows))

    models = [simulated(Profile(1.0)), simulated(Profile(1.0), name="other")]
    async with open_server(*models, on_request=tell, max_inflight_requests=1) as server:
        first = server.admit_nowait(request_for(id="first", rows=2))
        assert server.admit_nowait(request_for("other", id="waiting")) is None
        with pytest.raises(UnavailableError, match="model 'm' has too many requests in flight: 1 requests, "):
            server.admit_nowait(request_for(id="refused"))
        assert arrivals == [("first", 2)]
        await first.response()
        await server.infer(request_for("other", id="waiting"))
        with pytest.raises(InvalidArgumentError):
            server.admit_nowait(request_for(rows=99))
    assert arrivals == [("first", 2), ("waiting", 1)]


async def test_who_waits_for_room_is_refused_when_time_is_up(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """Room is made when the ensemble's request is failed; its member, which nobody had told to stop, takes nothing."""
    ensemble = ModelPlan("e", max_batch_size=8, steps=(StepPlan("m"),)).config()
    models = [simulated(Profile(5.0)), SimulatedModel(ensemble, Profile(0.0))]
    refused = trio.Event()

    async def wait_for_room(server: InferenceServer) -> None:
        with pytest.raises(UnavailableError, match="Server is stopping"):
            await server.infer(request_for())
        refused.set()

    with trio.fail_after(60):
        async with (
            trio.open_nursery() as nursery,
            open_server(*models, max_inflight_requests=1, exit_timeout_s=0.0) as server,
        ):
            await server.admit(request_for("e"))
            nursery.start_soon(wait_for_room, server)
            await trio.sleep(1)
        assert refused.is_set()
