"""What is noted, while a console is open, of requests of whose end no batch tells: each once. In virtual time."""

from __future__ import annotations

from pathlib import Path

import trio
from counted_models import CACHED, ENSEMBLE, Counter, counted_request, counted_server
from ensembles import ensemble, step
from watched_models import ask, fails, results, virtual_server, watch

from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.simulations.models import Profile, SimulatedModel, simple_model, simple_request


async def test_a_request_that_fails_is_noted_with_its_times(autojump_clock) -> None:
    async with virtual_server(simple_model("m", fails)) as server:
        counted = watch(server)
        await ask(server, simple_request("m"))
        await trio.testing.wait_all_tasks_blocked()
        (noted,) = counted.tap.take_requests()
        assert (noted.result, noted.instance, noted.end_ns - noted.start_ns) == ("failed: backend", "m_0", 10**9)
        (batch,) = counted.tap.take()
        assert (list(batch.requests), batch.failed) == ([], 1)


async def test_requests_that_are_refused_or_cancelled_in_the_queue_are_noted(autojump_clock) -> None:
    limited = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))
    async with (
        virtual_server(simple_model("m", Profile(5.0), batching=limited)) as server,
        trio.open_nursery() as nursery,
    ):
        counted = watch(server)
        nursery.start_soon(ask, server, simple_request("m"))
        await trio.sleep(1.0)
        with trio.move_on_after(1.0):
            async with trio.open_nursery() as waiting:
                waiting.start_soon(ask, server, simple_request("m"))
                await trio.sleep(0.5)
                for _ in range(3):
                    await ask(server, simple_request("m"))
        await trio.sleep(9.0)
        noted = counted.tap.take_requests()
        assert [each.result for each in noted] == ["refused: queue full"] * 3 + ["failed: canceled"]
        assert [each.start_ns for each in noted] == [-1] * 4
        assert counted.success.count + counted.tap.unanswered == 5, "all that came"


async def test_a_request_that_is_invalid_is_noted_once(autojump_clock) -> None:
    async with virtual_server(simple_model("m", Profile(1.0))) as server:
        counted = watch(server)
        await ask(server, simple_request("m", rows=99))
        assert results(counted) == ["refused: invalid"]
        assert counted.tap.unanswered == 1


async def test_requests_to_an_ensemble_are_noted_by_themselves(autojump_clock) -> None:
    steps = [step("a", {"INPUT0": "INPUT0"}, {"OUTPUT0": "t"}), step("b", {"INPUT0": "t"}, {"OUTPUT0": "OUTPUT0"})]

    def chain(name: str, last: str) -> SimulatedModel:
        both = [steps[0], step(last, {"INPUT0": "t"}, {"OUTPUT0": "OUTPUT0"})]
        return SimulatedModel(
            ensemble(both, ("INPUT0 FP32 4",), ("OUTPUT0 FP32 4",), max_batch_size=8, name=name), fails
        )

    members = simple_model("a", Profile(1.0)), simple_model("b", Profile(2.0)), simple_model("c", fails)
    async with virtual_server(*members, chain("good", "b"), chain("bad", "c")) as server:
        good, bad = watch(server, "good"), watch(server, "bad")
        await ask(server, simple_request("good"))
        await ask(server, simple_request("bad"))
        (answered,), (failed,) = good.tap.take_requests(), bad.tap.take_requests()
        assert (answered.result, answered.end_ns - answered.start_ns) == ("", 3 * 10**9)
        assert (failed.result, failed.start_ns >= 0) == ("failed", True)
        assert [each.success.count + each.tap.unanswered for each in (good, bad)] == [1, 1]


async def test_an_answer_from_the_cache_is_noted(tmp_path: Path) -> None:
    async with counted_server(tmp_path, Counter(), {"m": CACHED, "e": ENSEMBLE}) as server:
        counted = watch(server)
        await server.infer(counted_request())
        await server.infer(counted_request())
        assert results(counted) == ["cached"]
        assert counted.success.count + counted.tap.unanswered == 2
