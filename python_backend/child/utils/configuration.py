"""Looking things up in requests, responses and configurations (docs/reference/python-backend.md#module-members)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .request import InferenceRequest
from .response import InferenceResponse
from .tensor import Tensor


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    return _tensor(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    return _tensor(inference_response.output_tensors(), name)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    return _entry(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    return _entry(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether a model with this configuration may send any number of responses."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def _tensor(tensors: Iterable[Tensor], name: str) -> Tensor | None:
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    return None


def _entry(entries: Iterable[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((entry for entry in entries if entry["name"] == name), None)
