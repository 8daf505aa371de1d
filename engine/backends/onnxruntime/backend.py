"""The backend ``onnxruntime``: what it says about a model, and how it makes its instances (backends.md §2)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config.model import ModelConfig, ModelInput, ModelOutput
from ...config.sequence import SequenceBatching, sequence_batching
from ...errors import InvalidArgumentError
from ...scheduling.batch import BatchLayout
from ..interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles
from ..parameters import parse_bool, parse_int
from .checks import check_model
from .instance import OnnxRuntimeInstance
from .library import error_types, import_onnxruntime, reason
from .operators import depends_on_values
from .session import inspection_session, instance_session, model_path
from .signature import GraphTensor, Signature

_log = logging.getLogger(__name__)


class OnnxRuntimeBackend(Backend):
    """Runs ONNX models.

    Options: ``default-max-batch-size`` (4); ``enable-global-threadpool`` (0), one pool of threads for the sessions of
    all models, sized by ``intra_op_thread_count`` and ``inter_op_thread_count`` (0: ONNX Runtime decides); the counts
    that models ask for are then ignored.
    """

    name = "onnxruntime"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._default_max_batch_size = max(parse_int(options.get("default-max-batch-size", "4")), 0)
        self._global_threads = parse_bool(options.get("enable-global-threadpool", "0"))
        self._thread_counts = [
            max(parse_int(options.get(key, "0")), 0) for key in ("intra_op_thread_count", "inter_op_thread_count")
        ]
        self._lock = threading.Lock()
        self._runtime: Any = None

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """See model-config.md §7.

        Raises:
            TriremeError: the model cannot be read, or cannot batch although the configuration wants it to.
        """
        if (config.input or config.batch_input) and config.output:
            _log.info(
                "skipping model configuration auto-complete for '%s': inputs and outputs already specified", config.name
            )
            return None
        path = model_path(config, files)
        session = inspection_session(self._onnxruntime(), config, path, global_threads=self._global_threads)
        signature = Signature.of(session)
        max_batch_size = self._max_batch_size(config, signature)
        of_server = _server_tensors(config)
        inputs: tuple[ModelInput, ...] = ()
        outputs: tuple[ModelOutput, ...] = ()
        if not (config.input or config.batch_input):
            inputs = tuple(
                ModelInput(**_completed(tensor, "input", config.name, max_batch_size))
                for tensor in signature.inputs.values()
                if tensor.name not in of_server
            )
        if not config.output:
            outputs = tuple(
                ModelOutput(**_completed(tensor, "output", config.name, max_batch_size))
                for tensor in signature.outputs.values()
                if tensor.name not in of_server
            )
        return Completion(max_batch_size, inputs, outputs, dynamic_batching=max_batch_size > 1)

    def load(self, config: ModelConfig, files: ModelFiles) -> OnnxRuntimeModel:
        return OnnxRuntimeModel(self._onnxruntime(), config, model_path(config, files), self._global_threads)

    def _max_batch_size(self, config: ModelConfig, signature: Signature) -> int:
        tensors = (*signature.inputs.values(), *signature.outputs.values())
        if any(tensor.dims[:1] != (-1,) for tensor in tensors):
            if config.max_batch_size != 0:
                raise InvalidArgumentError(
                    f"autofill failed for model '{config.name}': model does not support batching while non-zero "
                    "max_batch_size is specified"
                )
            return 0
        if config.max_batch_size != 0:
            return config.max_batch_size
        _log.warning(
            "autofilled max_batch_size to %d for model '%s' since batching is supporrted but no max_batch_size is "
            "specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch "
            "size",
            self._default_max_batch_size,
            config.name,
        )
        return self._default_max_batch_size

    def _onnxruntime(self) -> Any:
        """The package, with the global pool of threads made if there is to be one."""
        with self._lock:
            if self._runtime is None:
                runtime = import_onnxruntime()
                if self._global_threads:
                    try:
                        runtime.set_global_thread_pool_sizes(*self._thread_counts)
                    except error_types(runtime) as error:
                        raise InvalidArgumentError(f"enable-global-threadpool: {reason(error)}") from None
                self._runtime = runtime
            return self._runtime


class OnnxRuntimeModel(LoadedModel):
    """A model whose configuration fits its file.

    To find that out takes a session, and making one can take long; so it is made for the first instance group, and the
    first instance that fits it takes it over.
    """

    def __init__(self, runtime: Any, config: ModelConfig, path: Path, global_threads: bool) -> None:
        self._runtime = runtime
        self._config = config
        self._path = path
        self._global_threads = global_threads
        self._layout = BatchLayout(config, text=True)
        groups = config.instance_group
        kind = groups[0].kind if groups else "KIND_CPU"
        device_id = groups[0].gpus[0] if groups and groups[0].gpus else 0
        session = self._session(InstanceSpec(f"{config.name}_0", kind, device_id))
        self._signature = Signature.of(session)
        self._sequences = sequence_batching(config) or SequenceBatching()
        check_model(config, self._signature, self._sequences)
        self._thread_bound = bool(config.op_library_filenames) or depends_on_values(path)
        self._lock = threading.Lock()
        self._spare: tuple[str, int, Any] | None = (kind, device_id, session)

    def create_instance(self, spec: InstanceSpec) -> OnnxRuntimeInstance:
        session = self._take_spare(spec) or self._session(spec)
        instance = OnnxRuntimeInstance(
            self._runtime, self._config, spec, session, self._signature, self._layout, self._sequences.states
        )
        instance.thread_bound = self._thread_bound or spec.kind == "KIND_GPU"
        return instance

    def close(self) -> None:
        self._spare = None

    def _session(self, spec: InstanceSpec) -> Any:
        return instance_session(self._runtime, self._config, self._path, spec, global_threads=self._global_threads)

    def _take_spare(self, spec: InstanceSpec) -> Any:
        with self._lock:
            if self._spare is None or self._spare[:2] != (spec.kind, spec.device_id):
                return None
            session = self._spare[2]
            self._spare = None
            return session


def _server_tensors(config: ModelConfig) -> frozenset[str]:
    """Names of tensors that are between the server and the model: clients neither send nor get them."""
    sequences = sequence_batching(config) or SequenceBatching()
    states = [name for state in sequences.states for name in (state.input_name, state.output_name)]
    return frozenset([*states, *(control.name for control in sequences.controls)])


def _completed(tensor: GraphTensor, role: str, model_name: str, max_batch_size: int) -> dict[str, Any]:
    """Fields of a `ModelInput` or `ModelOutput` for a tensor of the graph."""
    dims = tensor.dims[1:] if max_batch_size > 0 else tensor.dims
    fields: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype(role, model_name), "dims": dims or (1,)}
    if not dims and max_batch_size > 0:
        fields["reshape"] = ()
    return fields
