"""Worlds: one seed, one history; and what a history tells of what clients and actors do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from trireme.engine.config.model import DynamicBatching
from trireme.engine.errors import TriremeError, UnavailableError
from trireme.simulations.events import (
    NEVER_NS,
    BatchSealed,
    ExecutionEnded,
    ExecutionStarted,
    InstanceAttached,
    InstanceDetached,
    KernelStarted,
    ModelStateChanged,
    ReplyDelivered,
    RequestAbandoned,
    RequestAnswered,
    RequestQueued,
    RequestSubmitted,
    SchedulerStopped,
    ServerStopped,
    ServerStopping,
)
from trireme.simulations.history import History
from trireme.simulations.models import Profile, simple_model, simple_request
from trireme.simulations.scenarios import SCENARIOS
from trireme.simulations.world import ScenarioStuckError, World, run_world

MS = 1_000_000


@pytest.mark.parametrize("scenario", ["mixed", "streams"])
def test_one_seed_gives_one_history_in_two_processes_with_different_hash_seeds(
    run_python, tmp_path: Path, scenario: str
) -> None:
    """Byte for byte, and by the hash that the command prints; another seed gives another history."""

    def play(seed: int, hash_seed: int) -> tuple[str, bytes]:
        file = tmp_path / f"{seed}-{hash_seed}.jsonl"
        arguments = ("--scenario", scenario, "--seed", str(seed), "--history", str(file))
        printed = run_python("-m", "trireme.simulations", *arguments, hash_seed=hash_seed)
        return printed, file.read_bytes()

    first, again, other = play(7, 1), play(7, 2), play(8, 1)
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]
    assert first[1].count(b"\n") > 30


def test_a_history_does_not_depend_on_what_ran_before_in_the_process(run_python) -> None:
    code = (
        "from trireme.simulations.world import run_world\n"
        "from trireme.simulations.scenarios import mixed\n"
        "print(*[run_world(mixed, seed).digest() for seed in (1, 2, 1)])"
    )
    first, other, again = run_python("-c", code).split()
    assert first == again != other


def test_the_mixed_scenario_reaches_what_it_is_there_for() -> None:
    """Every reason to seal a batch that it can have, refusals at the door and in the queue, clients that give up,
    several instances, kernels that overlap: otherwise its histories would prove little."""
    histories = [run_world(SCENARIOS["mixed"], seed) for seed in (1, 2, 3)]
    reasons = {batch.reason for history in histories for batch in history.of(BatchSealed)}
    assert reasons >= {"full", "preferred size", "delay over", "instance idle"}
    instances = {batch.instance for history in histories for batch in history.of(BatchSealed)}
    assert instances == {"vision_0", "vision_1", "text_0", "text_1", "text_2"}
    errors = " ".join(answer.error for history in histories for answer in history.of(RequestAnswered))
    assert "Request timeout expired" in errors
    assert "Exceeds maximum queue size" in errors
    for history in histories:
        assert history.of(RequestAbandoned)
        assert {kernel.stream for kernel in history.of(KernelStarted)} == {0, 1}


def test_every_request_ends_once_and_every_accepted_one_is_executed_or_refused() -> None:
    history = run_world(SCENARIOS["mixed"], 4)
    submitted = [event.request for event in history.of(RequestSubmitted)]
    answered = [event.request for event in history.of(RequestAnswered)]
    abandoned = [event.request for event in history.of(RequestAbandoned)]
    assert submitted == list(range(1, 151))
    assert sorted([*answered, *abandoned]) == submitted
    executed = [request for batch in history.of(BatchSealed) for request in batch.requests]
    assert len(set(executed)) == len(executed)
    assert {event.request for event in history.of(RequestAnswered) if not event.error} <= set(executed)


def test_a_history_tells_what_happened_in_order_with_virtual_times() -> None:
    async def scenario(world: World) -> None:
        async with world.serve(simple_model("m", Profile(0.25, 0.01))):
            await trio.sleep(1.5)
            answer = await world.ask(simple_request("m", 3, priority=2, timeout_us=5))
            assert not isinstance(answer, TriremeError)
            assert answer.output("OUTPUT0").shape == (3, 4)

    assert run_world(scenario, 1) == History(
        (
            ModelStateChanged(0, "m", 1, "LOADING"),
            InstanceAttached(0, "m", "m_0"),
            ModelStateChanged(0, "m", 1, "READY"),
            RequestSubmitted(1500 * MS, 1, "m", 3, 2, 5),
            RequestQueued(1500 * MS, 1, "m", 3, 0, NEVER_NS),
            BatchSealed(1500 * MS, 1, "m", 1, "m_0", "no batching", (1,), 3),
            ExecutionStarted(1500 * MS, 1),
            ExecutionEnded(1780 * MS, 1, "done"),
            ReplyDelivered(1780 * MS, 1, "", True, False),
            RequestAnswered(1780 * MS, 1, ""),
            ServerStopping(1780 * MS, 30_000 * MS),
            ModelStateChanged(1780 * MS, "m", 1, "UNLOADING"),
            SchedulerStopped(1780 * MS, "m"),
            InstanceDetached(1780 * MS, "m", "m_0"),
            ModelStateChanged(1780 * MS, "m", 1, "UNAVAILABLE"),
            ServerStopped(1780 * MS, True),
        )
    )


def test_the_canonical_form_is_one_json_object_a_line() -> None:
    history = History((RequestSubmitted(5, 1, "é", 1, 0, 0), BatchSealed(6, 1, "m", 1, "m_0", "full", (1, 2), 2)))
    first, second = history.to_bytes().splitlines()
    assert first == (
        b'{"event":"RequestSubmitted","at_ns":5,"request":1,"model":"\\u00e9","rows":1,"priority":0,"timeout_us":0,'
        b'"sequence":0,"start":false,"end":false}'
    )
    assert json.loads(second)["requests"] == [1, 2]
    assert len(history.digest()) == 64


def test_a_client_that_gives_up_and_a_request_that_is_refused_are_in_the_history() -> None:
    async def scenario(world: World) -> None:
        async with world.serve(simple_model("m", Profile(1.0))):
            with trio.move_on_after(0.5):
                await world.ask(simple_request("m"))
            assert isinstance(await world.ask(simple_request("other")), TriremeError)

    history = run_world(scenario, 1)
    assert history.of(RequestAbandoned) == [RequestAbandoned(500 * MS, 1)]
    (refused,) = history.of(RequestAnswered)
    assert (refused.at_ns, refused.request) == (500 * MS, 2)
    assert "Request for unknown model: 'other' is not found" in refused.error


def test_answers_come_in_the_order_of_the_requests_asked_together() -> None:
    async def scenario(world: World) -> None:
        async with world.serve(simple_model("m", Profile(0.1), batching=DynamicBatching((8,)))):
            answers = await world.ask_together(*(simple_request("m", rows) for rows in (3, 1, 2)))
            shapes = [answer.output("OUTPUT0").shape[0] for answer in answers if not isinstance(answer, TriremeError)]
            assert shapes == [3, 1, 2]

    assert [batch.rows for batch in run_world(scenario, 1).of(BatchSealed)] == [6]


def test_an_instance_that_dies_or_hangs_shows_in_the_history() -> None:
    async def dying(_spec: object, _batch: object) -> None:
        await trio.sleep(0.1)
        raise RuntimeError("lost")

    async def scenario(world: World) -> None:
        models = (simple_model("dying", dying), simple_model("hanging", Profile(1e6)))
        async with world.serve(*models, hang_limit_s=5):
            await world.ask_together(simple_request("dying"), simple_request("hanging"))

    history = run_world(scenario, 1)
    assert sorted((event.at_ns, event.ending) for event in history.of(ExecutionEnded)) == [
        (100 * MS, "RuntimeError"),
        (5000 * MS, "given up"),
    ]
    assert all(answer.error for answer in history.of(RequestAnswered))


def test_requests_that_the_server_was_asked_directly_have_no_number() -> None:
    async def scenario(world: World) -> None:
        async with world.serve(simple_model("m", Profile(0.1))) as server:
            await server.infer(simple_request("m"))

    assert [batch.requests for batch in run_world(scenario, 1).of(BatchSealed)] == [(0,)]


def test_a_scenario_in_which_everyone_waits_ends_with_an_error() -> None:
    async def scenario(_world: World) -> None:
        await trio.sleep_forever()

    with pytest.raises(ScenarioStuckError, match="did not end within 86400 virtual seconds"):
        run_world(scenario, 1)


def test_what_a_scenario_raises_comes_out() -> None:
    async def scenario(world: World) -> None:
        async with world.serve(simple_model("m", Profile(0.1))):
            raise UnavailableError("enough")

    with pytest.raises(ExceptionGroup) as caught:
        run_world(scenario, 1)
    assert caught.group_contains(UnavailableError, match="enough", depth=None)
