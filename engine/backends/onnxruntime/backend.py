"""The backend ``onnxruntime``: what it says about a model, and how its instances, on the CPU and on GPUs, use sessions
(docs/reference/backends.md#onnx-runtime)."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...config.model import Dims, ModelConfig
from ...datatypes import BF16, BYTES, FP16, FP32, FP64
from ...errors import (
    FailureReason,
    InternalError,
    InvalidArgumentError,
    TriremeError,
    UnavailableError,
    UnsupportedError,
)
from ...gpu.cupy_device import CupyDevice
from ...gpu.device import DeviceArray, DeviceStream, OutOfDeviceMemoryError
from ...gpu.pipeline import Compute, GpuPipeline
from ...instances.orders import first_instance, input_gpu
from ...scheduling.batch import encode_text
from ...scheduling.batch_regions import RegionBatch
from ..framework import DeviceBatch, FrameworkModel, GraphBackend, ModelTensors, PipelineInstance, ThreadInstance
from ..interface import InstanceSpec, ModelFiles, ModelInstance
from ..parameters import parse_bool, parse_int
from ..services import Services
from ..signature import Signature, check_model
from .operators import depends_on_values, follows_shapes
from .session import (
    error_types,
    import_onnxruntime,
    inspection_session,
    instance_session,
    load_cuda,
    model_path,
    providers,
    reason,
    run_options,
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
        self._global_threads = self.shares_threads = parse_bool(options.get("enable-global-threadpool", "0"))
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
        return OnnxRuntimeModel(self.library, config, files, self._global_threads, self.services)

    def import_library(self) -> Any:
        runtime = import_onnxruntime()
        if self._global_threads:
            try:
                runtime.set_global_thread_pool_sizes(*self._thread_counts)
            except error_types(runtime) as error:
                raise InvalidArgumentError(f"enable-global-threadpool: {reason(error)}") from None
        return runtime


class OnnxRuntimeModel(FrameworkModel[tuple[Any, GpuPipeline | None]]):
    """A model; its programs are sessions, each on a GPU with the streams that it was made for.

    Instances on a GPU enqueue their batches, unless tensors hold strings: these never leave the CPU, and ONNX Runtime
    binds none. Then it copies what is to be copied by itself, and batches are executed one at a time.
    """

    def __init__(
        self, runtime: Any, config: ModelConfig, files: ModelFiles, global_threads: bool, services: Services
    ) -> None:
        super().__init__(config, files, text=True)
        self._runtime = runtime
        self._global_threads = global_threads
        self._gpus = services.gpus
        self._waiting = services.waiting_threads
        signature = signature_of(self.first_program()[0])
        check_model(config, signature, self.tensors.sequences)
        _check_together(config, self.tensors)
        self.tensors.scalars = signature.scalars
        path = model_path(config, files, first_instance(config))
        self._thread_bound = bool(config.op_library_filenames) or depends_on_values(path)
        self._in_place = _only_floats(self.tensors) and follows_shapes(path)

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        return OnnxRuntimeInstance if spec.gpu is None or self.tensors.has_strings else OnnxRuntimeGpuInstance

    @property
    def input_gpu(self) -> int | None:
        return None if self.tensors.has_strings else input_gpu(self.config)

    def create_instance(self, spec: InstanceSpec) -> OnnxRuntimeInstance | OnnxRuntimeGpuInstance:
        session, pipeline = self.program(spec)
        if pipeline is not None:
            return OnnxRuntimeGpuInstance(self._runtime, self.config, spec.name, self.tensors, session, pipeline)
        instance = OnnxRuntimeInstance(self._runtime, self.config, spec.name, self.tensors, session)
        instance.thread_bound = self._thread_bound or spec.gpu is not None
        instance.in_place = self._in_place and spec.gpu is None
        return instance

    def make(self, spec: InstanceSpec) -> tuple[Any, GpuPipeline | None]:
        pipeline = None
        if spec.gpu is not None:
            load_cuda(self._runtime)
            if not self.tensors.has_strings:
                # An ONNX Runtime that cannot do it is the first thing to say.
                providers(self.config, spec, self._runtime)
                pipeline = GpuPipeline(self._gpus.get(spec.gpu))
        session = instance_session(
            self._runtime,
            self.config,
            model_path(self.config, self.files, spec),
            spec,
            global_threads=self._global_threads,
            waiting=self._waiting,
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


# -- Instances


_ONNX_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


class OnnxRuntimeInstance(ThreadInstance):
    """An instance that executes a batch on its thread.

    ``InferenceSession.run`` on numpy arrays is the fastest way for small tensors on the CPU (4 µs with one FP32[16]
    row, where I/O binding and ``run_with_ort_values`` need more than 35 µs); only BF16 goes the longer way, because
    numpy has no such type.

    Attributes:
        session: the ``onnxruntime.InferenceSession``; None once closed.
    """

    def __init__(self, runtime: Any, config: ModelConfig, name: str, tensors: ModelTensors, session: Any) -> None:
        names, options = list(tensors.outputs), run_options(runtime, config)
        if BF16 in tensors.outputs.values():
            run = partial(_run_bound, session, names, options)
        else:
            run = partial(session.run, names, run_options=options)
        super().__init__(name, tensors, run, error_types(runtime))
        self._runtime = runtime
        self.session: Any = session
        self._bf16_inputs = _bf16_inputs(tensors)
        self._converts |= bool(self._bf16_inputs)
        self._text_outputs = [at for at, kind in enumerate(tensors.outputs.values()) if kind is BYTES]
        self._fetches = bool(self._text_outputs)
        self._options = options
        self._fixed_dims = _fixed_dims(config)

    def _run_in_regions(self, inputs: dict[str, Any], regions: RegionBatch) -> Any:
        lent = regions.lend_places(self._output_shapes(regions.rows))
        if not lent:
            return self._run(inputs)
        binding = self.session.io_binding()
        for name, value in inputs.items():
            # As a value, because `bind_cpu_input` knows nothing of initializers that a configuration makes inputs.
            binding.bind_ortvalue_input(name, self._runtime.OrtValue.ortvalue_from_numpy(value))
        for name in self._tensors.outputs:
            if name in lent:
                array = lent[name].array
                binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            else:
                binding.bind_output(name)
        try:
            self.session.run_with_iobinding(binding, self._options)
        except self._errors:
            regions.take_back()
            outputs = self._run(inputs)
            self._fixed_dims = {}  # an output has not the shape that the configuration says
            return outputs
        outputs = zip(self._tensors.outputs, binding.get_outputs(), strict=True)
        return [lent[name].placed if name in lent else _to_array(value) for name, value in outputs]

    def _output_shapes(self, rows: int) -> dict[str, Dims]:
        """Of the outputs whose shapes are known before they are made."""
        first = (rows,) if self._tensors.batching else ()
        return {name: first + dims for name, dims in self._fixed_dims.items()}

    def close(self) -> None:
        super().close()
        self.session = None

    def _convert(self, inputs: dict[str, Any], rows: int, jobs: int) -> dict[str, Any]:
        inputs = super()._convert(inputs, rows, jobs)
        for name in self._bf16_inputs & inputs.keys():
            inputs[name] = _as_bf16(self._runtime, inputs[name])
        return inputs

    def _fetch(self, outputs: list[np.ndarray]) -> list[np.ndarray]:
        for at in self._text_outputs:
            outputs[at] = encode_text(outputs[at])
        return outputs

    def _failure(self, error: Exception) -> InternalError:
        return InternalError(reason(error))


def _only_floats(tensors: ModelTensors) -> bool:
    """Whether nothing that goes in or comes out is used as a position in other memory, or has to be converted."""
    return {*tensors.inputs.values(), *tensors.outputs.values()} <= {FP16, FP32, FP64}


def _fixed_dims(config: ModelConfig) -> dict[str, Dims]:
    """The dimensions of outputs, but for the batch, where the configuration leaves none open."""
    return {output.name: output.inner_dims for output in config.output if min(output.inner_dims, default=0) >= 0}


def _run_bound(session: Any, outputs: list[str], options: Any, inputs: dict[str, Any]) -> list[np.ndarray]:
    binding = session.io_binding()
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            binding.bind_cpu_input(name, value)
        else:
            binding.bind_ortvalue_input(name, value)
    for name in outputs:
        binding.bind_output(name)
    session.run_with_iobinding(binding, options)
    return [_to_array(value) for value in binding.get_outputs()]


def _to_array(value: Any) -> np.ndarray:
    """An ``OrtValue`` on the CPU as an array; BF16 as UINT16, a view that keeps the value alive."""
    if value.element_type() != _ONNX_BFLOAT16:
        return value.numpy()
    shape = value.shape()
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, BF16.storage)
    memory = (ctypes.c_uint16 * count).from_address(value.data_ptr())
    memory.owner = value  # pyright: ignore[reportAttributeAccessIssue]  what the array is a view of must outlive it
    return np.ctypeslib.as_array(memory).reshape(shape)


def _bf16_inputs(tensors: ModelTensors) -> frozenset[str]:
    """Names of the inputs whose elements come as UINT16."""
    return frozenset(name for name, datatype in tensors.inputs.items() if datatype is BF16)


def _as_bf16(runtime: Any, bits: np.ndarray) -> Any:
    """An ``OrtValue`` on the CPU over BF16 elements that come as UINT16."""
    whole = np.ascontiguousarray(bits).reshape(bits.shape)
    return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(whole, _ONNX_BFLOAT16)


# On a GPU: inputs and outputs are bound in the device's memory, and the session's kernels go into our stream.
#
# Rules:
#  1. The CUDA and TensorRT providers enqueue on the stream that they were given (``user_compute_stream``), and a run
#     does not wait for it (``disable_synchronize_execution_providers``). So a batch is launched when its run has
#     returned. A build of ONNX Runtime that waits all the same costs overlap, and nothing else.
#  2. An input is bound where the graph takes it, which the session says. What a node on the CPU takes is bound there: a
#     copy by ONNX Runtime would not wait for ours, which is on another stream. So are initializers that a configuration
#     makes inputs, of which the session does not say it: ONNX Runtime copies them at once.
#  3. An output is bound where the graph makes it, and ONNX Runtime allocates it, since only it knows the shape. One on
#     the CPU is looked at when the batch has landed: what makes it may be in the stream as well.
#  4. Two batches may be on their way: each has a binding, inputs and outputs of its own, and whatever else the session
#     holds is used in the order of the stream. A model with implicit state has one: its next requests need what this
#     batch leaves behind, so there would be nothing to overlap.
#
# Written after ONNX Runtime's reference and sources (1.31) and tested against a stand-in for its GPU build, which
# computes with the real one; no GPU has seen it yet.


_NOT_SYNCHRONIZED = "disable_synchronize_execution_providers"

# "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=..."
_CUDA_FAILURE = re.compile(r"\bCUDA failure (\d+)")
_OUT_OF_MEMORY = ("Failed to allocate memory", "smaller than requested bytes", "_ALLOC_FAILED", "out of memory")


class OnnxRuntimeGpuInstance(PipelineInstance):
    """An instance that enqueues its batches.

    Args:
        session: made for the compute stream of `pipeline`.

    Attributes:
        session: the ``onnxruntime.InferenceSession``; None once closed.

    Raises:
        UnavailableError: the installed ONNX Runtime is too old to say where inputs and outputs are.
    """

    def __init__(
        self,
        runtime: Any,
        config: ModelConfig,
        name: str,
        tensors: ModelTensors,
        session: Any,
        pipeline: GpuPipeline,
    ) -> None:
        super().__init__(name, tensors, pipeline)
        assert isinstance(pipeline.device, CupyDevice)
        self._device = pipeline.device
        self._runtime = runtime
        self._errors = error_types(runtime)
        self._run_options = run_options(runtime, config)
        self._run_options.add_run_config_entry(_NOT_SYNCHRONIZED, "1")
        self.session: Any = session
        self._bf16_inputs = _bf16_inputs(tensors)
        self._device_inputs, device_outputs = _places(session)
        self.shares_inputs = not tensors.scalars and len(self._device_inputs) == len(session.get_inputs())
        self._device_outputs = [name for name in tensors.outputs if name in device_outputs]

    def close(self) -> None:
        self.session = None

    def _prepare(self, run: DeviceBatch, inputs: dict[str, Any]) -> Compute:
        run.host_inputs = {name: inputs.pop(name) for name in list(inputs) if name not in self._device_inputs}
        run.outputs = self._device_outputs
        return partial(self._compute, run)

    def _finish(self, run: DeviceBatch, arrays: dict[str, Any]) -> None:
        arrays |= {name: _to_array(value) for name, value in run.host_outputs.items()}

    def _compute(self, run: DeviceBatch, stream: DeviceStream, arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """See `pipeline.Compute`. The stream is the one that the session was made for."""
        binding = self.session.io_binding()
        run.held.append(binding)
        try:
            self._bind(binding, run, arrays)
            with self._device.active():
                self.session.run_with_iobinding(binding, self._run_options)
        except self._errors as error:
            raise self._failure(reason(error)) from None
        results = []
        for name, value in zip(self._tensors.outputs, binding.get_outputs(), strict=True):
            if name in self._device_outputs:
                results.append(self._view(name, value))
            else:
                run.host_outputs[name] = value
        return results

    def _bind(self, binding: Any, run: DeviceBatch, arrays: Sequence[DeviceArray]) -> None:
        """Rules 2 and 3."""
        for name, array in zip(run.names, arrays, strict=True):
            kind = _ONNX_BFLOAT16 if name in self._bf16_inputs else array.dtype
            address = self._device.address(array)
            binding.bind_input(name, "cuda", self._device.index, kind, list(array.shape), address)
        for name, array in run.host_inputs.items():
            # As a value, because `bind_cpu_input` knows nothing of initializers that a configuration makes inputs.
            bf16 = name in self._bf16_inputs
            value = _as_bf16(self._runtime, array) if bf16 else self._runtime.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, value)
        for name in self._tensors.outputs:
            if name in self._device_outputs:
                binding.bind_output(name, "cuda", self._device.index)
            else:
                binding.bind_output(name)

    def _view(self, name: str, value: Any) -> DeviceArray:
        """An ``OrtValue`` on the device as an array; BF16 as UINT16."""
        if value.device_name() != "cuda":
            raise InternalError(
                f"output '{name}' of '{self._name}' is on '{value.device_name()}', though bound to cuda"
            )
        return self._device.view(value.data_ptr(), value.shape(), self._tensors.outputs[name].storage, value)

    def _failure(self, text: str) -> TriremeError:
        """The error that one of ONNX Runtime's is: the batch's, or the device's."""
        cuda = _CUDA_FAILURE.search(text)
        if cuda is not None:
            return self._device.failure(int(cuda[1]), text)
        if any(sign in text for sign in _OUT_OF_MEMORY):
            return OutOfDeviceMemoryError(f"GPU {self._device.index}: {text}")
        return InternalError(text, reason=FailureReason.BACKEND)


def _places(session: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the inputs that the graph takes, and of the outputs that it makes, in the GPU's memory."""
    try:
        inputs, outputs = session.get_input_memory_infos(), session.get_output_memory_infos()
    except AttributeError:
        raise UnavailableError(
            "instances on GPUs need ONNX Runtime 1.23 or later: pip install trireme-server[gpu]"
        ) from None
    return (
        frozenset(_on_device(session.get_inputs(), inputs)),
        frozenset(_on_device(session.get_outputs(), outputs)),
    )


def _on_device(arguments: Sequence[Any], infos: Sequence[Any]) -> Iterator[str]:
    for argument, info in zip(arguments, infos, strict=True):
        where = info.name.lower()
        # Pinned memory has had names and types of many kinds ("CudaPinned", host accessible); it is the CPU's.
        if "cpu" not in where and "pinned" not in where and "host" not in str(info.device_mem_type).lower():
            yield argument.name
