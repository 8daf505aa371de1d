"""Planned runs: the server's own decisions, without checks, for lists of arrivals."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import trio
from model_configs import read_config

from trireme.engine.config.model import DynamicBatching, ModelConfig, QueuePolicy
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.job import SealReason
from trireme.engine.logs.request_log import LoggedRequest
from trireme.engine.options import ServerOptions
from trireme.simulations.events import BatchSealed, ExecutionEnded
from trireme.simulations.models import Profile, simple_model, simple_request
from trireme.simulations.planning import ClosedLoop, ExecutionPlace, HostCosts, PlannedModel, PlayedRun, play
from trireme.simulations.planning.event_loop import count_due
from trireme.simulations.world import World, run_world

OPTIONS = ServerOptions()


def planned(
    name: str = "m",
    fixed_s: float = 0.01,
    per_row_s: float = 0.0,
    *,
    instances: int = 1,
    batching: DynamicBatching | None = None,
    place: ExecutionPlace = ExecutionPlace.THREAD,
    cores: float = 1.0,
) -> PlannedModel:
    config = simple_model(name, Profile(0.0), instances=instances, batching=batching).config
    return PlannedModel(config, lambda rows, _busy, _chance: fixed_s + per_row_s * rows, place, cores)


def poisson(count: int, rate_hz: float, seed: int = 1, rows: int = 1) -> list[LoggedRequest]:
    chance, at_s = Random(seed), 0.0
    arrivals = []
    for _ in range(count):
        at_s += chance.expovariate(rate_hz)
        arrivals.append(LoggedRequest(at_s, "m", rows=rows))
    return arrivals


def config_of(folder: Path, name: str, text: str) -> ModelConfig:
    """A configuration as the server reads it."""
    directory = folder / name
    directory.mkdir()
    tensors = (
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }'
    )
    (directory / "config.pbtxt").write_text(tensors + text)
    return read_config(directory)


def at(*times_s: float, model: str = "m") -> list[LoggedRequest]:
    return [LoggedRequest(time_s, model) for time_s in times_s]


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize(
    "batching",
    [None, DynamicBatching(), DynamicBatching((4, 8), 7_000), DynamicBatching((), 3_000)],
    ids=["unbatched", "batched", "preferred", "delayed"],
)
def test_a_planned_run_decides_what_the_simulation_with_all_its_events_decides(
    batching: DynamicBatching | None, instances: int
) -> None:
    arrivals = poisson(300, 400.0)
    run = play([planned(fixed_s=0.004, per_row_s=0.001, instances=instances, batching=batching)], arrivals, OPTIONS, 1)

    async def scenario(world: World) -> None:
        model = simple_model("m", Profile(0.004, 0.001), instances=instances, batching=batching)
        async with world.serve(model), trio.open_nursery() as clients:
            for arrival in arrivals:
                await world.clock.sleep(arrival.offset_s - world.clock.now_s())
                clients.start_soon(world.ask, simple_request("m"))

    history = run_world(scenario, 1)
    sealed = history.of(BatchSealed)
    assert [batch.requests for batch in sealed] == [
        tuple(int(request) + 1 for request in np.flatnonzero(run.batch == number))
        for number in range(len(run.batch_rows))
    ]
    assert [SealReason(batch.reason) for batch in sealed] == [run.reasons[reason] for reason in run.batch_reason]
    assert run.batch_begun_s == pytest.approx([batch.at_ns / 1e9 for batch in sealed], abs=1e-8)
    ends = {event.batch: event.at_ns / 1e9 for event in history.of(ExecutionEnded)}
    assert run.batch_ended_s == pytest.approx([ends[batch.batch] for batch in sealed], abs=1e-8)


def test_one_seed_gives_one_run_and_each_model_has_chance_of_its_own() -> None:
    def play_with(seed: int, others: int) -> PlayedRun:
        def chancy(name: str) -> PlannedModel:
            return replace(planned(name), service=lambda _rows, _busy, chance: chance.expovariate(100.0))

        arrivals = [each for one in poisson(200, 50.0) for each in (one, *[replace(one, model="other")] * others)]
        return play([chancy("m"), chancy("other")], arrivals, OPTIONS, seed)

    first, again, other, crowded = play_with(1, 1), play_with(1, 1), play_with(2, 1), play_with(1, 2)
    assert first.answered_s.tobytes() == again.answered_s.tobytes() != other.answered_s.tobytes()
    assert first.latencies_s("m").tolist() == crowded.latencies_s("m").tolist()
    assert first.latencies_s("other").tolist() != crowded.latencies_s("other").tolist()


def test_what_is_refused_and_what_fails_is_counted_by_reason() -> None:
    policy = QueuePolicy(max_queue_size=2, default_timeout_us=15_000, allow_timeout_override=True)
    batching = DynamicBatching((1,), default_queue_policy=policy)
    arrivals = [
        *at(0.0, 0.001, 0.002, 0.003),
        *at(0.02, model="unknown"),
        LoggedRequest(0.03, "m", rows=9),
    ]
    run = play([planned(batching=batching)], arrivals, OPTIONS, 1)
    assert run.refusals[0] == ""
    assert [run.refusals[number] for number in run.refusal] == [
        "",
        "",
        "queue_timeout",
        "queue_full",
        "unknown_model",
        "invalid",
    ]
    assert run.refused() == Counter(queue_timeout=1, queue_full=1, unknown_model=1, invalid=1)
    assert run.refused("m") == Counter(queue_timeout=1, queue_full=1, invalid=1)
    assert run.answered_s == pytest.approx([0.01, 0.02, 0.017, 0.003, 0.02, 0.03])
    assert run.batch.tolist() == [0, 1, -1, -1, -1, -1]
    assert math.isnan(run.dispatched_s[2])


def test_priorities_go_first() -> None:
    batching = DynamicBatching((1,), priority_levels=2, default_priority_level=2)
    arrivals = [LoggedRequest(at_s, "m", priority=priority) for at_s, priority in ((0.0, 2), (0.001, 2), (0.002, 1))]
    run = play([planned(batching=batching)], arrivals, OPTIONS, 1)
    assert run.answered_s == pytest.approx([0.01, 0.03, 0.02])


def test_a_closed_loop_sends_when_answers_come() -> None:
    loop = ClosedLoop(2, 7, lambda _number: LoggedRequest(0.0, "m"), lambda number: 0.005 * (number % 2))
    run = play([planned(instances=2)], loop.first, OPTIONS, 1, then=loop.then)
    assert len(run) == 7
    assert run.sent_s == pytest.approx([0.0, 0.005, 0.01, 0.02, 0.02, 0.03, 0.035])
    assert run.latencies_s() == pytest.approx([0.01] * 7)


def test_sequences_stay_on_their_instance_and_in_order(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        "m",
        """backend: "python" max_batch_size: 1
        sequence_batching { direct { } max_sequence_idle_microseconds: 5000000 }
        instance_group { count: 2 kind: KIND_CPU }""",
    )
    sent = [(0.0, 7, True), (0.0, 8, True), (0.001, 7, False), (0.001, 8, False), (0.002, 7, False)]
    arrivals = [LoggedRequest(at_s, "m", sequence=number, start=start) for at_s, number, start in sent]
    arrivals.append(LoggedRequest(0.003, "m", sequence=9))
    run = play([PlannedModel(config, lambda _rows, _busy, _chance: 0.01)], arrivals, OPTIONS, 1)
    instances = run.batch_instance[run.batch[:5]].tolist()
    assert instances[0] == instances[2] == instances[4] != instances[1] == instances[3]
    assert run.answered_s[:5] == pytest.approx([0.01, 0.01, 0.02, 0.02, 0.03])
    assert run.refused() == Counter(invalid=1)


def test_an_ensemble_is_what_its_members_make_of_it(tmp_path: Path) -> None:
    ensemble = config_of(
        tmp_path,
        "e",
        """platform: "ensemble" max_batch_size: 8
        ensemble_scheduling {
          step { model_name: "a" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }
                 output_map { key: "OUTPUT0" value: "middle" } }
          step { model_name: "b" model_version: -1 input_map { key: "INPUT0" value: "middle" }
                 output_map { key: "OUTPUT0" value: "OUTPUT0" } } }""",
    )
    models = [planned("a", 0.01), planned("b", 0.02), PlannedModel(ensemble)]
    run = play(models, at(0.0, 0.0, model="e"), OPTIONS, 1)
    assert run.latencies_s("e") == pytest.approx([0.03, 0.05])
    assert run.batch.tolist() == [-1, -1]
    assert [run.models[model] for model in run.batch_model] == ["a", "a", "b", "b"]
    assert run.utilisation("b", 1) == pytest.approx(0.04 / 0.05)


def test_time_before_the_first_request_is_none_of_a_runs() -> None:
    """A log of a server that was idle at first."""
    model = planned("a", 0.01)
    soon, late = (play([model], at(begin_s, begin_s + 0.02, model="a"), OPTIONS, 1) for begin_s in (0.0, 5.0))
    utilisations = [run.utilisation("a", 1) for run in (soon, late)]
    assert utilisations == pytest.approx([0.02 / 0.03] * 2)
    assert late.throughput() == pytest.approx(soon.throughput())


def test_a_model_without_a_service_time_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="model 'm' needs a service time"):
        play([PlannedModel(planned().config)], [], OPTIONS, 1)


def test_arrivals_out_of_order_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"0\.5 s comes after one at 1\.0 s"):
        play([planned()], at(1.0, 0.5), OPTIONS, 1)


def test_what_a_service_time_raises_ends_the_run() -> None:
    model = replace(planned(), service=lambda _rows, _busy, _chance: [][1])
    with pytest.raises(IndexError):
        play([model], at(0.0, 0.1), OPTIONS, 1)


def test_what_is_to_come_then_may_not_raise_unheard() -> None:
    def then(_number: int, _now: float, _well: bool) -> None:
        raise KeyError("then")

    with pytest.raises(KeyError):
        play([planned()], at(0.0, 0.1), OPTIONS, 1, then=then)


def test_no_arrivals_make_an_empty_run() -> None:
    run = play([planned()], [], OPTIONS, 1)
    assert (len(run), run.ended_s, run.throughput()) == (0, 0.0, 0.0)
    assert math.isnan(run.mean_batch_rows("m"))


def test_requests_wait_for_the_servers_budget() -> None:
    models = [planned("a"), planned("b")]
    arrivals = [LoggedRequest(0.0, "a"), LoggedRequest(0.0, "b"), LoggedRequest(0.0, "a")]
    run = play(models, arrivals, replace(OPTIONS, max_inflight_requests=1), 1)
    assert run.admitted_s[:2] == pytest.approx([0.0, 0.01])
    assert run.answered_s == pytest.approx([0.01, 0.02, 0.0])
    assert run.refused("a") == Counter(model_share=1)


class Costly(HostCosts):
    """Each of the loop's tasks has its own price, in ms."""

    def admit(self, request: LoggedRequest) -> float:
        return 0.001

    def begin(self, model: PlannedModel, requests: int, rows: int) -> float:
        return 0.002

    def answer(self, model: PlannedModel, rows: int, well: bool) -> float:
        return 0.0005


def test_the_loop_does_one_thing_after_the_other() -> None:
    run = play([planned()], at(0.0, 0.0), OPTIONS, 1, costs=Costly())
    assert run.admitted_s == pytest.approx([0.001, 0.002])
    assert run.batch_begun_s == pytest.approx([0.002, 0.014])  # after both arrivals, which came in one wake-up
    assert run.batch_started_s == pytest.approx([0.004, 0.016])
    assert run.answered_s == pytest.approx([0.0165, 0.0265])  # the next batch goes before the answers
    assert run.loop_busy_s == pytest.approx(2 * 0.0035)


def test_a_batch_on_the_loop_holds_up_what_comes_meanwhile() -> None:
    run = play([planned(place=ExecutionPlace.LOOP)], at(0.0, 0.001, 0.002), OPTIONS, 1, costs=HostCosts())
    assert run.admitted_s == pytest.approx([0.0, 0.01, 0.01])
    assert run.answered_s == pytest.approx([0.01, 0.02, 0.03])
    assert run.loop_busy_s == pytest.approx(0.03)


def test_short_batches_prove_themselves_as_in_the_server() -> None:
    run = play([planned(fixed_s=0.0002, place=ExecutionPlace.PROVING)], at(*np.arange(100) * 0.001), OPTIONS, 1)
    assert 0.08 * 100 * 0.0002 < run.loop_busy_s < 100 * 0.0002


class Delayed(HostCosts):
    def start(self, model: PlannedModel, requests: int, rows: int) -> float:
        return 0.001

    def notice(self, model: PlannedModel, requests: int, rows: int) -> float:
        return 0.002

    def way_in(self, request: LoggedRequest) -> float:
        return 0.004

    def way_out(self, model: PlannedModel, well: bool) -> float:
        return 0.008


def test_what_passes_beside_the_loop_delays_and_does_not_occupy_it() -> None:
    run = play([planned()], at(0.0), OPTIONS, 1, costs=Delayed())
    columns = (run.admitted_s, run.batch_begun_s, run.batch_started_s, run.batch_ended_s, run.batch_heard_s)
    assert [column[0] for column in columns] == pytest.approx([0.004, 0.004, 0.005, 0.015, 0.017])
    assert run.answered_s == pytest.approx([0.025])
    assert run.loop_busy_s == 0.0


def test_a_batch_starts_on_its_thread_without_the_loop() -> None:
    """Which has other things to do by then, and needs not wake up."""
    woken: list[float] = []

    class Busy(Delayed):
        cores = 4.0

        def wake(self, events: int, rested_s: float) -> float:
            woken.append(rested_s)
            return 0.0

        def settle(self) -> float:
            return 0.003

    run = play([planned()], at(0.0), OPTIONS, 1, costs=Busy())
    assert run.batch_begun_s == pytest.approx([0.004])
    assert run.batch_started_s == pytest.approx([0.005])
    assert run.batch_ended_s == pytest.approx([0.015])
    assert len(woken) == 2  # of the request, and of the batch's end


class OneCore(HostCosts):
    cores = 1.0


class SharedCore(Costly):
    cores = 1.0
    loop_first = False


class CoreAndAHalf(Costly):
    cores = 1.5


@pytest.mark.parametrize(
    ("place", "cores", "expected_s"),
    [
        (ExecutionPlace.PROCESS, 1.0, 0.02),
        (ExecutionPlace.THREAD, 1.0, 0.02),
        (ExecutionPlace.DEVICE, 1.0, 0.01),
        (ExecutionPlace.PROCESS, 0.5, 0.01),
    ],
)
def test_what_computes_at_once_shares_the_cores(place: ExecutionPlace, cores: float, expected_s: float) -> None:
    models = [planned("a", place=place, cores=cores), planned("b", place=place, cores=cores)]
    arrivals = [LoggedRequest(0.0, "a"), LoggedRequest(0.0, "b")]
    run = play(models, arrivals, OPTIONS, 1, costs=OneCore())
    assert run.answered_s == pytest.approx([expected_s, expected_s])


def test_the_loop_and_what_computes_slow_each_other_down() -> None:
    run = play([planned(instances=2)], at(0.0, 0.006), OPTIONS, 1, costs=SharedCore())
    # The first computes from 3 ms on. At 6 ms, with 7 ms to do, the loop works for 3 ms on half a core: both take 6 ms.
    assert run.admitted_s == pytest.approx([0.001, 0.008])
    assert run.batch_started_s == pytest.approx([0.003, 0.012])
    assert run.batch_ended_s[0] == pytest.approx(0.012 + 2 * 0.004)


def test_the_loop_can_go_first() -> None:
    run = play([planned(instances=2)], at(0.0, 0.006), OPTIONS, 1, costs=CoreAndAHalf())
    # At 6 ms the first has 7 ms to do. While the loop works, for 3 ms, it has half a core, and then there is 0.75 for
    # each of the two.
    assert run.admitted_s == pytest.approx([0.001, 0.007])
    assert run.batch_started_s == pytest.approx([0.003, 0.009])
    assert run.batch_ended_s[0] == pytest.approx(0.009 + 0.0055 / 0.75)
    assert run.cores_busy_s == pytest.approx(0.02)


def test_a_wake_up_is_for_all_that_is_due() -> None:
    heard: list[int] = []

    class Counted(HostCosts):
        def wake(self, events: int, rested_s: float) -> float:
            heard.append(events)
            return 0.0005

    run = play([planned("a"), planned("b")], [*at(0.0, model="a"), *at(0.0, model="b")], OPTIONS, 1, costs=Counted())
    assert heard == [1, 2]  # the second arrival is known when the first is heard; both batches end together
    assert run.loop_busy_s == pytest.approx(0.001)


def test_what_comes_while_a_loop_wakes_up_is_heard_with_what_woke_it() -> None:
    """And a loop that is awake, or whose batch is over, needs no such while."""

    class Slow(HostCosts):
        def rouse(self, rested_s: float) -> float:
            return min(rested_s, 0.002)

        def admit(self, request: LoggedRequest) -> float:
            return 0.001

    batching = DynamicBatching()
    for apart_s, admitted_s, batches in ((0.0015, [1.003, 1.004], 1), (0.0025, [1.003, 1.004], 2)):
        run = play([planned(batching=batching)], at(1.0, 1.0 + apart_s), OPTIONS, 1, costs=Slow())
        assert run.admitted_s == pytest.approx(admitted_s)
        assert len(run.batch_rows) == batches
        assert run.batch_heard_s == pytest.approx(run.batch_ended_s)
        assert run.loop_busy_s == pytest.approx(0.002)


def test_what_a_loop_does_before_it_sleeps_delays_only_what_comes_meanwhile() -> None:
    class Settling(HostCosts):
        def settle(self) -> float:
            return 0.003

    run = play([planned(instances=2)], at(0.0, 0.002), OPTIONS, 1, costs=Settling())
    assert run.batch_begun_s == pytest.approx([0.0, 0.003])
    assert run.answered_s == pytest.approx([0.010, 0.013])
    assert run.loop_busy_s == pytest.approx(0.012)


def test_what_is_due_is_counted_without_a_look_at_the_rest() -> None:
    times_s = [each % 7 + each / 100 for each in range(50)]
    heap: list[tuple[float, int, None, None]] = []
    for number, time_s in enumerate(times_s):
        heapq.heappush(heap, (time_s, number, None, None))
    for now in (-1.0, 0.0, 2.5, 3.21, 100.0):
        assert count_due(heap, now) == sum(time_s <= now for time_s in times_s)


@pytest.mark.parametrize("cores", [math.inf, 64.0])
def test_time_up_to_a_timer_of_the_server_is_time_of_the_cores(cores: float) -> None:
    """A batch begins when its delay is over, while another is computed: both end as if cores were not counted."""
    costs = HostCosts()
    costs.cores = cores
    model = planned(fixed_s=0.020, instances=2, batching=DynamicBatching((8,), 15_000))
    run = play([model], at(0.0, 0.018), OPTIONS, 1, costs=costs)
    assert run.answered_s.tolist() == pytest.approx([0.035, 0.053])


def test_timers_are_late_unless_something_else_wakes_the_loop() -> None:
    """A delay of 15 ms, and a loop that oversleeps it by 2 ms: the request that comes 1 ms after its end sends the
    first on its way, and is in time for its batch."""

    class Oversleeping(HostCosts):
        def timer_late(self) -> float:
            return 0.002

        def wake(self, events: int, rested_s: float) -> float:
            woken.append(events)
            return 0.0

    for arrivals_s, begun_s, events in (((0.0,), [0.017], [1, 1, 1]), ((0.0, 0.016), [0.016], [1, 1, 1])):
        woken: list[int] = []
        model = planned(fixed_s=0.020, batching=DynamicBatching((8,), 15_000))
        run = play([model], at(*arrivals_s), OPTIONS, 1, costs=Oversleeping())
        assert run.batch_begun_s.tolist() == pytest.approx(begun_s)
        assert woken == events  # a timer that was seen before wakes nobody
