"""The backend ``openvino``: how models are read, compiled and checked (docs/reference/backends.md#openvino)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ..config.model import ModelConfig
from ..datatypes import BOOL, FP16, FP32, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64
from ..errors import InternalError, InvalidArgumentError
from ..plugins import import_package
from .framework import FrameworkModel, GraphBackend, ModelTensors, ThreadInstance, find_file
from .interface import InstanceSpec, ModelFiles
from .signature import GraphTensor, Signature, check_model

_DEFAULT_FILENAME = "model.xml"
_TIME_DEPENDS_ON_VALUES = frozenset({"Loop", "If", "TensorIterator", "While"})


class OpenVinoBackend(GraphBackend):
    """Runs what OpenVINO reads: its own format, ONNX, TensorFlow's SavedModel, TensorFlow Lite, PaddlePaddle.

    Options: ``default-max-batch-size`` (4).
    """

    name = "openvino"
    shares_threads = True

    def import_library(self) -> Any:
        return import_package("openvino", "the backend 'openvino' needs", "openvino").Core()

    def signature(self, config: ModelConfig, files: ModelFiles) -> Signature:
        return _signature_of(_read(self.library, config, files), config.max_batch_size)

    def load(self, config: ModelConfig, files: ModelFiles) -> OpenVinoModel:
        return OpenVinoModel(self.library, config, files)


class OpenVinoModel(FrameworkModel[Any]):
    """A model, compiled once; its instances are infer requests.

    A model whose batch dimension is open takes batches of any size. One that was made for a single size takes that, or
    is padded to it.
    """

    def __init__(self, core: Any, config: ModelConfig, files: ModelFiles) -> None:
        if any(group.kind != "KIND_CPU" for group in config.instance_group):
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', Triton OpenVINO backend supports only Kind CPU and AUTO"
            )
        super().__init__(config, files, share=math.inf)
        known = config.parameters
        self._properties = _properties(known)
        self._device = known.get("TARGET_DEVICE", "CPU").upper()
        self._pads = _yes(known, "ENABLE_BATCH_PADDING")
        self._core = core
        self._fixed_batch = 0
        self._thread_bound = True
        self.first_program()

    def make(self, spec: InstanceSpec) -> Any:
        """The ``CompiledModel``, with the shapes that the configuration asks for."""
        config = self.config
        batch = config.max_batch_size
        try:
            extension = config.parameters.get("CPU_EXTENSION_PATH")
            if extension:
                self._core.add_extension(extension)
            model = _read(self._core, config, self.files)
            if _yes(config.parameters, "RESHAPE_IO_LAYERS"):
                rows = [-1] if batch > 0 else []
                model.reshape({tensor.name: [*rows, *tensor.inner_dims] for tensor in config.input})
            signature = _signature_of(model, batch)
            check_model(config, signature, self.tensors.sequences)
            self.tensors.scalars = signature.scalars
            fixed = batch > 0 and any(port.get_partial_shape()[0].is_static for port in model.inputs)
            self._fixed_batch = batch if fixed else 0
            self._thread_bound = any(node.get_type_name() in _TIME_DEPENDS_ON_VALUES for node in model.get_ops())
            return self._core.compile_model(model, self._device, self._properties)
        except ERRORS as error:
            raise openvino_error(error) from error

    def create_instance(self, spec: InstanceSpec) -> OpenVinoInstance:
        instance = OpenVinoInstance(self.program(spec), spec.name, self.tensors, self._fixed_batch, self._pads)
        instance.thread_bound = self._thread_bound or self._device != "CPU"
        return instance


def _read(core: Any, config: ModelConfig, files: ModelFiles) -> Any:
    """The model of a version's file, or directory (SavedModel).

    Raises:
        UnavailableError: it is not there.
        InternalError: OpenVINO cannot read it.
    """
    spec = InstanceSpec(config.name)  # instances are on the CPU
    path = find_file(config, files, spec, _DEFAULT_FILENAME, directory=True)
    try:
        return core.read_model(str(path))
    except ERRORS as error:
        raise openvino_error(error) from error


# -- One infer request


class OpenVinoInstance(ThreadInstance):
    """An instance; `execute` and `close` on one thread at a time.

    Args:
        compiled: the ``CompiledModel``, which instances share.
        fixed_batch: rows that the model takes, no more and no fewer; 0 for any number.
    """

    def __init__(self, compiled: Any, name: str, tensors: ModelTensors, fixed_batch: int, pad: bool) -> None:
        super().__init__(name, tensors, partial(compiled.create_infer_request().infer, share_inputs=True), ERRORS)
        self._converts = self._fetches = True
        self._fixed_batch = fixed_batch
        self._pad = pad

    def _convert(self, inputs: dict[str, Any], rows: int, jobs: int) -> dict[str, Any]:
        if self._fixed_batch and rows != self._fixed_batch:
            inputs = self._padded(inputs, rows)
        return super()._convert({name: np.ascontiguousarray(array) for name, array in inputs.items()}, rows, jobs)

    def _failure(self, error: Exception) -> InternalError:
        return openvino_error(error)

    def _padded(self, arrays: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """Fill up with rows of zeros, whose results are dropped."""
        if not self._pad:
            raise InternalError(
                f"expected requests with batch size '{self._fixed_batch}', got '{rows}'... this error can be avoided "
                "by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
            )
        missing = self._fixed_batch - rows
        return {
            name: np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
            for name, array in arrays.items()
        }

    def _fetch(self, outputs: Any) -> list[np.ndarray]:
        arrays = [outputs[name] for name in self._tensors.outputs]
        return [
            array.reshape(1) if array.ndim == 0 else array for array in arrays
        ]  # a scalar is [1] for configurations


# -- What openvino raises, and what a model says about itself


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


def openvino_error(error: Exception) -> InternalError:
    """What OpenVINO says, without the positions in its source that come with it."""
    text = _SOURCE_POSITION.sub("", str(error)).strip()
    return InternalError(f"openvino error: {' '.join(text.split())}")


def _signature_of(model: Any, batch: int) -> Signature:
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
_COUNTS = (
    ("INFERENCE_NUM_THREADS", (), "a non-negative number"),
    ("COMPILATION_NUM_THREADS", (), "a non-negative number"),
    ("NUM_STREAMS", ("auto", "numa"), "either AUTO/NUMA/<int_value>"),
)
"""Parameters that are numbers: what else they may say, and what is expected."""


def _properties(known: Mapping[str, str]) -> dict[str, str]:
    """What OpenVINO compiles a model with. Raises `InvalidArgumentError`: a value is none of those that its parameter
    may have."""
    properties: dict[str, str] = {}
    hint = known.get("PERFORMANCE_HINT", "").lower()
    if hint and hint not in _HINTS:
        raise InvalidArgumentError(
            "expected the parameter 'PERFORMANCE_HINT' to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got " + hint
        )
    if hint:
        properties["PERFORMANCE_HINT"] = hint.upper()
    for key, words, expected in _COUNTS:
        if key not in known:
            continue
        value = known[key].lower()
        if not (value in words or (value.isascii() and value.isdecimal())):
            raise InvalidArgumentError(f"expected the parameter '{key}' to be {expected}, got {value}")
        properties[key] = value.upper()
    if "HINT_BF16" in known:
        if not _yes(known, "HINT_BF16"):
            raise InvalidArgumentError(
                f"expected the parameter 'HINT_BF16' to be YES, got {known['HINT_BF16'].lower()}"
            )
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    if _yes(known, "SKIP_OV_DYNAMIC_BATCHSIZE"):
        properties["ALLOW_AUTO_BATCHING"] = "NO"
    return properties


def _yes(known: Mapping[str, str], key: str) -> bool:
    return known.get(key, "").lower() == "yes"
