"""What the server tells about itself and its models: health, metadata, configuration, statistics
(docs/reference/http.md, docs/reference/errors.md).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ....engine.config import config_json
from ....engine.config.model import ModelInput, ModelOutput
from ....engine.description import ModelDescription
from ....engine.errors import UnavailableError
from ....engine.metrics.statistics import ModelStatisticsEntry
from ..errors import error_body
from ..exchange import JSON, TEXT, Answer, Context, HttpRequest
from ..json import writer as json_writer

_COMPUTE = ("compute_input", "compute_infer", "compute_output")
_INFERENCE = ("success", "fail", "queue", *_COMPUTE, "cache_hit", "cache_miss")
"""Durations of statistics, in order."""


async def server_live(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/health/live``."""
    refuse_when_exiting(context)
    return Answer(200 if context.server.live() else 400, TEXT)


async def server_ready(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/health/ready``."""
    refuse_when_exiting(context)
    return Answer(200 if await context.server.check_ready() else 400, TEXT)


async def server_metadata(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2``."""
    about = context.server.metadata()
    body = {"name": about.name, "version": about.version, "extensions": list(about.extensions)}
    return Answer(200, JSON, json_writer.dumps(body))


def refuse_when_exiting(context: Context) -> None:
    """Health questions are refused once the server shuts down.

    Raises:
        UnavailableError: it does.
    """
    if context.server.exiting:
        raise UnavailableError("Server exiting")


# ---- models ----


async def model_ready(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/M[/versions/V]/ready``: why a model is not ready is not told."""
    version = request.match.model_version()
    refuse_when_exiting(context)
    if await context.server.check_model_ready(request.match.name, version):
        return Answer(200, TEXT)
    return Answer(400, TEXT, error_body("Model version not ready"))


async def model_metadata(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/M[/versions/V]``."""
    version = request.match.model_version()
    model = context.server.describe(request.match.name, version)
    config = model.config
    versions = (model.version,) if request.match.version_text else model.versions
    body = {
        "name": model.name,
        "versions": [str(version) for version in versions],
        "platform": config.platform_name,
        "inputs": [_tensor_metadata(model, tensor) for tensor in config.input],
        "outputs": [_tensor_metadata(model, tensor) for tensor in config.output],
    }
    return Answer(200, JSON, json_writer.dumps(body))


async def model_config(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/M[/versions/V]/config``."""
    version = request.match.model_version()
    return Answer(200, JSON, config_json(context.server.describe(request.match.name, version).config))


async def statistics(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/models/stats`` (no name in the path) and ``GET /v2/models/M[/versions/V]/stats``."""
    version = request.match.model_version()
    entries = context.server.statistics(request.match.name, version)
    body = {"model_stats": [_model_statistics(entry) for entry in entries]}
    return Answer(200, JSON, json_writer.dumps(body))


def _tensor_metadata(model: ModelDescription, tensor: ModelInput | ModelOutput) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype.name, "shape": list(model.client_shape(tensor))}


def _model_statistics(entry: ModelStatisticsEntry) -> dict[str, Any]:
    """One version's record, members in the order of docs/reference/http.md#statistics."""
    counted = entry.statistics
    return {
        "name": entry.name,
        "version": str(entry.version),
        "last_inference": counted.last_inference_ms,
        "inference_count": counted.inference_count,
        "execution_count": counted.execution_count,
        "inference_stats": {name: asdict(getattr(counted, name)) for name in _INFERENCE},
        "response_stats": {str(index): asdict(responses) for index, responses in sorted(counted.responses.items())},
        "batch_stats": [
            {"batch_size": rows, **{name: asdict(getattr(batch, name)) for name in _COMPUTE}}
            for rows, batch in sorted(counted.batches.items())
        ],
        "memory_usage": [asdict(usage) for usage in entry.memory_usage],
    }
