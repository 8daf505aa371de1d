"""Generating models whose steps take what a test says: profiles of them, and repositories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from counting_network import write_model
from some_profiles import some_profile

from trireme.engine.config.json_text import config_json
from trireme.engine.logs.request_log import LoggedRequest
from trireme.engine.options import ServerOptions
from trireme.engine.profiles import HostPoint, ServicePoint, TimeDistribution
from trireme.engine.profiles.generation import GenerationProfile, StepFit, StepLoad, StepPoint
from trireme.foresight.models import ForeseenModels, completed_config

STEP_S = 0.01


def steps_of(step_s: float = STEP_S, *, token_s: float = 0.0, context: int = 1_000) -> GenerationProfile:
    """Steps that take `step_s`, and `token_s` more for each token but the first; no chance in them."""
    fit = StepFit(step_s, (1,), (token_s,), 0.0, 0.0, 0.0)
    point = StepPoint(StepLoad(0, 0, 1, 8), TimeDistribution.constant(step_s))
    return GenerationProfile(context, 100, (point,), fit, TimeDistribution.constant(1.0), 1.0)


def write_generating(
    repository: Path, generation: GenerationProfile, host: tuple[HostPoint, ...] = (), **parameters: Any
) -> ForeseenModels:
    """A model `letters` with its profile."""
    write_model(repository, **parameters)
    models = ForeseenModels(ServerOptions(model_repository=(repository,)))
    profile = some_profile(
        model="letters",
        config=json.loads(config_json(completed_config(models, "letters", 1))),
        service=(ServicePoint(1, 1, 1.0, generation.points[0].time),),
        host=host,
        generation=generation,
    )
    models.store.write(models.directory("letters"), profile)
    return models


def text(at_s: float, prompt: int, new: int, **about: Any) -> LoggedRequest:
    """A request for so many tokens after so many."""
    tokens = {"prompt_tokens": prompt, "max_tokens": new, "generated_tokens": new}
    return LoggedRequest(at_s, "letters", **{**tokens, **about})
