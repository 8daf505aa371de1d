"""The response cache in front of a model, in this server's memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from counted_models import (
    CACHED,
    CONFIG,
    ENSEMBLE,
    LOCAL,
    Counter,
    counted_request,
    counted_server,
    number_of,
    statistics_of,
    until,
)

from trireme.actors.scheduler import Scheduler
from trireme.engine.errors import InternalError, InvalidArgumentError, UnavailableError
from trireme.engine.options import ControlMode


@pytest.fixture
def counter() -> Counter:
    return Counter()


async def test_the_second_request_for_the_same_thing_is_answered_from_the_cache(
    tmp_path: Path, counter: Counter
) -> None:
    """With the model's name, the version and its own id, and without the model."""
    async with counted_server(tmp_path, counter, {"m": CACHED}) as server:
        first = await server.infer(counted_request((1, 2, 3), id="a"))
        second = await server.infer(counted_request((1, 2, 3), id="b", parameters={"other": 1}, priority=3))
    assert counter.executed == 1
    assert (second.model_name, second.model_version, second.id, second.parameters) == ("m", 1, "b", {})
    for name in ("OUT", "N"):
        assert second.output(name).shape == first.output(name).shape
        assert second.output(name).array.tolist() == first.output(name).array.tolist()


async def test_a_hit_counts_as_a_success_and_nothing_else(tmp_path: Path, counter: Counter) -> None:
    """As in Triton, success, queue and cache_hit go up; what speaks of executions does not
    (docs/reference/statistics.md)."""
    async with counted_server(tmp_path, counter, {"m": CACHED}) as server:
        await server.infer(counted_request())
        counted = statistics_of(server)
        assert (counted.cache_miss.count, counted.cache_hit.count) == (1, 0)
        assert counted.cache_miss.ns > 0
        last_ms, infer_ns = counted.last_inference_ms, counted.compute_infer.ns
        await server.infer(counted_request())
        assert (counted.success.count, counted.queue.count, counted.cache_hit.count) == (2, 2, 1)
        assert (counted.cache_miss.count, counted.fail.count, counted.pending) == (1, 0, 0)
        assert (counted.inference_count, counted.execution_count, counted.compute_infer.count) == (1, 1, 1)
        assert (counted.last_inference_ms, counted.compute_infer.ns) == (last_ms, infer_ns)
        assert 0 < counted.cache_hit.ns < counted.success.ns


async def test_the_time_of_a_miss_is_part_of_its_request(tmp_path: Path, counter: Counter) -> None:
    """The lookup, once more, and the insertion are added to the duration of the request."""
    async with counted_server(tmp_path, counter, {"m": CACHED}) as server:
        await server.infer(counted_request())
        counted = statistics_of(server)
        spent = counted.queue.ns + counted.compute_input.ns + counted.compute_infer.ns + counted.compute_output.ns
        assert counted.success.ns >= spent + counted.cache_miss.ns


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (4, 1)},
        {"values": (1, 2, 3, 5)},
        {"requested_outputs": ("N",)},
        {"name": "other"},
    ],
    ids=["shape", "values", "outputs", "model"],
)
async def test_another_question_is_not_answered_from_the_cache(
    tmp_path: Path, counter: Counter, other: Mapping[str, object]
) -> None:
    async with counted_server(tmp_path, counter, {"m": CACHED, "other": CACHED}) as server:
        await server.infer(counted_request((1, 2, 3, 4)))
        await server.infer(counted_request(**{"values": (1, 2, 3, 4), **other}))  # type: ignore[arg-type]
    assert counter.executed == 2


async def test_asking_for_every_output_is_asking_for_none_in_particular(tmp_path: Path, counter: Counter) -> None:
    async with counted_server(tmp_path, counter, {"m": CACHED}) as server:
        await server.infer(counted_request())
        answer = await server.infer(counted_request(requested_outputs=("N", "OUT")))
        assert number_of(answer) == 1
        only = await server.infer(counted_request(requested_outputs=("OUT",)))
        assert [output.name for output in only.outputs] == ["OUT"]


async def test_an_error_is_not_kept(tmp_path: Path, counter: Counter) -> None:
    async with counted_server(tmp_path, counter, {"m": CACHED}) as server:
        with pytest.raises(InternalError, match="boom"):
            await server.infer(counted_request(parameters={"fail": "boom"}))
        assert number_of(await server.infer(counted_request())) == 2
        assert statistics_of(server).cache_miss.count == 1


async def test_two_requests_at_the_same_time_are_both_executed(tmp_path: Path, counter: Counter) -> None:
    """One of their responses is kept, and counted as a miss."""
    async with counted_server(tmp_path, counter, {"m": CACHED}) as server:
        replies = [await server.admit(counted_request(parameters={"gate": "g"})) for _ in range(2)]
        counter.open("g")
        for reply in replies:
            await reply.response()
        assert counter.executed == 2
        assert statistics_of(server).cache_miss.count == 1
        assert number_of(await server.infer(counted_request())) == 1


async def test_a_hit_needs_no_room_in_the_queue(tmp_path: Path, counter: Counter) -> None:
    batching = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    config = CACHED.replace("max_batch_size: 8", batching)
    async with counted_server(tmp_path, counter, {"m": config}) as server:
        await server.infer(counted_request())
        held = await server.admit(counted_request((2,), parameters={"gate": "g"}))
        await until(lambda: counter.executed == 2)
        queued = await server.admit(counted_request((3,)))
        with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
            await server.infer(counted_request((4,)))
        assert number_of(await server.infer(counted_request())) == 1
        counter.open("g")
        await held.response()
        await queued.response()


async def test_nobody_can_change_what_is_kept(tmp_path: Path, counter: Counter) -> None:
    """Neither the model that made it, nor who got it first, nor who gets it from the cache."""
    async with counted_server(tmp_path, counter, {"m": CACHED}) as server:
        first = await server.infer(counted_request((1, 2)))
        first.output("OUT").array[:] = -1
        for tensor in counter.given[0]:
            tensor.array[:] = -2
        second = await server.infer(counted_request((1, 2)))
        assert second.output("OUT").array.tolist() == [[2, 4]]
        with pytest.raises(ValueError, match="read-only"):
            second.output("OUT").array[:] = -3
        assert memoryview(second.output("OUT").buffer).readonly
        third = await server.infer(counted_request((1, 2)))
        assert third.output("OUT").array.tolist() == [[2, 4]]


async def test_what_is_too_large_is_said_and_answered_all_the_same(
    tmp_path: Path, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    cache = {"local": {"size": "1000"}}
    async with counted_server(tmp_path, counter, {"m": CACHED}, cache) as server:
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                await server.infer(counted_request([0.0] * 1000))
        assert counter.executed == 2
        assert statistics_of(server).cache_miss.count == 2
    said = "into response cache: Requested byte_size: 4004 is greater than total cache size: 680"
    assert sum(said in message for message in caplog.messages) == 2


async def test_hits_wait_their_turn_if_the_model_preserves_ordering(tmp_path: Path, counter: Counter) -> None:
    config = CACHED + "dynamic_batching { preserve_ordering: true }\n"
    order: list[str] = []
    async with counted_server(tmp_path, counter, {"m": config}) as server:
        await server.infer(counted_request())
        slow = await server.admit(counted_request((2,), parameters={"gate": "g"}))
        hit = await server.admit(counted_request())
        slow.notify(lambda _reply: order.append("slow"))
        hit.notify(lambda _reply: order.append("hit"))
        assert not order
        counter.open("g")
        await until(lambda: len(order) == 2)
    assert order == ["slow", "hit"]


async def test_an_ensemble_keeps_its_own_answers(tmp_path: Path, counter: Counter) -> None:
    """A hit asks no member, and the members count nothing."""
    models = {"m": CONFIG, "whole": ENSEMBLE + "response_cache { enable: true }\n"}
    async with counted_server(tmp_path, counter, models) as server:
        for _ in range(2):
            assert number_of(await server.infer(counted_request(name="whole"))) == 1
        whole, member = statistics_of(server, "whole"), statistics_of(server)
        assert (whole.success.count, whole.cache_hit.count, whole.cache_miss.count) == (2, 1, 1)
        assert (whole.inference_count, whole.execution_count) == (1, 1)
        assert (member.success.count, member.cache_hit.count) == (1, 0)


async def test_a_member_of_an_ensemble_answers_from_the_cache(tmp_path: Path, counter: Counter) -> None:
    async with counted_server(tmp_path, counter, {"m": CACHED, "whole": ENSEMBLE}) as server:
        await server.infer(counted_request())
        assert number_of(await server.infer(counted_request(name="whole"))) == 1
        assert counter.executed == 1
        assert statistics_of(server, "whole").success.count == 1
        assert statistics_of(server).cache_hit.count == 1


@pytest.mark.parametrize(
    ("member", "what"),
    [
        ("model_transaction_policy { decoupled: true }", "'decoupled' transaction policy"),
        ("sequence_batching { }", "sequence batching scheduler"),
    ],
)
async def test_an_ensemble_of_members_that_could_not_use_the_cache_cannot(
    tmp_path: Path, counter: Counter, member: str, what: str
) -> None:
    models = {"m": CONFIG + member, "whole": ENSEMBLE + "response_cache { enable: true }\n"}
    async with counted_server(tmp_path, counter, models, exit_on_error=False) as server:
        (entry,) = [entry for entry in server.repository_index() if entry.name == "whole"]
    assert entry.reason == (
        f"Invalid argument: Response Cache does not currently support model whole with {what}. "
        "Please disable the response cache."
    )


async def test_a_model_that_was_loaded_again_is_asked_anew(tmp_path: Path, counter: Counter) -> None:
    """The file of a version may have changed: what the load before has answered is nobody's answer any more."""
    options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("m",)}
    async with counted_server(tmp_path, counter, {"m": CACHED}, **options) as server:
        assert number_of(await server.infer(counted_request())) == 1
        await server.unload_model("m")
        await server.load_model("m", {})
        assert number_of(await server.infer(counted_request())) == 2


@pytest.mark.parametrize(
    ("config", "cache"), [(CONFIG, LOCAL), (CACHED, {})], ids=["model does not", "server does not"]
)
async def test_who_does_not_use_it_pays_nothing(
    tmp_path: Path, counter: Counter, config: str, cache: Mapping[str, Mapping[str, str]]
) -> None:
    """The model's door is its scheduler's own."""
    async with counted_server(tmp_path, counter, {"m": config}, cache) as server:
        for _ in range(2):
            await server.infer(counted_request())
        (model,) = server._repository.models()
        assert isinstance(model.scheduler, Scheduler)
    assert counter.executed == 2


async def test_large_inputs_are_hashed_on_a_thread(tmp_path: Path, counter: Counter) -> None:
    """The request waits before the scheduler meanwhile, and the event loop does not."""
    async with counted_server(tmp_path, counter, {"m": CACHED}) as server:
        values = range(100_000)
        reply = await server.admit(counted_request(values))
        await reply.admitted()
        assert statistics_of(server).pending == 1
        assert server.model_statistics()[0].inflight == 1
        assert number_of(await reply.response()) == 1
        assert number_of(await server.infer(counted_request(values))) == 1
        counted = statistics_of(server)
        assert (counted.success.count, counted.cache_hit.count, counted.pending) == (2, 1, 0)


async def test_several_caches_are_refused(tmp_path: Path, counter: Counter) -> None:
    cache = {**LOCAL, "redis": {"host": "localhost"}}
    with pytest.raises(InvalidArgumentError, match="found multiple cache configurations, but only a single cache is "):
        async with counted_server(tmp_path, counter, {"m": CACHED}, cache):
            pass


async def test_an_unknown_cache_is_refused(tmp_path: Path, counter: Counter) -> None:
    with pytest.raises(InvalidArgumentError, match=r"unable to find 'libtritoncache_none\.so' for cache"):
        async with counted_server(tmp_path, counter, {"m": CACHED}, {"none": {"size": "1000"}}):
            pass
