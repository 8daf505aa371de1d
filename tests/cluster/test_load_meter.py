"""What a replica tells of its load (`cluster.load_meter`), and what Ray's controller makes of it (`cluster.policy`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trireme.cluster.load_meter import LoadMeter, read_needed, read_readings, write_readings
from trireme.cluster.policy import QueueTimePolicy, policy_arguments
from trireme.engine.fleet.scaling import LoadReading, ScalingSettings


def record(name: str, count: int, queue_s: float, busy_s: float) -> dict[str, Any]:
    """As the statistics have it, of what is looked at."""
    third = {"count": 1, "ns": int(busy_s * 1e9 / 4)}
    phases = {
        "compute_input": third,
        "compute_infer": {"count": 1, "ns": int(busy_s * 1e9 / 2)},
        "compute_output": third,
    }
    return {
        "name": name,
        "inference_stats": {"queue": {"count": count, "ns": int(queue_s * 1e9)}},
        "batch_stats": [phases],
    }


def test_what_was_done_since_the_last_look() -> None:
    meter = LoadMeter()
    assert meter.read([record("m", 100, 1.0, 2.0)], {"m": 2}, 10.0) == {}
    readings = meter.read([record("m", 300, 1.5, 4.0), record("other", 1, 0, 0)], {"m": 2, "other": 1}, 14.0)
    assert readings == {"m": LoadReading(rate_hz=50.0, queue_s=0.0025, busy=0.5, instances=2)}


def test_versions_count_together_and_ensembles_not_at_all() -> None:
    meter = LoadMeter()
    meter.read([record("m", 0, 0, 0), record("m", 0, 0, 0), record("e", 0, 0, 0)], {"m": 1}, 0.0)
    readings = meter.read([record("m", 1, 0.5, 0), record("m", 3, 0.5, 0.5), record("e", 4, 0, 0)], {"m": 1}, 1.0)
    assert readings == {"m": LoadReading(4.0, 0.25, 0.5, 1)}


def test_a_model_that_was_loaded_again_begins_anew() -> None:
    meter = LoadMeter()
    meter.read([record("m", 1000, 9.0, 9.0)], {"m": 1}, 0.0)
    assert meter.read([record("m", 10, 0.1, 0.5)], {"m": 1}, 1.0) == {"m": LoadReading(10.0, 0.01, 0.5, 1)}


def test_readings_come_through_ray_as_they_were() -> None:
    one, other = LoadReading(50.0, 0.002, 0.5, 2), LoadReading(0.0, 0.0, 0.0, 1)
    told = {"r1": write_readings({"m|1": one, "n": other}), "r2": write_readings({"n": one})}
    numbers: dict[str, dict[Any, float]] = {}
    for replica, values in told.items():
        for key, value in values.items():
            numbers.setdefault(key, {})[replica] = value
    assert read_readings(numbers) == {"m|1": [one], "n": [other, one]}
    assert read_needed(numbers) == read_needed({}) == 0
    assert read_readings({"rate_hz|m": {"r1": 1.0}}) == {"m": []}, "one that is not complete is left out"


def test_the_policy_asks_for_more_when_requests_wait() -> None:
    settings = ScalingSettings(least=1, most=3, target_s=0.005, up_s=0.0, down_s=60.0, settle_s=0.0)
    policy = QueueTimePolicy(**policy_arguments(settings))
    slow = write_readings({"m": LoadReading(50.0, 0.009, 0.9, 1)})
    metrics = {key: {"r1": value} for key, value in slow.items()}
    assert policy(SimpleNamespace(aggregated_metrics=None, target_num_replicas=1)) == (1, {})
    assert policy(SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=1)) == (2, {})


def test_the_policy_asks_for_more_when_more_comes_than_was_planned_for() -> None:
    settings = ScalingSettings(least=1, most=3, up_s=0.0, settle_s=0.0, capacities={"m": 40.0})
    policy = QueueTimePolicy(**policy_arguments(settings))
    fast = write_readings({"m": LoadReading(50.0, 0.0, 0.5, 1)})
    metrics = {key: {"r1": value} for key, value in fast.items()}
    assert policy(SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=1)) == (2, {})


def test_the_policy_leaves_as_many_as_the_models_need_for_their_memory() -> None:
    settings = ScalingSettings(least=1, most=5, down_s=0.0, settle_s=0.0)
    policy = QueueTimePolicy(**policy_arguments(settings))
    idle = LoadReading(1.0, 0.0, 0.01, 1)
    told = {"r1": write_readings({"m": idle}, needed=3), "r2": write_readings({"m": idle}, needed=2)}
    metrics = {key: {replica: values[key] for replica, values in told.items()} for key in told["r1"]}
    counts = [4]
    for _ in range(4):
        wanted, _ = policy(SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=counts[-1]))
        counts.append(wanted)
    assert counts == [4, 3, 3, 3, 3]
    assert policy(SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=1)) == (3, {})
