"""Makes the profile of a model by measuring it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from ..engine.config.json_text import config_json
from ..engine.config.model import ModelConfig
from ..engine.logs.request_recorder import GENERATION
from ..engine.profiles import HostPoint, ModelProfile, ProfileOrigin, Way, present_origin
from .host_costs import measure_host
from .interruptible import interruptible
from .models import ForeseenModels, completed_config, config_uses_gpus
from .progress import Progress
from .sample_inputs import SampleInputs, load_arrays
from .service_times import MeasuringPlan, measure_model


@dataclass(frozen=True, slots=True)
class Profiler:
    """Measures models of a repository.

    Args:
        inputs, shapes: see `SampleInputs`; `inputs` is a file of arrays.
        ways: whose cost to the server is measured.
    """

    models: ForeseenModels
    plan: MeasuringPlan
    inputs: Path | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    ways: Sequence[str] = ()

    def profile(self, name: str, progress: Progress) -> ModelProfile:
        """Measure one model. Takes a while.

        Raises:
            TriremeError: it cannot be loaded, or fails.
        """
        arrays = load_arrays(self.inputs) if self.inputs is not None else {}

        def make_inputs(config: ModelConfig) -> SampleInputs:
            return SampleInputs(config, self.shapes, arrays)

        options = self.models.options
        if generates(self.models, name):
            return self._profile_steps(name, progress)
        measure = partial(measure_model, name, options, self.plan, make_inputs, progress)
        measured = trio.run(interruptible, measure)
        host: list[HostPoint] = []
        if self.ways:
            progress(f"{name}: what requests cost the server", 0.99)
            nbytes = make_inputs(measured.config).nbytes(1)
            host = measure_host(measured, options, [Way(each) for each in self.ways], nbytes, self.plan.most_s)
        return ModelProfile(
            model=name,
            version=measured.version,
            executor=measured.executor,
            config=json.loads(config_json(measured.config)),
            service=tuple(measured.service),
            start=measured.start,
            notice=measured.notice,
            host=tuple(host),
            starting=measured.starting,
            origin=origin_now(self.models, name, measured.config),
        )

    def _profile_steps(self, name: str, progress: Progress) -> ModelProfile:
        from .step_times import measure_steps

        options = self.models.options
        measured, generation = trio.run(interruptible, partial(measure_steps, name, options, self.plan, progress))
        host: list[HostPoint] = []
        if self.ways:
            from .step_costs import measure_step_costs

            progress(f"{name}: what requests cost the server", 0.99)
            ways = [Way(each) for each in self.ways]
            host = measure_step_costs(measured, generation, options, ways, self.plan.most_s)
        return ModelProfile(
            model=name,
            version=measured.version,
            executor=measured.executor,
            config=json.loads(config_json(measured.config)),
            service=tuple(measured.service),
            start=measured.start,
            notice=measured.notice,
            host=tuple(host),
            starting=measured.starting,
            origin=origin_now(self.models, name, measured.config),
            generation=generation,
        )


def generates(models: ForeseenModels, name: str) -> bool:
    """Whether a model generates text. Encoders, of the same backend, answer once."""
    written = models.written_config(name)
    if written.backend != GENERATION:
        return False
    return completed_config(models, name, max(models.source(name).versions(written), default=1)).decoupled


def origin_now(models: ForeseenModels, name: str, config: ModelConfig) -> ProfileOrigin:
    """That of a profile which is made now. Reads all files of the model."""
    gpus = tuple(gpu.name for gpu in models.gpus.found) if config_uses_gpus(config) else ()
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return present_origin(models.directory(name), models.written_config(name), date, gpus)
