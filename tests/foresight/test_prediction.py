"""Predictions against what queueing theory knows, and against each other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from predicted_models import exponential, foreseen_model, poisson
from some_profiles import ORIGIN

from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.logs.request_log import LoggedRequest
from trireme.engine.options import ServerOptions
from trireme.engine.profiles import ExecutorKind, HostPoint, RestedLoop, ServicePoint, TimeDistribution, Way
from trireme.foresight.prediction import ForeseenHost, predict, replica_parts

OPTIONS, ROOMY = ServerOptions(), ForeseenHost(cores=64.0)
SERVICE_S = 0.010


def constant(rows: int = 1, seconds: float = SERVICE_S, cores: float = 1.0, side_by_side: int = 1) -> ServicePoint:
    return ServicePoint(rows, side_by_side, cores, TimeDistribution.constant(seconds))


def test_one_instance_with_constant_times_waits_as_m_d_1() -> None:
    """Pollaczek and Khinchine: the mean wait is half of that with exponential times."""
    load = 0.5
    prediction = predict([foreseen_model("m", constant())], poisson(load / SERVICE_S, 12_000), OPTIONS, ROOMY, plays=1)
    waiting_s = load * SERVICE_S / (2 * (1 - load))
    assert prediction.estimate("mean_s").value == pytest.approx(SERVICE_S + waiting_s, rel=0.05)
    assert prediction.overall[0].instances["m"] == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_several_instances_with_exponential_times_wait_as_m_m_c(servers: int) -> None:
    """Erlang's C formula."""
    load = 0.5
    point = ServicePoint(1, 1, 1.0, exponential(SERVICE_S))
    model = foreseen_model("m", point, instances=servers)
    log = poisson(servers * load / SERVICE_S, 12_000)
    offered = servers * load
    tail = offered**servers / math.factorial(servers) / (1 - load)
    waits = tail / (sum(offered**k / math.factorial(k) for k in range(servers)) + tail)
    wanted_s = SERVICE_S + waits * SERVICE_S / (servers * (1 - load))
    prediction = predict([model], log, OPTIONS, ROOMY, plays=1)
    assert prediction.estimate("mean_s").value == pytest.approx(wanted_s, rel=0.07)


def test_cores_are_shared() -> None:
    """Four instances on two cores do no more than two; if they only wait, four."""
    log = poisson(1_000.0, 2_000)
    host = ForeseenHost(cores=2.0)
    for cores, limit in ((1.0, 200.0), (0.0, 400.0)):
        model = foreseen_model("m", constant(cores=cores), instances=4)
        found = predict([model], log, OPTIONS, host, plays=1).estimate("throughput").value
        assert found == pytest.approx(limit, rel=0.03)


def test_clients_on_the_same_cores_take_their_part() -> None:
    log = poisson(1_000.0, 2_000)
    host = ForeseenHost(cores=2.0, client_cores=1.0)
    model = foreseen_model("m", constant(), instances=4)
    assert predict([model], log, OPTIONS, host, plays=1).estimate("throughput").value == pytest.approx(100, rel=0.03)


def test_what_instances_disturb_each_other_is_not_counted_twice() -> None:
    """Two side by side took 24 ms where cores alone explain 20: the rest, a factor of 1.2, is memory bandwidth, say."""
    points = constant(), constant(seconds=0.024, side_by_side=2)
    log = poisson(1_000.0, 2_000)
    for cores, throughput in ((1.0, 2 / 0.024), (2.0, 2 / 0.012)):
        model = foreseen_model("m", *points, instances=2, origin=replace(ORIGIN, cores=1))
        found = predict([model], log, OPTIONS, ForeseenHost(cores=cores), plays=1).estimate("throughput").value
        assert found == pytest.approx(throughput, rel=0.04)


def test_the_loop_is_a_resource() -> None:
    """Requests that cost it 1 ms each are answered at no more than 1,000 a second, however fast the model is."""
    host = HostPoint(Way.HTTP, 16, 0, 0.001, 0.0, TimeDistribution.constant(0.0005))
    model = foreseen_model("m", constant(seconds=0.0001), instances=8, host=(host,))
    prediction = predict([model], poisson(2_000.0, 3_000), OPTIONS, ROOMY, plays=1)
    assert prediction.estimate("throughput").value == pytest.approx(1_000, rel=0.02)
    assert prediction.overall[0].loop == pytest.approx(1.0, abs=0.02)
    alone = predict([model], poisson(1.0, 20), OPTIONS, ROOMY, plays=1).estimate("p50_s").value
    assert alone == pytest.approx(0.001 + 0.0001 + 0.0005, rel=0.01)


@pytest.mark.parametrize("kind", [ExecutorKind.PROVING, ExecutorKind.THREAD])
def test_a_request_alone_costs_what_was_measured(kind: ExecutorKind) -> None:
    """However the loop's work is split, and whether a batch ends on the loop or elsewhere."""
    host = HostPoint(Way.HTTP, 16, 0, 0.0001, 0.0002, TimeDistribution.constant(0.0005))
    model = foreseen_model("m", constant(seconds=0.0003), executor=kind, host=(host,))
    prediction = predict([model], poisson(5.0, 400), OPTIONS, ROOMY, plays=1)
    assert prediction.estimate("p50_s").value == pytest.approx(0.0003 + 0.0003 + 0.0005, rel=0.01)
    run = prediction.runs[0]
    executed_s = 0.0003 * 400 if kind is ExecutorKind.PROVING else 0.0
    assert run.loop_busy_s - executed_s == pytest.approx(0.0003 * 400, rel=0.1)


def test_a_loop_that_has_rested_costs_more() -> None:
    """By how long it has: nothing more where requests follow each other, and no more than after the longest rest that
    was measured."""
    rested = RestedLoop(0.0005, 0.0, 0.0), RestedLoop(0.01, 0.0004, 0.0002), RestedLoop(0.05, 0.0010, 0.0004)
    outside = TimeDistribution.constant(0.0005)
    host = HostPoint(Way.HTTP, 16, 0, 0.0001, 0.0002, outside, rested)
    model = foreseen_model("m", constant(seconds=0.0003), executor=ExecutorKind.PROVING, host=(host,))
    usual_s = 0.0003 + 0.0003 + 0.0005
    for apart_s, more_s, loop_s in ((0.0009, 0.0, 0.0), (0.0113, 0.0006, 0.0004), (5.0, 0.0014, 0.0010)):
        log = [LoggedRequest(at * apart_s, "m") for at in range(200)]
        prediction = predict([model], log, OPTIONS, ROOMY, plays=1)
        assert prediction.estimate("p50_s").value == pytest.approx(usual_s + more_s, rel=0.03)
        loop = (prediction.runs[0].loop_busy_s - 0.0003 * 200) / 200
        assert loop == pytest.approx(0.0003 + loop_s, rel=0.08)


def test_a_loop_that_slept_may_wake_up_late_and_then_hears_of_all_that_has_come() -> None:
    """One wake-up in ten takes 20 ms; nobody waits for a loop that is awake."""
    late = TimeDistribution.of([0.0] * 90 + [0.020] * 10)
    host = HostPoint(Way.HTTP, 16, 0, 0.0, 0.0, TimeDistribution.constant(0.0), late=late)
    model = foreseen_model("m", constant(seconds=0.0001), batching=DynamicBatching(), host=(host,))
    log = [LoggedRequest(at_s, "m") for each in range(500) for at_s in (each, each + 0.010)]
    prediction = predict([model], log, OPTIONS, ROOMY, plays=1)
    run = prediction.runs[0]
    first, second = run.latencies_s()[0::2], run.latencies_s()[1::2]
    held_up = first > 0.0101
    assert 0.05 < held_up.mean() < 0.15
    assert (run.batch[0::2] == run.batch[1::2]).tolist() == held_up.tolist()
    assert second[held_up] == pytest.approx(first[held_up] - 0.010)
    assert len(run.batch_rows) == 1000 - held_up.sum()


def test_larger_requests_cost_more() -> None:
    """By the byte, of the loop and outside of it; a log without sizes has those of the model's rows."""
    outside = TimeDistribution.constant(0.0005), TimeDistribution.constant(0.0012)
    small = HostPoint(Way.HTTP, 16, 0, 0.0001, 0.0002, outside[0])
    large = HostPoint(Way.HTTP, 16 * 8, 0, 0.0015, 0.0002, outside[1])
    other = HostPoint(Way.JSON, 16, 0, 1.0, 1.0, outside[0])
    model = foreseen_model("m", constant(seconds=0.0003), host=(other, large, small))
    for rows, nbytes, part in ((1, 0, 0.0), (8, 0, 1.0), (8, 16 * 8, 1.0), (4, 16 * 4, 3 / 7)):
        log = [LoggedRequest(at, "m", rows=rows, nbytes=nbytes) for at in range(50)]
        prediction = predict([model], log, OPTIONS, ROOMY, plays=1)
        loop_s = 0.0003 + part * 0.0014
        assert prediction.runs[0].loop_busy_s / 50 == pytest.approx(loop_s, rel=0.01)
        usual_s = loop_s + 0.0003 + 0.0005 + part * 0.0007
        assert prediction.estimate("p50_s").value == pytest.approx(usual_s, rel=0.01)


def test_batches_are_slower_on_a_server_that_serves() -> None:
    outside = TimeDistribution.constant(0.0)
    for way, factor in ((Way.HTTP, 1.2), (Way.GRPC, 1.1)):
        hosts = (
            HostPoint(Way.HTTP, 16, 0, 0.0, 0.0, outside, slowed=1.2),
            HostPoint(Way.GRPC, 16, 0, 0.0, 0.0, outside, slowed=1.1),
        )
        model = foreseen_model("m", constant(), host=hosts)
        prediction = predict([model], poisson(1.0, 20), OPTIONS, replace(ROOMY, way=way), plays=1)
        assert prediction.estimate("p50_s").value == pytest.approx(SERVICE_S * factor)


@pytest.mark.parametrize(("ways_s", "refused"), [(0.0, 0), (0.0015, 100)])
def test_an_adaptive_batcher_learns_what_its_batches_cost_the_host(ways_s: float, refused: int) -> None:
    """Of two requests that come together the second waits for the first: within 22 ms if each takes 10, and not if the
    way to the thread and back takes another 1.5 ms each. That holds up the first one only until it is learnt."""
    ways = TimeDistribution.constant(ways_s)
    model = foreseen_model("m", constant(), batching=DynamicBatching(), max_batch_size=1, start=ways, notice=ways)
    model = replace(model, config=replace(model.config, parameters={"LATENCY_OBJECTIVE_MS": "22"}))
    log = [LoggedRequest(at / 10, "m") for at in range(100) for _ in range(2)]
    prediction = predict([model], log, OPTIONS, ROOMY, plays=1)
    assert prediction.overall[0].refused.get("objective", 0) == pytest.approx(refused, abs=1)
    assert prediction.overall[0].answered == len(log) - sum(prediction.overall[0].refused.values())


def test_replicas_share_the_traffic() -> None:
    """Two machines do twice as much, each as one with its part of the requests would."""
    model, log = foreseen_model("m", constant(seconds=0.010)), poisson(400.0, 4_000)
    for replicas in (1, 2, 3):
        prediction = predict([model], log, OPTIONS, ROOMY, plays=1, replicas=replicas)
        assert prediction.estimate("throughput").value == pytest.approx(100.0 * replicas, rel=0.02)
        assert prediction.overall[0].instances["m"] == pytest.approx(1.0, rel=0.02)
        assert prediction.overall[0].requests == prediction.overall[0].answered == 4_000
    parts = replica_parts(log, 3)
    alone = [predict([model], part, OPTIONS, ROOMY, plays=1).runs[0].latencies_s() for part in parts]
    together = prediction.runs[0]
    assert sorted(together.latencies_s()) == pytest.approx(sorted(each for part in alone for each in part))
    assert list(together.sent_s) == sorted(together.sent_s)
    assert (together.dispatched_s >= together.sent_s).all()
    assert len(set(together.batch.tolist())) == 4_000


def test_a_sequence_stays_with_its_replica() -> None:
    def step(at: int, number: int, position: int) -> LoggedRequest:
        return LoggedRequest(at / 10, "m", sequence=number, start=position == 0, end=position == 2)

    log = [
        step(at, number, position) for at, (position, number) in enumerate((p, n) for p in range(3) for n in (7, 8, 9))
    ]
    parts = replica_parts([*log, LoggedRequest(5.0, "other")], 2)
    assert [[each.sequence for each in part] for part in parts] == [[7, 9, 7, 9, 7, 9], [8, 8, 8, 0]]
    assert replica_parts(log[:1], 5) == [log[:1]]


def test_refusals_of_replicas_keep_their_reasons() -> None:
    """However few of them a replica has seen."""
    policy = QueuePolicy(max_queue_size=1)
    model = foreseen_model("m", constant(seconds=1.0), batching=DynamicBatching(default_queue_policy=policy))
    log = [LoggedRequest(at_s, "m") for at_s in (0.0, 0.01, 0.02, 1.5, 0.03 + 2, 4.0)]
    prediction = predict([model], log, OPTIONS, ROOMY, plays=1, replicas=2)
    alone = [predict([model], part, OPTIONS, ROOMY, plays=1).overall[0] for part in replica_parts(log, 2)]
    assert prediction.overall[0].answered == sum(each.answered for each in alone)
    assert sum(prediction.overall[0].refused.values()) == sum(sum(each.refused.values()) for each in alone)


def test_what_is_executed_on_the_loop_holds_up_the_others() -> None:
    """In place, two models share the loop; on threads they do not."""
    log = sorted([*poisson(2_200.0, 4_000, 1, "a"), *poisson(2_200.0, 4_000, 2, "b")], key=lambda each: each.offset_s)
    for kind, least_s, most_s in ((ExecutorKind.PROVING, 0.01, 10.0), (ExecutorKind.THREAD, 0.0, 0.003)):
        models = [foreseen_model(name, constant(seconds=0.0003), executor=kind) for name in "ab"]
        found = predict(models, log, OPTIONS, ROOMY, plays=1).estimate("p50_s").value
        assert least_s < found < most_s


def test_batches_grow_with_the_load() -> None:
    """Service times between the measured sizes are interpolated."""
    points = constant(1, 0.010), constant(8, 0.024)
    model = foreseen_model("m", *points, batching=DynamicBatching((8,), 0))
    slow, fast = (
        predict([model], poisson(rate, 3_000), OPTIONS, ROOMY, plays=1).estimate("batch_rows").value
        for rate in (20.0, 300.0)
    )
    assert slow < 1.3
    assert fast > 4


def test_an_uncertain_profile_makes_an_uncertain_prediction() -> None:
    sure = TimeDistribution.constant(SERVICE_S)
    unsure = TimeDistribution(100, sure.mean_s, 0.1 * SERVICE_S, sure.quantiles_s)
    log = poisson(50.0, 500)
    spreads = []
    for time in (sure, unsure):
        model = foreseen_model("m", ServicePoint(1, 1, 1.0, time))
        found = predict([model], log, OPTIONS, ROOMY, plays=8).estimate("p50_s")
        assert found.low <= found.value <= found.high
        spreads.append(found.high / found.low)
    assert spreads[0] == pytest.approx(1.0)
    assert spreads[1] > 1.05


def test_requests_that_were_held_up_on_their_way_make_the_loops_work_little_less_certain() -> None:
    """1 ms of the loop, and 1 µs outside of it that is known to 2 µs: that is 0.2 %, and not 200."""
    outside = TimeDistribution(100, 1e-6, 2e-6, TimeDistribution.constant(1e-6).quantiles_s)
    host = HostPoint(Way.HTTP, 16, 0, 0.001, 0.0, outside)
    model = foreseen_model("m", constant(seconds=0.0001), host=(host,))
    found = predict([model], poisson(5.0, 100), OPTIONS, ROOMY, plays=8)
    busy_s = [run.loop_busy_s for run in found.runs]
    assert 1.0 < max(busy_s) / min(busy_s) < 1.02


def test_the_same_seed_predicts_the_same() -> None:
    model = foreseen_model("m", ServicePoint(1, 1, 1.0, exponential(SERVICE_S)))
    once, again, other = (
        predict([model], poisson(50.0, 300), OPTIONS, ROOMY, plays=2, seed=seed).estimate("p99_s") for seed in (1, 1, 2)
    )
    assert once == again
    assert once != other


def test_a_log_that_cannot_be_played_is_refused() -> None:
    model = foreseen_model("m", constant())
    with pytest.raises(InvalidArgumentError, match="asks for model 'other', which is not there"):
        predict([model], poisson(1.0, 1, model="other"), OPTIONS, ROOMY)
    with pytest.raises(InvalidArgumentError, match="no requests"):
        predict([model], [], OPTIONS, ROOMY)


@pytest.mark.parametrize("client_cores", [0.0, 0.01])
def test_crowded_cores_hold_up_requests_and_clients_on_the_same_machine(client_cores: float) -> None:
    """The second request comes, and the first answer goes, while the other one is computed."""
    host = HostPoint(Way.HTTP, 16, 0, 0.0, 0.0, TimeDistribution.constant(0.0), crowded=TimeDistribution.constant(0.02))
    point = ServicePoint(1, 1, 1.0, TimeDistribution.constant(0.1))
    model = foreseen_model("m", point, instances=2, max_batch_size=1, host=(host,))
    log = [LoggedRequest(0.0, "m"), LoggedRequest(0.05, "m")]
    run = predict([model], log, OPTIONS, ForeseenHost(2.0, client_cores), plays=1).runs[0]
    first_s = 0.12 if client_cores else 0.1
    assert list(run.latencies_s()) == pytest.approx([first_s, 0.12], abs=0.002)
