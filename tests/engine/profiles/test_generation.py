"""What steps take is fitted to what was measured of them, and kept with how far that is off."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from generating_profiles import steps_of
from hypothesis import given
from hypothesis import strategies as st
from some_profiles import some_profile

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.generation.blocks import BlockMemory
from trireme.engine.generation.iterations import IterationLimits, Iterations
from trireme.engine.generation.requests import Generation
from trireme.engine.profiles import TimeDistribution, read_profile
from trireme.engine.profiles.generation import RestedSteps, StepFit, StepLoad, StepPoint, fit_of, load_of


def test_the_load_of_steps() -> None:
    """A prompt in two pieces beside a text that goes on."""
    core = Iterations(BlockMemory(100, 4), IterationLimits(100, most_tokens=6, most_running=4), lambda _over: None)
    core.arrive(Generation(1, [1, 2, 3], 9))
    loads = []

    def compute() -> None:
        step = core.begin_step(0.0)
        assert step is not None
        loads.append(load_of(step))
        core.end_step({piece.generation: [7] for piece in step.pieces if piece.draws}, lambda _text: False)

    compute()
    core.arrive(Generation(2, [5] * 8, 9))
    for _ in range(3):
        compute()
    assert loads == [
        StepLoad(prompt=3, pairs=0 + 1 + 2, texts=0, context=0),
        StepLoad(prompt=5, pairs=0 + 1 + 2 + 3 + 4, texts=1, context=3),
        StepLoad(prompt=3, pairs=5 + 6 + 7, texts=1, context=4),
        StepLoad(prompt=0, pairs=0, texts=2, context=5 + 8),
    ]


coefficients = st.floats(0, 1e-2)


@given(st.floats(1e-3, 0.1), st.lists(coefficients, min_size=9, max_size=9), coefficients, st.floats(0, 1e-4))
def test_times_of_the_form_are_found_again(
    step_s: float, token_s: list[float], text_s: float, context_s: float
) -> None:
    fit = StepFit(step_s, tuple(1 << power for power in range(9)), tuple(token_s), text_s, context_s, 1e-6)
    loads = [StepLoad(0, 0, texts, texts * before) for texts in (1, 2, 4, 8, 16, 32) for before in (32, 1_000)]
    loads += [
        StepLoad(size, size * before, 0, 0) for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 500) for before in (0, 900)
    ]
    points = [StepPoint(load, TimeDistribution.constant(fit.seconds(load))) for load in loads]
    found = fit_of(points)
    for load in [*loads, StepLoad(100, 5_000, 7, 400), StepLoad(700, 0, 0, 0)]:
        assert found.seconds(load) == pytest.approx(fit.seconds(load), rel=0.02)
    assert min(found.step_s, *found.token_s, found.text_s, found.context_s, found.pair_s) >= 0


def test_nothing_fits_no_points() -> None:
    with pytest.raises(InvalidArgumentError, match="no step was measured"):
        fit_of([])


def test_what_is_off_is_told() -> None:
    generation = steps_of(0.01)
    assert generation.errors() == [pytest.approx(0.0)]
    assert generation.block_bytes(16) == 1_600


def test_a_file_gives_it_back() -> None:
    generation = steps_of(0.01, token_s=0.001)
    rested = (RestedSteps(0.01, (0.002, 0.001)), RestedSteps(0.1, (0.004, 0.001)))
    profile = some_profile(generation=replace(generation, rested=rested))
    assert read_profile(profile.to_json(), "it") == profile


def _of(part: str, name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda generation: (generation[part] if part else generation).update({name: value})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_of("", "points", []), "it.generation.points: expected a list that is not empty"),
        (_of("", "points", [{"load": [1], "time": {}}]), r"it.generation.points\[0\].load: expected 4 numbers, not 1"),
        (_of("", "cores", -1), "it.generation.cores: expected a number from 0 on, not -1"),
        (_of("", "extra", 1), "it.generation: expected an object with context, "),
        (_of("fit", "knots", [2, 1]), "it.generation.fit: expected knots that ascend"),
        (_of("fit", "step_s", "x"), "it.generation.fit.step_s: expected a number"),
        (_of("", "rested", 3), "it.generation.rested: expected a list"),
        (_of("", "rested", [{"rest_s": 1}]), r"it.generation.rested\[0\]: expected an object with rest_s, more_s"),
        (
            _of("", "rested", [{"rest_s": 1, "more_s": [1]}, {"rest_s": 1, "more_s": [1]}]),
            r"it.generation.rested\[1\]: expected a longer rest than before it, with as many steps",
        ),
        (_of("fit", "token_s", 3), "it.generation.fit.token_s: expected a list of numbers, not 3"),
    ],
)
def test_what_is_none_is_refused(change: Callable[[dict[str, Any]], object], text: str) -> None:
    document = json.loads(some_profile(generation=steps_of()).to_json())
    change(document["generation"])
    with pytest.raises(InvalidArgumentError, match=text):
        read_profile(json.dumps(document), "it")
