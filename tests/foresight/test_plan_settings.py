"""Settings: what is tried, and that a configuration with a setting says just that."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from plan_repositories import BATCHING, write_plan_log, write_planned_model
from predicted_models import foreseen_model, poisson

from trireme.engine.profiles import HostPoint, ServicePoint, TimeDistribution, Way
from trireme.foresight.prediction import ForeseenHost
from trireme.foresight.search.config_edits import edited_config, read_config_text
from trireme.foresight.search.objective import Aim, read_objective
from trireme.foresight.search.players import PlanInputs, read_ground
from trireme.foresight.search.searching import PlanSearch
from trireme.foresight.search.settings import (
    RESOURCE,
    PlanSetting,
    planned_config,
    planned_options,
    present_setting,
    server_flags,
    set_message,
)
from trireme.foresight.search.space import PlanSpace, plan_space
from trireme.foresight.search.trials import TrialGround

OBJECTIVE = read_objective("p99<50ms", Aim.INSTANCES)
LEVELS = """dynamic_batching {
  priority_levels: 2
  default_priority_level: 2
  preferred_batch_size: [ 2 ]
  default_queue_policy { max_queue_size: 9 default_timeout_microseconds: 70000 }
}
"""
GROUPS = "instance_group { kind: KIND_CPU count: 2 }\n"
ORDERED = "dynamic_batching { preserve_ordering: true }\n"


def ground_of(folder: Path, names: tuple[str, ...] = ("m",), **model: str) -> TrialGround:
    for name in names:
        if not (folder / "models" / name).exists():
            write_planned_model(folder / "models", name, **model)  # pyright: ignore[reportArgumentType]
    log = sorted((each for name in names for each in poisson(50.0, 20, model=name)), key=lambda each: each.offset_s)
    path = write_plan_log(folder / "log.jsonl", log)
    return read_ground(PlanInputs((folder / "models",), None, path, ForeseenHost(2.0), OBJECTIVE))


def space_of(ground: TrialGround) -> PlanSpace:
    return plan_space(ground.models, OBJECTIVE, 2.0)


@pytest.mark.parametrize("more", [BATCHING, LEVELS, "", ORDERED])
def test_what_is_written_is_what_was_played(tmp_path: Path, more: str) -> None:
    """Every kind of setting, read again from the text that it makes; and the server that is played has the same."""
    ground = ground_of(tmp_path, more=more)
    model = ground.models[0]
    path = tmp_path / "models" / "m" / "config.pbtxt"
    text = path.read_text()
    for setting in space_of(ground).drawn(40, random.Random(1)):
        message = read_config_text(text)
        set_message(message, model.config, setting)
        path.write_text(edited_config(text, message))
        again = ground_of(tmp_path).models[0]
        assert present_setting({"m": again.config}) == setting
        played = planned_config(model.config, setting)
        assert played.dynamic_batching == again.config.dynamic_batching
        assert played.max_batch_size == again.config.max_batch_size
        assert played.parameters == again.config.parameters
        assert [group.count for group in played.instance_group] == [
            group.count for group in again.config.instance_group
        ]


def test_the_present_setting_changes_nothing(tmp_path: Path) -> None:
    ground = ground_of(tmp_path, more=LEVELS)
    config = ground.models[0].config
    present = present_setting({"m": config})
    assert planned_config(config, present) is config
    assert planned_options(ground.options, present) is ground.options
    assert server_flags(present, present) == []


def test_the_space_has_each_dimension_and_what_is_there_now(tmp_path: Path) -> None:
    space = space_of(ground_of(tmp_path, more=LEVELS))
    settings = [each.of("m") for each in space.all()]
    assert len(settings) == len(set(settings)) == len(space)
    assert settings[0] == space.present.of("m")
    assert {each.instances for each in settings} == {1, 2, 3, 4}
    assert {each.max_batch_size for each in settings} == {1, 2, 4}
    assert {0, 1000, 5000, 15000} <= {each.delay_us for each in settings}
    assert {each.adaptive_ms for each in settings} == {0.0, 20.0, 40.0}
    assert {(9, 9), (0, 0), (9, 8)} <= {each.queue_limits for each in settings}
    assert {each.batching for each in settings} == {True, False}
    assert not any(each.adaptive_ms and (each.delay_us or each.preferred) for each in settings)


def test_neighbours_differ_in_one_dimension(tmp_path: Path) -> None:
    space = space_of(ground_of(tmp_path))
    present = space.present.of("m")
    near = [each.of("m") for each in space.neighbours(space.present, random.Random(1))]
    assert near
    for each in near:
        changed = [
            each.instances != present.instances,
            each.max_batch_size != present.max_batch_size,
            each.queue_limits != present.queue_limits and each.batching,
            (each.batching, each.preferred, each.delay_us, each.adaptive_ms)
            != (present.batching, present.preferred, present.delay_us, present.adaptive_ms),
        ]
        assert sum(changed) == 1


def test_replicas_are_a_dimension(tmp_path: Path) -> None:
    ground = ground_of(tmp_path)
    one = space_of(ground)
    space = replace(one, replicas=(1, 2, 3))
    settings = list(space.all())
    assert len(settings) == len(set(settings)) == len(space) == 3 * len(one)
    assert {each.replicas for each in space.drawn(60, random.Random(1))} == {1, 2, 3}
    near = [each for each in space.neighbours(space.present, random.Random(1)) if each.replicas > 1]
    assert [each.differences(space.present) for each in near] == [1, 1]
    assert replace(space.present, replicas=3).instances == 3 * space.present.instances


def test_front_ends_are_a_dimension_where_profiles_tell_of_them() -> None:
    """None, powers of two up to the cores, and as many as there are now."""
    outside = TimeDistribution.constant(0.0)
    hosts = [HostPoint(Way.HTTP, 16, front_ends, 0.001, 0.0, outside) for front_ends in (0, 1)]
    service = ServicePoint(1, 1, 1.0, outside)
    model, old = (foreseen_model("m", service, host=tuple(hosts[:count])) for count in (2, 1))
    for cores, now, wanted in ((2.0, 0, (0, 1, 2)), (1.5, 0, (0, 1)), (8.0, 3, (0, 1, 2, 3, 4, 8))):
        space = plan_space([model], OBJECTIVE, cores, front_ends=now)
        assert space.front_ends == wanted
        assert space.present.front_ends == now
        assert len(set(space.all())) == len(space)
        assert {each.front_ends for each in space.drawn(80, random.Random(1))} == set(wanted)
    near = [each for each in space.neighbours(space.present, random.Random(1)) if each.front_ends != 3]
    assert [each.differences(space.present) for each in near] == [1] * 5
    assert [str(each).rpartition("; ")[2] for each in sorted(near, key=str)][:2] != ["", ""]
    assert plan_space([old], OBJECTIVE, 8.0).front_ends == (0,)
    assert plan_space([model, old], OBJECTIVE, 8.0).front_ends == (0,)


def test_front_ends_are_a_flag_of_the_server_if_they_are_others_than_now() -> None:
    model = present_setting({"m": foreseen_model().config})
    one, two = (replace(model, front_ends=count) for count in (1, 2))
    assert server_flags(two, model) == ["--front-ends=2"]
    assert server_flags(model, two) == ["--front-ends=0"]
    assert server_flags(two, two) == []
    assert [str(each).rpartition("; ")[2] for each in (one, two)] == ["1 front end", "2 front ends"]
    assert str(model) in str(two)


def test_a_setting_is_played_with_its_front_ends(tmp_path: Path) -> None:
    outside = TimeDistribution.constant(0.0)
    alone = HostPoint(Way.HTTP, 16, 0, 0.001, 0.0, outside)
    apart = replace(alone, front_ends=1, request_s=0.0, front_request_s=0.003)
    write_planned_model(tmp_path / "models", host=(alone, apart))
    ground = ground_of(tmp_path)
    present = space_of(ground).present
    runs = [ground.predict(replace(present, front_ends=count), 20, 1).runs[0] for count in (0, 1, 3)]
    busy_s = [(round(run.loop_busy_s, 6), round(run.front_ends_busy_s, 6)) for run in runs]
    assert busy_s == [(0.020, 0.0), (0.0, 0.060), (0.0, 0.020)]


def test_front_ends_that_are_not_needed_go(tmp_path: Path) -> None:
    """A search finds as many as the traffic wants."""
    alone = HostPoint(Way.HTTP, 16, 0, 0.002, 0.0, TimeDistribution.constant(0.0))
    apart = replace(alone, front_ends=1, request_s=0.0001, front_request_s=0.004)
    write_planned_model(tmp_path / "models", cores=0.0, host=(alone, apart))
    present = space_of(ground_of(tmp_path)).present
    for rate_hz, now, wanted in ((50.0, 2, {0}), (560.0, 0, {4, 8})):
        ground = replace(ground_of(tmp_path), log=poisson(rate_hz, 300), host=ForeseenHost(16.0))
        space = PlanSpace(replace(present, front_ends=now), {"m": (present.of("m"),)}, front_ends=(0, 1, 2, 4, 8))
        search = PlanSearch(space, read_objective("p99<1s", Aim.THROUGHPUT), 300, count=5, plays=1, seed=1)
        while (asked := search.next()) is not None:
            search.told([ground.play(setting, asked.requests, asked.plays) for setting in asked.settings])
        assert search.final[0].setting.front_ends in wanted


def test_what_cannot_be_combined_is_not_tried(tmp_path: Path) -> None:
    """Answers in order leave no room for adaptive batching, two groups none for other counts."""
    space = space_of(ground_of(tmp_path, more=ORDERED + GROUPS))
    assert not any(each.of("m").adaptive_ms for each in space.all())
    assert {each.of("m").instances for each in space.all()} == {space.present.of("m").instances}


def test_executions_of_several_models_may_be_limited(tmp_path: Path) -> None:
    ground = ground_of(tmp_path, ("a", "b"))
    space = space_of(ground)
    assert space.executions == (0, 1, 2)
    assert space_of(ground_of(tmp_path / "one")).executions == (0,)
    limited = PlanSetting(space.present.models, 1)
    assert server_flags(limited, space.present) == [
        "--rate-limit=execution_count",
        f"--rate-limit-resource={RESOURCE}:1",
    ]
    busy = [ground.predict(setting, 40, 1).runs[0] for setting in (space.present, limited)]
    together = [(run.batch_begun_s[1:] < run.batch_heard_s[:-1]).any() for run in busy]
    assert together == [True, False]
