"""Makes the profile of a model from what real traffic has told, without asking it for anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..engine.backends.registry import PYTHON
from ..engine.config.json_text import config_json
from ..engine.config.model import ModelConfig
from ..engine.errors import InvalidArgumentError
from ..engine.profiles import ExecutorKind, ModelProfile, StartTimes, TimeDistribution
from ..engine.profiles.recorded import RecordedBatch, batches_of_log, batches_of_traces, service_points
from .log_files import read_log
from .models import ForeseenModels, completed_config, config_uses_gpus
from .profiling import origin_now

_PROVING = frozenset({"onnxruntime", "openvino"})
"""Backends whose short batches may be executed on the event loop."""


def recorded_profile(
    name: str, models: ForeseenModels, traces: Sequence[Path], logs: Sequence[Path] = ()
) -> ModelProfile:
    """The profile that trace files and request logs with results make. What requests cost the host they do not tell.

    Raises:
        TriremeError: a file cannot be read, no batch of the model is in them, or there is no such model.
    """
    batches: list[RecordedBatch] = []
    for path in traces:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"trace file '{path}' cannot be read: {error}") from error
        batches += batches_of_traces(text, f"trace file '{path}'")
    for path in logs:
        batches += batches_of_log(read_log(path))
    own = sorted((batch for batch in batches if batch.model == name), key=lambda batch: batch.begun_s)
    if not own:
        known = ", ".join(sorted({batch.model for batch in batches})) or "none"
        raise InvalidArgumentError(f"no batch of '{name}' was recorded; there are batches of: {known}")
    version = max(batch.version for batch in own)
    version = version or max(models.source(name).versions(models.written_config(name)), default=1)
    config = completed_config(models, name, version)
    kind = executor_kind(config)
    points = service_points(
        (batch for batch in own if batch.version in (0, version)), 0.0 if config_uses_gpus(config) else 1.0
    )
    return ModelProfile(
        model=name,
        version=version,
        executor=kind,
        config=json.loads(config_json(config)),
        service=points,
        start=TimeDistribution.constant(0.0),
        notice=TimeDistribution.constant(0.0),
        host=(),
        starting=StartTimes(),
        origin=origin_now(models, name, config),
        recorded=True,
    )


def executor_kind(config: ModelConfig) -> ExecutorKind:
    """Where a model of this configuration executes its batches, as far as it tells."""
    if config.backend == PYTHON:
        return ExecutorKind.PROCESS
    if config_uses_gpus(config):
        return ExecutorKind.DEVICE
    return ExecutorKind.PROVING if config.backend in _PROVING else ExecutorKind.THREAD
