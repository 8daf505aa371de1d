"""The module that user code imports as ``triton_python_backend_utils``, usually as ``pb_utils``: all of its names.

`install` puts it into ``sys.modules``; the code that runs a model also says which model that is (`context`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .context import Logger, MemoryType, PreferredMemory, SharedMemory, ask, asking, current
from .errors import TritonError, TritonModelException, text
from .metrics import MetricFamily
from .model_config import ModelConfig
from .request import RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL
from .request import RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from .request import InferenceRequest, InferenceTrace
from .response import FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL
from .response import InferenceResponse, InferenceResponseSender
from .tensor import (
    TRITON_STRING_TO_NUMPY,
    Tensor,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

NAME = "triton_python_backend_utils"
COMPILED_NAME = "c_python_backend_utils"  # where Triton keeps its classes: some models import them from there

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU

shared_memory = SharedMemory()


def install() -> None:
    """Let ``import triton_python_backend_utils`` find this module under both its names, whatever else has them."""
    for name in (NAME, COMPILED_NAME):
        sys.modules[name] = sys.modules[__name__]


# Loading and unloading models, and where the own one is (docs/reference/python-backend.md#module-members).


def get_model_dir() -> str:
    """The directory of the model's version, in which ``model.py`` lies."""
    return current().version_directory


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Have the server load a model; it must let clients control its models.

    Args:
        config: JSON that takes the place of the model's configuration file.
        files: contents by "file:<path in the model's directory>".

    Raises:
        TritonModelException: it does not load.
    """
    model_name = text("load_model: model_name", model_name)
    config = text("load_model: config", config)
    if files is not None and not isinstance(files, Mapping):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    for path, content in (files or {}).items():
        if not isinstance(path, str) or not isinstance(content, bytes):
            raise TypeError(f"load_model: files must be bytes by str, found {type(content)} by {type(path)}")
    ask(asking("load_model"), "Failed to load model", "load_model", model_name, config, dict(files or {}))


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Have the server unload a model, and the models of an ensemble too if asked to.

    Raises:
        TritonModelException: the server refuses.
    """
    model_name = text("unload_model: model_name", model_name)
    ask(asking("unload_model"), "Failed to unload model", "unload_model", model_name, bool(unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether requests for the model, in that version or any, would be accepted.

    Raises:
        TritonModelException: the version is no number.
    """
    model_name = text("is_model_ready: model_name", model_name)
    model_version = text("is_model_ready: model_version", model_version)
    host = asking("is_model_ready")
    return bool(ask(host, "Failed to check model readiness", "is_model_ready", model_name, model_version))


# -- Looking things up in requests, responses and configurations (docs/reference/python-backend.md#module-members)


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
    return next((tensor for tensor in tensors if tensor._name == name), None)


def _entry(entries: Iterable[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((entry for entry in entries if entry["name"] == name), None)


__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "shared_memory",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]
