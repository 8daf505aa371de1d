"""Generating models in planned runs: the server's own scheduling of steps, with times that a test says."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from generating_profiles import text

from trireme.engine.backends.generation.asked import INPUTS, OUTPUTS
from trireme.engine.config.model import InstanceGroup, ModelConfig, ModelInput, ModelOutput
from trireme.engine.generation.iterations import IterationLimits, Step
from trireme.engine.logs.request_log import LoggedRequest
from trireme.engine.options import ServerOptions
from trireme.simulations.planning import HostCosts, PlannedModel, PlannedSteps, PlayedRun, merged_runs, play
from trireme.simulations.planning.generated_run import GeneratedRun

CONFIG = ModelConfig(
    name="letters",
    backend="generation",
    input=tuple(ModelInput(each, *about, optional=True) for each, about in INPUTS.items()),
    output=tuple(ModelOutput(each, *about) for each, about in OUTPUTS.items()),
    instance_group=(InstanceGroup("letters", "KIND_CPU", 1),),
    decoupled=True,
)


def tenth(_step: Step, _chance: Random) -> float:
    return 0.1


def model(instances: int = 1, **changes: object) -> PlannedModel:
    limits = IterationLimits(1_000, most_tokens=64, most_running=4, most_pending=100)
    steps = replace(PlannedSteps(tenth, limits, blocks=100, size=16), **changes)
    config = replace(CONFIG, instance_group=(InstanceGroup("letters", "KIND_CPU", instances),))
    return PlannedModel(config, steps=steps)


def played(
    requests: list[LoggedRequest], planned: PlannedModel | None = None, costs: HostCosts | None = None
) -> tuple[PlayedRun, GeneratedRun]:
    run = play([planned or model()], requests, ServerOptions(), 1, costs=costs)
    assert run.generated is not None
    return run, run.generated


def test_a_text_takes_a_step_for_each_token() -> None:
    run, texts = played([text(0.0, 10, 5)])
    assert run.latencies_s() == [pytest.approx(0.5)]
    assert texts.first_s - texts.received_s == [pytest.approx(0.1)]
    assert (texts.prompt.tolist(), texts.tokens.tolist()) == ([10], [5])
    assert np.repeat(texts.between_s, texts.between_count) == pytest.approx(0.1, rel=0.02)
    assert texts.step_tokens.tolist() == [10, 1, 1, 1, 1]
    assert texts.busy_s(0) == pytest.approx(0.5)


def test_a_long_prompt_goes_in_pieces_beside_the_tokens_of_others() -> None:
    _, texts = played([text(0.0, 10, 8), text(0.05, 150, 2)])
    assert texts.step_tokens.tolist()[:4] == [10, 64, 64, 1 + 150 - 2 * 63], "one of the 64 is the other text's"
    assert (texts.first_s - texts.received_s)[1] == pytest.approx(0.05 + 3 * 0.1)


def test_no_more_run_than_may() -> None:
    _, texts = played([text(0.0, 10, 1), *(text(0.05, 10, 3) for _ in range(6))])
    assert texts.step_texts.tolist() == [1, 4, 4, 4, 2, 2, 2]
    waits = [round(each, 3) for each in (texts.begun_s - texts.received_s).tolist()]
    assert sorted(waits) == [0, 0.05, 0.05, 0.05, 0.05, 0.35, 0.35]


def test_who_finds_no_memory_makes_room_and_waits() -> None:
    """Room for six blocks of four tokens, and three texts that want four each."""
    _, texts = played([text(0.0, 6, 10) for _ in range(3)], model(blocks=6, size=4))
    assert texts.preemptions.sum() > 0
    assert texts.paused_s.max() > 0.1
    assert texts.step_memory.max() == pytest.approx(1.0)
    assert texts.tokens.tolist() == [10, 10, 10]


def test_common_beginnings_are_computed_once() -> None:
    requests = [text(at, 40, 1, found_tokens=32) for at in (0.0, 1.0)]
    assert played(requests)[1].step_tokens.tolist() == [40, 8]
    assert played(requests, model(shares=False))[1].step_tokens.tolist() == [40, 40]


def test_choices_are_computed_beside_each_other() -> None:
    _, texts = played([text(0.0, 8, 3, choices=3, generated_tokens=9)])
    assert texts.step_texts.tolist() == [1, 3, 3]
    assert texts.tokens.tolist() == [9]


def test_instances_compute_side_by_side() -> None:
    run, texts = played([text(0.0, 8, 4) for _ in range(2)], model(instances=2))
    assert run.latencies_s() == pytest.approx(0.4)
    assert texts.step_instance.tolist().count(0) == texts.step_instance.tolist().count(1) == 4


class _Costs(HostCosts):
    def token(self, model: str, texts: int) -> float:
        return 0.01 * texts


def test_the_event_loop_holds_steps_up() -> None:
    """A token costs it 10 ms, by half of which each step but the first is longer."""
    requests = [text(0.0, 8, 3)]
    run, _ = played(requests, model(held_up=0.5), _Costs())
    assert run.latencies_s() == pytest.approx(0.1 + 2 * 0.105 + 0.01)
    assert run.loop_busy_s == pytest.approx(3 * 0.01)
    run, _ = played(requests, model(), _Costs())
    assert run.latencies_s() == pytest.approx(0.3 + 0.01), "the last token is written as well"


def test_steps_after_a_rest_take_longer() -> None:
    """The first after a second takes 0.2 s more, and the next one half of that; a short rest meanwhile adds nothing."""

    def rested(rest_s: float, number: int) -> float:
        return min(rest_s, 1.0) * (0.2, 0.1)[number] if number < 2 else 0.0

    requests = [text(0.0, 8, 4), text(3.0, 8, 1), text(3.31, 8, 2)]
    _, texts = played(requests, model(rested=rested))
    took = texts.step_ended_s - texts.step_begun_s
    assert took == pytest.approx([0.3, 0.2, 0.1, 0.1, 0.3, 0.2, 0.1])


def test_cores_are_shared_by_instances() -> None:
    class OneCore(HostCosts):
        cores = 1.0

    run, _ = played([text(0.0, 8, 2), text(0.0, 8, 2)], model(instances=2), OneCore())
    assert run.latencies_s() == pytest.approx(0.4)
    run, _ = played([text(0.0, 8, 2), text(0.0, 8, 2)], model(instances=2, on_device=True), OneCore())
    assert run.latencies_s() == pytest.approx(0.2)


def test_the_same_seed_gives_the_same_run() -> None:
    def drawn(_step: Step, chance: Random) -> float:
        return 0.01 + 0.01 * chance.random()

    requests = [text(0.03 * at, 5 + at % 40, 1 + at % 17) for at in range(60)]
    first, second = (played(requests, model(seconds=drawn))[0].answered_s for _ in range(2))
    assert first.tolist() == second.tolist()


def test_a_request_that_can_never_fit_is_refused() -> None:
    run = play([model(blocks=2)], [text(0.0, 50, 3), text(0.0, 5, 3)], ServerOptions(), 1)
    assert run.well().tolist() == [False, True]


def test_replicas_are_counted_as_one() -> None:
    runs = [play([model()], [text(at, 8, 2)], ServerOptions(), 1) for at in (0.5, 0.0)]
    whole = merged_runs(runs)
    assert whole.generated is not None
    assert whole.sent_s.tolist() == [0.0, 0.5]
    assert dict(zip(whole.generated.request.tolist(), whole.generated.received_s.tolist(), strict=True)) == {
        0: 0,
        1: 0.5,
    }
    assert sorted(set(whole.generated.step_instance.tolist())) == [0, 1]
