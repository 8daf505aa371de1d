"""The openvino package: imported when a model needs it, never before; and its errors in plain words."""

from __future__ import annotations

import importlib
import re
from typing import Any

from ...datatypes import BOOL, FP16, FP32, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64
from ...errors import InternalError, UnavailableError
from ..signature import GraphTensor, Signature

ERRORS = (RuntimeError, ValueError, TypeError, KeyError)
"""What its calls raise."""

_KNOWN = {
    "boolean": BOOL,
    "u8": UINT8,
    "u16": UINT16,
    "u32": UINT32,
    "u64": UINT64,
    "i8": INT8,
    "i16": INT16,
    "i32": INT32,
    "i64": INT64,
    "f16": FP16,
    "f32": FP32,
}

# "Exception from src/core/src/runtime/tensor.cpp:89:", "Check '...' failed at src/...:109:"
_SOURCE_POSITION = re.compile(r"Exception from \S+:\d+:\s*|Check '[^\n]*' failed at \S+:\d+:\s*")


def import_openvino() -> Any:
    """The package.

    Raises:
        UnavailableError: it is not installed, or broken.
    """
    try:
        return importlib.import_module("openvino")
    except (ImportError, OSError) as error:
        raise UnavailableError(
            f"the backend 'openvino' needs the package openvino: pip install trireme[openvino] ({error})"
        ) from error


def openvino_error(error: Exception) -> InternalError:
    """What OpenVINO says, without the positions in its source that come with it."""
    text = _SOURCE_POSITION.sub("", str(error)).strip()
    return InternalError(f"openvino error: {' '.join(text.split())}")


def signature_of(model: Any, batch: int) -> Signature:
    """The signature of a model or a compiled model.

    Args:
        batch: the batch size of models that have a fixed one, which then counts as any size; 0 for none.
    """
    return Signature(
        inputs={port.get_any_name(): _tensor(port, batch) for port in model.inputs},
        outputs={port.get_any_name(): _tensor(port, batch) for port in model.outputs},
    )


def _tensor(port: Any, batch: int) -> GraphTensor:
    shape = port.get_partial_shape()
    any_rank = shape.rank.is_dynamic
    dims = () if any_rank else tuple(-1 if dim.is_dynamic else dim.get_length() for dim in shape)
    if batch and dims[:1] == (batch,):
        dims = (-1, *dims[1:])
    element = port.get_element_type().get_type_name()
    return GraphTensor(port.get_any_name(), element.upper(), _KNOWN.get(element), dims, any_rank)
