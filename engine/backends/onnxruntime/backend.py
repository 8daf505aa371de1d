"""The backend ``onnxruntime``: what it says about a model, and how it makes its instances
(docs/reference/backends.md#onnx-runtime)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...config.model import ModelConfig
from ...config.sequence import SequenceBatching, sequence_batching
from ...datatypes import BF16, BYTES
from ...errors import InvalidArgumentError, UnsupportedError
from ...gpu.cupy_device import CupyDevice
from ...gpu.devices import CupyDevices
from ...gpu.pipeline import Pipeline
from ...instances.orders import first_instance, input_gpu
from ...scheduling.batch import BatchLayout
from ..interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from ..parameters import parse_bool, parse_int
from ..signature import check_model, complete, needs_completion
from .gpu_instance import OnnxRuntimeGpuInstance
from .instance import OnnxRuntimeInstance, text_tensors, wire
from .operators import depends_on_values
from .session import (
    error_types,
    import_onnxruntime,
    inspection_session,
    instance_session,
    load_cuda,
    model_path,
    providers,
    reason,
    signature_of,
)


class OnnxRuntimeBackend(Backend):
    """Runs ONNX models.

    Options: ``default-max-batch-size`` (4); ``enable-global-threadpool`` (0), one pool of threads for the sessions of
    all models, sized by ``intra_op_thread_count`` and ``inter_op_thread_count`` (0: ONNX Runtime decides); the counts
    that models ask for are then ignored.
    """

    name = "onnxruntime"
    settling_runs = 1  # the search for the fastest convolutions

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
        """See docs/reference/model-configuration.md#completion-by-backends.

        Raises:
            TriremeError: the model cannot be read, or cannot batch although the configuration wants it to.
        """
        if not needs_completion(config):
            return None
        path = model_path(config, files, InstanceSpec(config.name))
        session = inspection_session(self._onnxruntime(), config, path, global_threads=self._global_threads)
        return complete(config, signature_of(session), self._default_max_batch_size)

    def uses_gpus(self) -> bool:
        runtime = self._onnxruntime()
        load_cuda(runtime)
        return "CUDAExecutionProvider" in runtime.get_available_providers()

    def load(self, config: ModelConfig, files: ModelFiles) -> OnnxRuntimeModel:
        return OnnxRuntimeModel(self._onnxruntime(), config, files, self._global_threads, self.services.gpus)

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


@dataclass(frozen=True, slots=True)
class _Made:
    """A session; on a GPU, with the streams that it was made for."""

    session: Any
    pipeline: Pipeline | None = None
    device: CupyDevice | None = None


class OnnxRuntimeModel(LoadedModel):
    """A model whose configuration fits its file.

    To find that out takes a session, and making one can take long; so it is made for the first instance group, and the
    first instance that fits it takes it over.

    Instances on a GPU enqueue their batches, unless tensors hold strings: these never leave the CPU, and ONNX Runtime
    binds none. Then it copies what is to be copied by itself, and batches are executed one at a time.
    """

    def __init__(
        self, runtime: Any, config: ModelConfig, files: ModelFiles, global_threads: bool, gpus: CupyDevices
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._files = files
        self._global_threads = global_threads
        self._gpus = gpus
        self._sequences = sequence_batching(config) or SequenceBatching()
        self._text = text_tensors(config, self._sequences)
        self._layout = BatchLayout(config, text=True)
        first = first_instance(config)
        made = self._make(first)
        signature = signature_of(made.session)
        check_model(config, signature, self._sequences)
        _check_together(config, self._sequences)
        self._thread_bound = bool(config.op_library_filenames) or depends_on_values(model_path(config, files, first))
        self._lock = threading.Lock()
        self._spare: tuple[str, int, _Made] | None = (first.kind, first.device_id, made)
        self._wiring = wire(config, signature, self._sequences.states)

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        return OnnxRuntimeInstance if spec.gpu is None or self._text else OnnxRuntimeGpuInstance

    @property
    def input_gpu(self) -> int | None:
        return None if self._text else input_gpu(self._config)

    def create_instance(self, spec: InstanceSpec) -> OnnxRuntimeInstance | OnnxRuntimeGpuInstance:
        made = self._take_spare(spec) or self._make(spec)
        common = (self._runtime, self._config, spec, made.session)
        if made.pipeline is not None and made.device is not None:
            return OnnxRuntimeGpuInstance(*common, made.pipeline, made.device, self._wiring, self._layout)
        instance = OnnxRuntimeInstance(*common, self._wiring, self._layout)
        instance.thread_bound = self._thread_bound or spec.gpu is not None
        return instance

    def close(self) -> None:
        self._spare = None

    def _make(self, spec: InstanceSpec) -> _Made:
        if spec.gpu is not None:
            load_cuda(self._runtime)
        if spec.gpu is None or self._text:
            return _Made(self._session(spec))
        providers(self._config, spec, self._runtime)  # an ONNX Runtime that cannot do it is the first thing to say
        device = self._gpus.get(spec.gpu)
        pipeline = Pipeline(device)
        return _Made(self._session(spec, pipeline.compute.handle), pipeline, device)

    def _session(self, spec: InstanceSpec, stream: int | None = None) -> Any:
        path = model_path(self._config, self._files, spec)
        return instance_session(
            self._runtime, self._config, path, spec, global_threads=self._global_threads, stream=stream
        )

    def _take_spare(self, spec: InstanceSpec) -> _Made | None:
        with self._lock:
            if self._spare is None or self._spare[:2] != (spec.kind, spec.device_id):
                return None
            made = self._spare[2]
            self._spare = None
            return made


def _check_together(config: ModelConfig, sequences: SequenceBatching) -> None:
    """onnxruntime's Python interface has BF16 outputs only through I/O binding, which has no strings."""
    outputs = [(tensor.name, tensor.datatype) for tensor in config.output]
    outputs += [(state.output_name, state.datatype) for state in sequences.states]
    inputs = [(tensor.name, tensor.datatype) for tensor in (*config.input, *sequences.controls)]
    inputs += [(state.input_name, state.datatype) for state in sequences.states]
    output = next((name for name, datatype in outputs if datatype is BF16), None)
    text = next((name for name, datatype in inputs if datatype is BYTES), None)
    if output is not None and text is not None:
        raise UnsupportedError(
            f"unable to load model '{config.name}': ONNX Runtime cannot take the TYPE_STRING input '{text}' and return "
            f"the TYPE_BF16 output '{output}' in one run; let the model cast one of them"
        )
