"""The backend ``openvino``: how models are read, compiled and checked (docs/reference/backends.md#openvino)."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...config.sequence import SequenceBatching, sequence_batching
from ...datatypes import BOOL, FP16, FP32, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64
from ...errors import InternalError, InvalidArgumentError, UnavailableError
from ...execution import ExecutionBatch, Phase
from ...plugins import import_package
from ...scheduling.batch import BatchLayout
from ..interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from ..parameters import parse_int
from ..signature import GraphTensor, Signature, check_model, complete, needs_completion

_DEFAULT_FILENAME = "model.xml"
_TIME_DEPENDS_ON_VALUES = frozenset({"Loop", "If", "TensorIterator", "While"})


class OpenVinoBackend(Backend):
    """Runs what OpenVINO reads: its own format, ONNX, TensorFlow's SavedModel, TensorFlow Lite, PaddlePaddle.

    Options: ``default-max-batch-size`` (4).
    """

    name = "openvino"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._default_max_batch_size = max(parse_int(options.get("default-max-batch-size", "4")), 0)
        self._lock = threading.Lock()
        self._core: Any = None

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """See docs/reference/model-configuration.md#completion-by-backends.

        Raises:
            TriremeError: the model cannot be read, or cannot batch although the configuration wants it to.
        """
        if not needs_completion(config):
            return None
        model = _read(self._openvino_core(), model_path(config, files))
        return complete(config, signature_of(model, config.max_batch_size), self._default_max_batch_size)

    def load(self, config: ModelConfig, files: ModelFiles) -> OpenVinoModel:
        return OpenVinoModel(self._openvino_core(), config, model_path(config, files))

    def _openvino_core(self) -> Any:
        with self._lock:
            if self._core is None:
                self._core = import_openvino().Core()
            return self._core


class OpenVinoModel(LoadedModel):
    """A compiled model whose configuration fits; its instances are infer requests.

    A model whose batch dimension is open takes batches of any size. One that was made for a single size takes that, or
    is padded to it.
    """

    def __init__(self, core: Any, config: ModelConfig, path: Path) -> None:
        self._config = config
        _check_kinds(config)
        self._settings = settings = Settings.of(config)
        self._layout = BatchLayout(config)
        model = _prepared(core, config, path, settings)
        batch = config.max_batch_size
        signature = signature_of(model, batch)
        check_model(config, signature, sequence_batching(config) or SequenceBatching())
        fixed = batch > 0 and any(port.get_partial_shape()[0].is_static for port in model.inputs)
        self._fixed_batch = batch if fixed else 0
        self._scalars = frozenset(name for name, tensor in signature.inputs.items() if tensor.is_scalar)
        self._thread_bound = any(node.get_type_name() in _TIME_DEPENDS_ON_VALUES for node in model.get_ops())
        try:
            self._compiled: Any = core.compile_model(model, settings.device, dict(settings.properties))
        except ERRORS as error:
            raise openvino_error(error) from error

    def create_instance(self, spec: InstanceSpec) -> OpenVinoInstance:
        instance = OpenVinoInstance(
            self._compiled,
            self._config,
            spec,
            self._layout,
            self._fixed_batch,
            self._settings.pad_batches,
            self._scalars,
        )
        instance.thread_bound = self._thread_bound or self._settings.device != "CPU"
        return instance

    def close(self) -> None:
        self._compiled = None


def model_path(config: ModelConfig, files: ModelFiles) -> Path:
    """The model file of a version, or its directory (SavedModel).

    Raises:
        UnavailableError: it is not there.
    """
    path = files.model_path(config, InstanceSpec(config.name), _DEFAULT_FILENAME)  # instances are on the CPU
    if not path.exists():
        raise UnavailableError(f"unable to find '{path}' for model instance '{config.name}'")
    return path


def _check_kinds(config: ModelConfig) -> None:
    if any(group.kind != "KIND_CPU" for group in config.instance_group):
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', Triton OpenVINO backend supports only Kind CPU and AUTO"
        )


def _read(core: Any, path: Path) -> Any:
    try:
        return core.read_model(str(path))
    except ERRORS as error:
        raise openvino_error(error) from error


def _prepared(core: Any, config: ModelConfig, path: Path, settings: Settings) -> Any:
    """The model with the shapes that the configuration asks for."""
    try:
        if settings.extension:
            core.add_extension(settings.extension)
        model = _read(core, path)
        if settings.reshape:
            rows = [-1] if config.max_batch_size > 0 else []
            inside = {tensor.name: tensor.inner_dims for tensor in config.input}
            model.reshape({name: [*rows, *dims] for name, dims in inside.items()})
    except ERRORS as error:
        raise openvino_error(error) from error
    return model


# -- One infer request: gather, run, scatter


class OpenVinoInstance(ModelInstance):
    """An instance; `execute` and `close` on one thread at a time.

    Args:
        compiled: the ``CompiledModel``, which instances share.
        fixed_batch: rows that the model takes, no more and no fewer; 0 for any number.
    """

    def __init__(
        self,
        compiled: Any,
        config: ModelConfig,
        spec: InstanceSpec,
        layout: BatchLayout,
        fixed_batch: int,
        pad: bool,
        scalars: frozenset[str],
    ) -> None:
        self._name = spec.name
        self._max_rows = max(config.max_batch_size, 1)
        self._layout = layout
        self._outputs = [output.name for output in config.output]
        self._fixed_batch = fixed_batch
        self._pad = pad
        self._scalars = scalars
        self._request: Any = compiled.create_infer_request()

    def execute(self, batch: ExecutionBatch) -> None:
        if batch.rows > self._max_rows:
            raise InternalError(f"batch size {batch.rows} for '{self._name}', max allowed is {self._max_rows}")
        jobs, arrays = self._layout.gather(batch.jobs)
        if not jobs:
            return
        if self._fixed_batch and batch.rows != self._fixed_batch:
            arrays = self._padded(arrays, batch.rows)
        inputs = {
            name: array.reshape(()) if name in self._scalars else np.ascontiguousarray(array)
            for name, array in arrays.items()
        }
        batch.mark(Phase.INFER_START)
        try:
            results = self._request.infer(inputs, share_inputs=True)
        except ERRORS as error:
            raise openvino_error(error) from None
        batch.mark(Phase.OUTPUT_START)
        self._layout.scatter(jobs, [_at_least_1d(results[name]) for name in self._outputs])

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

    def close(self) -> None:
        self._request = None


def _at_least_1d(array: np.ndarray) -> np.ndarray:
    """What graphs call a scalar, configurations call [1]."""
    return array.reshape(1) if array.ndim == 0 else array


# -- The openvino package: imported when a model needs it, never before; and its errors in plain words


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
    """The package; see `import_package`."""
    return import_package("openvino", "the backend 'openvino' needs", "openvino")


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
        pad_batches: fill batches up to the size that the model was made for.
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
