"""The backend ``onnxruntime``: what it says about a model, and how it makes its instances
(docs/reference/backends.md#onnx-runtime)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.model import ModelConfig
from ...datatypes import BF16, BYTES
from ...errors import InvalidArgumentError, UnsupportedError
from ...gpu.cupy_device import CupyDevices
from ...gpu.pipeline import Pipeline
from ...instances.orders import first_instance, input_gpu
from ..framework import FrameworkModel, GraphBackend, ModelTensors
from ..interface import InstanceSpec, ModelFiles, ModelInstance
from ..parameters import parse_bool, parse_int
from ..signature import Signature, check_model
from .instance import OnnxRuntimeGpuInstance, OnnxRuntimeInstance
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


class OnnxRuntimeBackend(GraphBackend):
    """Runs ONNX models.

    Options: ``default-max-batch-size`` (4); ``enable-global-threadpool`` (0), one pool of threads for the sessions of
    all models, sized by ``intra_op_thread_count`` and ``inter_op_thread_count`` (0: ONNX Runtime decides); the counts
    that models ask for are then ignored.
    """

    name = "onnxruntime"
    settling_runs = 1  # the search for the fastest convolutions

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._global_threads = parse_bool(options.get("enable-global-threadpool", "0"))
        self._thread_counts = [
            max(parse_int(options.get(key, "0")), 0) for key in ("intra_op_thread_count", "inter_op_thread_count")
        ]

    def signature(self, config: ModelConfig, files: ModelFiles) -> Signature:
        path = model_path(config, files, InstanceSpec(config.name))
        return signature_of(inspection_session(self.library, config, path, global_threads=self._global_threads))

    def uses_gpus(self) -> bool:
        load_cuda(self.library)
        return "CUDAExecutionProvider" in self.library.get_available_providers()

    def load(self, config: ModelConfig, files: ModelFiles) -> OnnxRuntimeModel:
        return OnnxRuntimeModel(self.library, config, files, self._global_threads, self.services.gpus)

    def import_library(self) -> Any:
        runtime = import_onnxruntime()
        if self._global_threads:
            try:
                runtime.set_global_thread_pool_sizes(*self._thread_counts)
            except error_types(runtime) as error:
                raise InvalidArgumentError(f"enable-global-threadpool: {reason(error)}") from None
        return runtime


class OnnxRuntimeModel(FrameworkModel[tuple[Any, Pipeline | None]]):
    """A model; its programs are sessions, each on a GPU with the streams that it was made for.

    Instances on a GPU enqueue their batches, unless tensors hold strings: these never leave the CPU, and ONNX Runtime
    binds none. Then it copies what is to be copied by itself, and batches are executed one at a time.
    """

    def __init__(
        self, runtime: Any, config: ModelConfig, files: ModelFiles, global_threads: bool, gpus: CupyDevices
    ) -> None:
        super().__init__(config, files, text=True)
        self._runtime = runtime
        self._global_threads = global_threads
        self._gpus = gpus
        signature = signature_of(self.first_program()[0])
        check_model(config, signature, self.tensors.sequences)
        _check_together(config, self.tensors)
        self.tensors.scalars = signature.scalars
        path = model_path(config, files, first_instance(config))
        self._thread_bound = bool(config.op_library_filenames) or depends_on_values(path)

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        return OnnxRuntimeInstance if spec.gpu is None or self.tensors.has_strings else OnnxRuntimeGpuInstance

    @property
    def input_gpu(self) -> int | None:
        return None if self.tensors.has_strings else input_gpu(self.config)

    def create_instance(self, spec: InstanceSpec) -> OnnxRuntimeInstance | OnnxRuntimeGpuInstance:
        session, pipeline = self.program(spec)
        if pipeline is not None:
            device = self._gpus.get(spec.device_id)
            return OnnxRuntimeGpuInstance(
                self._runtime, self.config, spec.name, self.tensors, session, pipeline, device
            )
        instance = OnnxRuntimeInstance(self._runtime, self.config, spec.name, self.tensors, session)
        instance.thread_bound = self._thread_bound or spec.gpu is not None
        return instance

    def make(self, spec: InstanceSpec) -> tuple[Any, Pipeline | None]:
        pipeline = None
        if spec.gpu is not None:
            load_cuda(self._runtime)
            if not self.tensors.has_strings:
                # An ONNX Runtime that cannot do it is the first thing to say.
                providers(self.config, spec, self._runtime)
                pipeline = Pipeline(self._gpus.get(spec.gpu))
        session = instance_session(
            self._runtime,
            self.config,
            model_path(self.config, self.files, spec),
            spec,
            global_threads=self._global_threads,
            stream=None if pipeline is None else pipeline.compute.handle,
        )
        return session, pipeline


def _check_together(config: ModelConfig, tensors: ModelTensors) -> None:
    """onnxruntime's Python interface has BF16 outputs only through I/O binding, which has no strings."""
    output = next((name for name, datatype in tensors.outputs.items() if datatype is BF16), None)
    text = next((name for name, datatype in tensors.inputs.items() if datatype is BYTES), None)
    if output is not None and text is not None:
        raise UnsupportedError(
            f"unable to load model '{config.name}': ONNX Runtime cannot take the TYPE_STRING input '{text}' and return "
            f"the TYPE_BF16 output '{output}' in one run; let the model cast one of them"
        )
