"""Makes the profile of a model by measuring it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from ..engine.config.json_text import config_json
from ..engine.config.model import ModelConfig
from ..engine.config.platforms import GENERATION
from ..engine.profiles import NEVER_LATE, ModelProfile, ProfileOrigin, Way, present_origin
from ..simulations.planning import most_cores
from .busy_server import settled
from .busy_texts import settled_texts
from .crowding import measure_crowding
from .host_costs import measure_host
from .interruptible import interruptible
from .models import ForeseenModel, ForeseenModels, completed_config, config_uses_gpus
from .planned_models import planned_model
from .progress import Progress
from .sample_inputs import SampleInputs, load_arrays
from .service_times import MeasuredModel, MeasuringPlan, measure_model
from .step_costs import measure_step_costs
from .step_times import measure_steps

_CROWDED_S = 5.0


@dataclass(frozen=True, slots=True)
class Profiler:
    """Measures models of a repository.

    Args:
        inputs, shapes: see `SampleInputs`; `inputs` is a file of arrays.
        ways: whose cost to the server is measured.
        front_ends: also with front ends in processes of their own; not of models that generate text.
    """

    models: ForeseenModels
    plan: MeasuringPlan
    inputs: Path | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    ways: Sequence[str] = ()
    front_ends: bool = False

    def profile(self, name: str, progress: Progress) -> ModelProfile:
        """Measure one model. Takes a while.

        Raises:
            TriremeError: it cannot be loaded, or fails.
        """
        if generates(self.models, name):
            return self._of_steps(name, progress)
        return self._of_batches(name, progress)

    def _of_batches(self, name: str, progress: Progress) -> ModelProfile:
        arrays = load_arrays(self.inputs) if self.inputs is not None else {}

        def make_inputs(config: ModelConfig) -> SampleInputs:
            return SampleInputs(config, self.shapes, arrays)

        options = self.models.options
        measured = trio.run(interruptible, partial(measure_model, name, options, self.plan, make_inputs, progress))
        profile = self._profile(name, measured)
        if not (ways := self._served(name, progress)):
            return profile
        nbytes = make_inputs(measured.config).nbytes(1)
        front_ends = (0, 1) if self.front_ends else (0,)
        found = measure_host(measured, options, ways, nbytes, self.plan.most_s, front_ends)
        crowded = NEVER_LATE
        if most_cores([planned_model(ForeseenModel(measured.config, profile))]):
            crowded = measure_crowding(measured.service[0].time.mean_s, min(_CROWDED_S, self.plan.most_s))
        found = [replace(each, points=[replace(point, crowded=crowded) for point in each.points]) for each in found]
        points = [point for each in found for point in settled(profile, measured.config, each, options)]
        return replace(profile, host=tuple(points))

    def _of_steps(self, name: str, progress: Progress) -> ModelProfile:
        options = self.models.options
        measured, generation = trio.run(interruptible, partial(measure_steps, name, options, self.plan, progress))
        profile = replace(self._profile(name, measured), generation=generation)
        if not (ways := self._served(name, progress)):
            return profile
        found = measure_step_costs(measured, generation, options, ways, self.plan.most_s)
        return settled_texts(profile, measured.config, found, options)

    def _profile(self, name: str, measured: MeasuredModel) -> ModelProfile:
        """Without what requests cost a server."""
        return ModelProfile(
            model=name,
            version=measured.version,
            executor=measured.executor,
            config=json.loads(config_json(measured.config)),
            service=tuple(measured.service),
            start=measured.start,
            notice=measured.notice,
            host=(),
            starting=measured.starting,
            origin=origin_now(self.models, name, measured.config),
        )

    def _served(self, name: str, progress: Progress) -> Sequence[Way]:
        if self.ways:
            progress(f"{name}: what requests cost the server", 0.99)
        return [Way(each) for each in self.ways]


def generates(models: ForeseenModels, name: str) -> bool:
    """Whether a model generates text, which only its files may say."""
    written = models.written_config(name)
    if written.backend != GENERATION:
        return False
    return completed_config(models, name, max(models.source(name).versions(written), default=1)).generates_text


def origin_now(models: ForeseenModels, name: str, config: ModelConfig) -> ProfileOrigin:
    """That of a profile which is made now. Reads all files of the model."""
    gpus = tuple(gpu.name for gpu in models.gpus.found) if config_uses_gpus(config) else ()
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return present_origin(models.directory(name), models.written_config(name), date, gpus)
