"""The openvino package: imported when a model needs it, never before; and its errors in plain words."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...config.model import ModelConfig
from ...datatypes import BOOL, FP16, FP32, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64
from ...errors import InternalError, InvalidArgumentError, UnavailableError
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


# -- What a configuration's parameters say about how OpenVINO is to run (docs/reference/backends.md#openvino)


_HINTS = ("latency", "throughput", "cumulative_throughput")
_COUNTS = ("INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of one model.

    Attributes:
        device: what OpenVINO calls it.
        properties: for compiling the model.
        pad_batches: fill batches up to the size that the model was made for.
        reshape: give the model the shapes of the configuration.
        extension: a shared library of operators, or empty.
    """

    device: str = "CPU"
    properties: Mapping[str, str] = field(default_factory=dict)
    pad_batches: bool = False
    reshape: bool = False
    extension: str = ""

    @classmethod
    def of(cls, config: ModelConfig) -> Settings:
        """Read them.

        Raises:
            InvalidArgumentError: a value is none of those that its parameter may have.
        """
        known = config.parameters
        properties: dict[str, str] = {}
        hint = known.get("PERFORMANCE_HINT", "").lower()
        if hint and hint not in _HINTS:
            raise InvalidArgumentError(
                "expected the parameter 'PERFORMANCE_HINT' to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got " + hint
            )
        if hint:
            properties["PERFORMANCE_HINT"] = hint.upper()
        for key in _COUNTS:
            if key in known:
                properties[key] = _count(key, known[key].lower())
        if "NUM_STREAMS" in known:
            properties["NUM_STREAMS"] = _streams(known["NUM_STREAMS"].lower())
        if "HINT_BF16" in known:
            if known["HINT_BF16"].lower() != "yes":
                raise InvalidArgumentError(
                    f"expected the parameter 'HINT_BF16' to be YES, got {known['HINT_BF16'].lower()}"
                )
            properties["INFERENCE_PRECISION_HINT"] = "bf16"
        if _yes(known, "SKIP_OV_DYNAMIC_BATCHSIZE"):
            properties["ALLOW_AUTO_BATCHING"] = "NO"
        return cls(
            device=known.get("TARGET_DEVICE", "CPU").upper(),
            properties=properties,
            pad_batches=_yes(known, "ENABLE_BATCH_PADDING"),
            reshape=_yes(known, "RESHAPE_IO_LAYERS"),
            extension=known.get("CPU_EXTENSION_PATH", ""),
        )


def _yes(known: Mapping[str, str], key: str) -> bool:
    return known.get(key, "").lower() == "yes"


def _count(key: str, value: str) -> str:
    if not (value.isascii() and value.isdecimal()):
        raise InvalidArgumentError(f"expected the parameter '{key}' to be a non-negative number, got {value}")
    return value


def _streams(value: str) -> str:
    if value in ("auto", "numa"):
        return value.upper()
    if value.isascii() and value.isdecimal():
        return value
    raise InvalidArgumentError(f"expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got {value}")
