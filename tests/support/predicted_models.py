"""Models for predictions in tests: a configuration and a profile, without files."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from some_profiles import some_profile

from trireme.engine.config.model import DynamicBatching, InstanceGroup, ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import FP32
from trireme.engine.logs.request_log import LoggedRequest
from trireme.engine.profiles import ServicePoint, TimeDistribution
from trireme.foresight.models import ForeseenModel


def exponential(mean_s: float) -> TimeDistribution:
    """Of exponential durations, as a measurement would find them."""
    samples = [-mean_s * math.log(1 - (index + 0.5) / 20_000) for index in range(20_000)]
    Random(1).shuffle(samples)
    return TimeDistribution.of(samples)


def foreseen_model(
    name: str = "m",
    *points: ServicePoint,
    instances: int = 1,
    max_batch_size: int = 8,
    batching: DynamicBatching | None = None,
    **profile: Any,
) -> ForeseenModel:
    """A model with one FP32[4] input and output."""
    config = ModelConfig(
        name=name,
        backend="any",
        max_batch_size=max_batch_size,
        input=(ModelInput("INPUT0", FP32, (4,)),),
        output=(ModelOutput("OUTPUT0", FP32, (4,)),),
        instance_group=(InstanceGroup(name, "KIND_CPU", instances),),
        dynamic_batching=batching,
    )
    return ForeseenModel(config, some_profile(model=name, service=points, **profile))


def poisson(rate_hz: float, count: int, seed: int = 1, model: str = "m", **fields: Any) -> list[LoggedRequest]:
    """So many arrivals, at random."""
    random, at_s, log = Random(seed), 0.0, []
    for _ in range(count):
        at_s += random.expovariate(rate_hz)
        log.append(LoggedRequest(at_s, model, **fields))
    return log
