"""What the server tells about itself, its models and its regions, whichever protocol asks: plain values, with members
in the order of docs/reference/http.md. The messages of gRPC have the same fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..engine.config.model import ModelInput, ModelOutput
from ..engine.description import ModelDescription
from ..engine.errors import UnavailableError
from ..engine.memory.regions import RegionKind
from ..engine.metrics.statistics import Duration

if TYPE_CHECKING:
    from ..actors import InferenceServer

_COMPUTE = ("compute_input", "compute_infer", "compute_output")
_INFERENCE = ("success", "fail", "queue", *_COMPUTE, "cache_hit", "cache_miss")
_RESPONSES = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
"""Durations of statistics, in order."""


def refuse_when_exiting(server: InferenceServer) -> None:
    """Health questions are refused once the server shuts down.

    Raises:
        UnavailableError: it does.
    """
    if server.exiting:
        raise UnavailableError("Server exiting")


def server_metadata(server: InferenceServer) -> dict[str, Any]:
    about = server.metadata()
    return {"name": about.name, "version": about.version, "extensions": list(about.extensions)}


def model_metadata(server: InferenceServer, name: str, version: int, *, one_version: bool) -> dict[str, Any]:
    """What a model takes and gives.

    Args:
        one_version: the client has named a version, and is not told of others.

    Raises:
        TriremeError: there is no such model, or it is not ready.
    """
    model = server.describe(name, version)
    versions = (model.version,) if one_version else model.versions
    return {
        "name": model.name,
        "versions": [str(version) for version in versions],
        "platform": model.config.platform_name,
        "inputs": [_tensor_metadata(model, tensor) for tensor in model.config.input],
        "outputs": [_tensor_metadata(model, tensor) for tensor in model.config.output],
    }


def _tensor_metadata(model: ModelDescription, tensor: ModelInput | ModelOutput) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype.name, "shape": list(model.client_shape(tensor))}


def model_statistics(server: InferenceServer, name: str, version: int) -> dict[str, Any]:
    """A record for each version (docs/reference/http.md#statistics); of all models, if none is named.

    Raises:
        TriremeError: there is no such model, or it is not ready.
    """
    return {
        "model_stats": [
            {
                "name": entry.name,
                "version": str(entry.version),
                "last_inference": entry.statistics.last_inference_ms,
                "inference_count": entry.statistics.inference_count,
                "execution_count": entry.statistics.execution_count,
                "inference_stats": _durations(entry.statistics, _INFERENCE),
                "response_stats": {
                    str(index): _durations(responses, _RESPONSES)
                    for index, responses in sorted(entry.statistics.responses.items())
                },
                "batch_stats": [
                    {"batch_size": rows, **_durations(batch, _COMPUTE)}
                    for rows, batch in sorted(entry.statistics.batches.items())
                ],
                "memory_usage": [asdict(usage) for usage in entry.memory_usage],
            }
            for entry in server.statistics(name, version)
        ]
    }


def _durations(counted: object, names: Sequence[str]) -> dict[str, dict[str, int]]:
    durations: dict[str, Duration] = {name: getattr(counted, name) for name in names}
    return {name: {"count": each.count, "ns": each.ns} for name, each in durations.items()}


def repository_index(server: InferenceServer, *, ready_only: bool) -> list[dict[str, str]]:
    """A row for each version; what is not known of it is left out."""
    rows: list[dict[str, str]] = []
    for entry in server.repository_index(ready_only):
        state = "" if entry.state is None else entry.state.value
        row = {"name": entry.name, "version": entry.version, "state": state, "reason": entry.reason}
        rows.append({key: value for key, value in row.items() if value or key == "name"})
    return rows


def region_status(server: InferenceServer, kind: RegionKind, name: str) -> list[dict[str, Any]]:
    """One region, or without a name all of a kind.

    Raises:
        NotFoundError: there is no such region.
    """
    shown = ("device_id",) if kind is RegionKind.CUDA else ("key", "offset")
    regions = server.shared_memory.status(kind, name)
    return [{each: getattr(region, each) for each in ("name", *shown, "byte_size")} for region in regions]
