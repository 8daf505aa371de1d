"""How long the steps of a generating model take on a server that has something to do.

Rules:
 1. A profile's steps are measured load after load, inside of the profiler. On a server texts come at any time, tokens
    are sent as they are drawn, and others use the caches in every pause. So texts that come at random times, at `SHARE`
    of the tokens that its steps can generate, are asked of a real server, and played in virtual time with the profile.
 2. All steps are scaled (`HostPoint.slowed`) until the middle one of the times between two tokens of a text is the
    same in both.
 3. What steps take more after rests is scaled until the middle one of the times to the first token is, too: that is
    what a step without a prompt and without a rest before it does not tell.
 4. The two are found by turns, as each changes the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from ..engine.backends.generation.settings import GenerationSettings
from ..engine.config.model import ModelConfig
from ..engine.logs.generators import PoissonArrivals, RequestKind, TokenLengths, generate
from ..engine.logs.request_log import LoggedRequest
from ..engine.options import ServerOptions
from ..engine.profiles import HostPoint, ModelProfile
from ..engine.profiles.generation import GenerationProfile, StepLoad
from ..simulations.planning import play
from .models import ForeseenModel
from .planned_models import ProfiledCosts, planned_model, served_factor
from .prediction import instance_count
from .real_runs import summary_of_log
from .summary import RunSummary, summarise

SHARE = 0.25

_PROMPT, _NEW, _SPREAD = 60, 30, 0.6
"""Tokens of prompts and texts: medians, and the spread of their logarithm; less where a text may have fewer."""
_LEAST_TEXTS, _MOST_TEXTS = 24, 400
_LEAST, _MOST = 0.5, 2.5
"""Of a scale."""
_TURNS, _HALVINGS = 3, 6


@dataclass(frozen=True, slots=True)
class MeasuredTexts:
    """One way in which requests for text come: what they cost, and a log of what was asked at random times."""

    point: HostPoint
    log: Sequence[LoggedRequest]


def random_texts(name: str, generation: GenerationProfile, config: ModelConfig, seconds: float) -> list[LoggedRequest]:
    """The load of rule 1.

    Args:
        seconds: that it takes, about.
    """
    limits = GenerationSettings(config).limits(generation.context)
    prompt, new = min(_PROMPT, max(1, limits.context // 4)), min(_NEW, max(2, limits.context // 4))
    texts, fit = limits.most_running, generation.fit
    text_s = new * fit.seconds(StepLoad(0, 0, texts, texts * (prompt + new / 2))) / texts
    text_s += fit.seconds(StepLoad(prompt, prompt * prompt / 2, 0, 0))
    rate_hz = SHARE / text_s
    seconds = min(max(seconds, _LEAST_TEXTS / rate_hz), _MOST_TEXTS / rate_hz)
    lengths = TokenLengths(prompt, new, _SPREAD, _SPREAD, context=limits.context)
    return list(generate(PoissonArrivals(rate_hz), [RequestKind(name, tokens=lengths)], seconds).requests)


def settled_texts(
    profile: ModelProfile, config: ModelConfig, found: Sequence[MeasuredTexts], options: ServerOptions
) -> ModelProfile:
    """The profile with its points of ways, and with steps as they are on a server that serves. Rests are scaled by the
    first way.

    Args:
        profile: whose steps are measured.
        config: of the model.
        options: of the server.
    """
    points: list[HostPoint] = []
    for each in found:
        profile = replace(profile, host=(each.point,))
        if each.log:
            profile = _settled(profile, config, each.log, options, rests=not points)
        points += profile.host
    return replace(profile, host=tuple(points))


def _settled(
    profile: ModelProfile, config: ModelConfig, log: Sequence[LoggedRequest], options: ServerOptions, *, rests: bool
) -> ModelProfile:
    """Of one way."""
    real = summary_of_log(log)
    scale_of_steps = scale_of_rests = 1.0

    def of_steps(by: float) -> float:
        return _played(scaled(profile, by, scale_of_rests), config, log, options).itl_p50_s

    def of_rests(by: float) -> float:
        return _played(scaled(profile, scale_of_steps, by), config, log, options).ttft_p50_s

    for _ in range(_TURNS):
        scale_of_steps = _scale(of_steps, real.itl_p50_s)
        if rests and profile.generation is not None and profile.generation.rested:
            scale_of_rests = _scale(of_rests, real.ttft_p50_s)
    return scaled(profile, scale_of_steps, scale_of_rests)


def scaled(profile: ModelProfile, steps: float, rests: float) -> ModelProfile:
    """A profile of one way, with other steps and rests."""
    generation = profile.generation
    assert generation is not None
    rested = tuple(replace(each, more_s=tuple(rests * more_s for more_s in each.more_s)) for each in generation.rested)
    points = tuple(replace(each, slowed=steps) for each in profile.host)
    return replace(profile, host=points, generation=replace(generation, rested=rested))


def _scale(value: Callable[[float], float], wanted: float) -> float:
    """By which `value`, which grows with it, is as wanted; 1 if nothing is wanted, as of texts of one token."""
    if not wanted > 0:
        return 1.0
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        if value(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


def _played(
    profile: ModelProfile, config: ModelConfig, log: Sequence[LoggedRequest], options: ServerOptions
) -> RunSummary:
    way = profile.host[0].way
    model = planned_model(ForeseenModel(config, profile), served_factor(profile, way), way=way)
    costs = ProfiledCosts({config.name: profile}, profile.origin.cores, way, Random(1))
    return summarise(play([model], log, options, 1, costs=costs), {config.name: instance_count(config)})
