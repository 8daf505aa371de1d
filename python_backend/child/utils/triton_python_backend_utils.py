"""The module that user code imports as ``triton_python_backend_utils``, usually as ``pb_utils``: all of its names.

`install` puts it into ``sys.modules``; the code that runs a model also says which model that is (`context`).
"""

from __future__ import annotations

import sys

from .context import Logger, MemoryType, PreferredMemory, SharedMemory
from .control import (
    get_input_config_by_name,
    get_input_tensor_by_name,
    get_model_dir,
    get_output_config_by_name,
    get_output_tensor_by_name,
    is_model_ready,
    load_model,
    unload_model,
    using_decoupled_model_transaction_policy,
)
from .errors import TritonError, TritonModelException
from .metrics import MetricFamily
from .model_config import ModelConfig
from .request import RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL
from .request import RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from .request import InferenceRequest
from .response import InferenceResponse
from .sender import FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL
from .sender import InferenceResponseSender
from .tensor import Tensor
from .trace import InferenceTrace
from .types import (
    TRITON_STRING_TO_NUMPY,
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
