"""From the profile of a generating model to what is played: its limits and memory as the configuration says them, and
how long a step takes, drawn from what was measured."""

from __future__ import annotations

from bisect import bisect_right
from random import Random

import numpy as np

from ..engine.backends.generation.settings import GenerationSettings
from ..engine.config.model import ModelConfig
from ..engine.errors import InvalidArgumentError
from ..engine.generation.iterations import Step
from ..engine.profiles import ModelProfile, Way
from ..engine.profiles.durations import PLACES
from ..engine.profiles.generation import GenerationProfile, load_of
from ..simulations.planning import PlannedSteps


class ProfiledSteps:
    """What a step takes (`simulations.planning.steps.StepTime`): what is fitted, times a ratio that is drawn.

    Args:
        factor: on all of it; see `prediction`.
    """

    def __init__(self, generation: GenerationProfile, factor: float = 1.0) -> None:
        self._fit = generation.fit
        correction = generation.ratios.correction
        self._ratios = [factor * correction * each for each in generation.ratios.quantiles_s]

    def __call__(self, step: Step, chance: Random) -> float:
        place = chance.random()
        index = min(bisect_right(PLACES, place), len(PLACES) - 1)
        low, before, after = PLACES[index - 1], self._ratios[index - 1], self._ratios[index]
        ratio = before + (after - before) * (place - low) / (PLACES[index] - low)
        return self._fit.seconds(load_of(step)) * ratio


class RestedTimes:
    """What steps take more after a rest (`simulations.planning.steps.RestTime`): between two measured rests by how long
    it was, after the longest no more than that.

    Args:
        factor: on all of it; see `prediction`.
    """

    def __init__(self, generation: GenerationProfile, factor: float = 1.0) -> None:
        self._rests = [0.0, *(each.rest_s for each in generation.rested)]
        columns = zip(*(each.more_s for each in generation.rested), strict=True)
        self._more = [[0.0, *(factor * each for each in column)] for column in columns]

    def __call__(self, rest_s: float, number: int) -> float:
        if rest_s <= 0.0 or number >= len(self._more):
            return 0.0
        return float(np.interp(rest_s, self._rests, self._more[number]))


def memory_tokens(generation: GenerationProfile, config: ModelConfig) -> int:
    """Tokens whose keys and values each instance keeps.

    Raises:
        InvalidArgumentError: a parameter of the configuration is none of its values.
    """
    settings = GenerationSettings(config)
    in_bytes, context = settings.kv_bytes, generation.context
    blocks = settings.blocks_of_bytes(generation.token_bytes) if in_bytes else settings.blocks(context)
    return blocks * settings.block_tokens


def planned_steps(profile: ModelProfile, config: ModelConfig, factor: float, way: Way) -> PlannedSteps:
    """A generating model as `simulations.planning.play` takes it.

    Args:
        factor: see `ProfiledSteps`.
        config: to be tried.
        way: how requests come.

    Raises:
        InvalidArgumentError: a parameter of the configuration is none of its values.
    """
    generation = profile.generation
    if generation is None:
        raise InvalidArgumentError(f"the profile of '{profile.model}' has no steps of generated text")
    settings = GenerationSettings(config)
    costs = next((each for each in profile.host if each.way is way), next(iter(profile.host), None))
    return PlannedSteps(
        seconds=ProfiledSteps(generation, factor),
        rested=RestedTimes(generation, factor),
        limits=settings.limits(generation.context),
        blocks=memory_tokens(generation, config) // settings.block_tokens,
        size=settings.block_tokens,
        shares=settings.shares,
        cores=generation.cores,
        held_up=costs.held_up if costs is not None else 0.0,
        on_device=any(group.kind == "KIND_GPU" for group in config.instance_group),
    )
