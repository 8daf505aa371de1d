"""The backend ``openvino``: how models are read, compiled and checked (docs/reference/backends.md#openvino)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...config.sequence import SequenceBatching, sequence_batching
from ...errors import InternalError, InvalidArgumentError, UnavailableError
from ...execution import ExecutionBatch, Phase
from ...scheduling.batch import BatchLayout
from ..interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from ..parameters import parse_int
from ..signature import check_model, complete, needs_completion
from .library import ERRORS, Settings, import_openvino, openvino_error, signature_of

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
            inside = {tensor.name: tensor.dims if tensor.reshape is None else tensor.reshape for tensor in config.input}
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
        pad: fill batches up to `fixed_batch`.
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
