"""Steps of a generating model are measured in a server of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from counting_network import CONTEXT, CountingNetwork, write_model

from trireme.api.cli.main import main
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.generation.iterations import IterationLimits
from trireme.engine.options import ServerOptions
from trireme.engine.profiles.generation import StepLoad
from trireme.foresight.service_times import MeasuringPlan
from trireme.foresight.step_report import step_lines
from trireme.foresight.step_times import MeasuredStep, StepSink, loads_for, measure_steps, points_of, profile_of

PLAN = MeasuringPlan(error=0.9, most_s=0.05)


async def test_steps_of_all_kinds_are_measured(tmp_path: Path) -> None:
    write_model(tmp_path, max_running=4, max_tokens_per_step=16, block_tokens=4)
    said: list[str] = []
    measured, generation = await measure_steps(
        "letters",
        ServerOptions(model_repository=(tmp_path,)),
        PLAN,
        lambda what, _part: said.append(what),
        CountingNetwork,
    )
    assert measured.config.decoupled
    assert (generation.context, generation.token_bytes) == (CONTEXT, 6)
    loads = [point.load for point in generation.points]
    assert {1, 2, 4} <= {load.texts for load in loads if not load.prompt}
    assert any(load.prompt and not load.texts for load in loads)
    assert max(load.tokens for load in loads) <= 16
    assert [len(each.more_s) for each in generation.rested] == [3] * 5
    assert measured.service[0].time.mean_s > 0
    assert measured.starting.load_s > 0
    assert "letters: 4 texts after 24 tokens" in said
    text = "\n".join(step_lines(generation))
    assert "a token in memory takes 6 bytes" in text
    assert "after 300 ms without a step the first ones take " in text


async def test_instances_and_queues_do_not_matter(tmp_path: Path) -> None:
    write_model(tmp_path, max_running=2, max_tokens_per_step=8)
    config = tmp_path / "letters" / "config.pbtxt"
    config.write_text(
        config.read_text()
        + "instance_group { kind: KIND_CPU count: 2 }\n"
        + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"
    )
    options = ServerOptions(model_repository=(tmp_path,))
    _, generation = await measure_steps("letters", options, PLAN, lambda _what, _part: None, CountingNetwork)
    assert 2 in {point.load.texts for point in generation.points}


@pytest.mark.parametrize(("context", "room"), [(2_048, 32_768), (2_048, 200), (64, 64), (3, 1_000), (2, 2)])
def test_loads_find_room(context: int, room: int) -> None:
    limits = IterationLimits(context, most_tokens=128, most_running=24)
    for load in loads_for(limits, room):
        assert load.prompt + load.new <= context
        assert load.texts <= 24
        beside = load.beside + 8 if load.beside else 0
        assert load.texts * (load.prompt + load.new) + beside <= room
        assert load.beside + 8 <= context or not load.beside


def test_loads_cover_what_steps_may_have() -> None:
    loads = list(loads_for(IterationLimits(2_048, most_tokens=128, most_running=24), 32_768))
    assert {1, 2, 4, 8, 16, 24} == {load.texts for load in loads if not load.beside and load.new > 8}
    assert {1 << power for power in range(10)} == {load.prompt for load in loads if load.new == 8}
    assert [load.beside for load in loads if load.beside] == [64]


def step(took_s: float, *load: float) -> MeasuredStep:
    return MeasuredStep(StepLoad(*load), took_s)


def test_steps_that_are_alike_make_a_point() -> None:
    steps = [step(0.01, 0, 0, 1, 100 + at) for at in range(6)] + [step(0.02, 0, 0, 2, 200)] * 5
    steps += [step(0.05, 9, 36, 0, 0)]
    points = points_of(steps)
    assert [(point.load.texts, point.time.count) for point in points] == [(1, 6), (2, 5)]
    assert points[0].load.context == pytest.approx(102.5)
    assert len(points_of(steps[-1:])) == 1, "nothing better is known"


def test_the_spread_of_steps_is_kept() -> None:
    steps = [step(0.01 if at % 10 else 0.03, 0, 0, 1, 50) for at in range(100)]
    profile = profile_of(steps, StepSink(), 1.0)
    assert profile.fit.seconds(StepLoad(0, 0, 1, 50)) == pytest.approx(0.012, rel=0.01)
    assert profile.ratios.quantile(0.5) == pytest.approx(0.01 / 0.012, rel=0.01)
    assert profile.ratios.quantile(0.99) == pytest.approx(0.03 / 0.012, rel=0.01)


def test_a_model_without_two_steps_in_a_row_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no two steps of the model followed each other"):
        profile_of([], StepSink(), 1.0)


@pytest.mark.parametrize("flag", ["--from-log", "--from-traces", "--url"])
def test_what_does_not_tell_of_steps_makes_no_profile(
    tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path)
    assert main(["profile", "letters", "--repository", str(tmp_path), flag, "http://127.0.0.1:1"]) == 1
    assert "'letters' generates text" in capsys.readouterr().err
