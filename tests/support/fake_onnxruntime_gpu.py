"""A stand-in for onnxruntime-gpu: the real package computes, but as its CUDA provider would, late and on a stream.

What goes into a session that was made for a stream is computed when the stream comes to it, from what is in the
device's memory then; results appear there, in memory that is poison before, and after. Of I/O binding only what
`trireme.engine.backends.onnxruntime` uses is here; memory that is somewhere else than it was said to be, an input that
the graph takes elsewhere, a run that would wait for the device, and an unknown option are a `Misuse`.

Names, arguments and errors are those of ONNX Runtime 1.31's reference and sources.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
from fake_gpu import POISON, FakeGpus, Misuse, Operation
from onnx import TensorProto, helper

CUDA, TENSORRT, CPU = "CUDAExecutionProvider", "TensorrtExecutionProvider", "CPUExecutionProvider"
_OPTIONS = {
    CUDA: {"device_id", "user_compute_stream", "has_user_compute_stream", "gpu_mem_limit", "tunable_op_enable"},
    TENSORRT: {"device_id", "user_compute_stream", "trt_fp16_enable", "trt_engine_cache_enable"},
    CPU: set(),
}
_BFLOAT16 = TensorProto.BFLOAT16


class FakeOnnxRuntimeGpu:
    """What ``import onnxruntime`` may give where onnxruntime-gpu is installed.

    Attributes:
        host_tensors: names of inputs and outputs that graphs take and make on the CPU.
        unusable: providers whose libraries cannot be loaded: sessions go on without them.
        loaded: whether CUDA's libraries are; without them there is no provider on a GPU.
        fail_next: what the next run on a GPU raises, if anything.
        live: sessions that there are, by the handle of their stream.
    """

    def __init__(self, gpus: FakeGpus, host_tensors: Iterable[str] = ()) -> None:
        self.gpus = gpus
        self.host_tensors = frozenset(host_tensors)
        self.unusable: frozenset[str] = frozenset()
        self.loaded = False
        self.fail_next = ""
        self.live: dict[int, int] = {}
        self.providers: list[tuple[str, dict[str, str]]] = []
        for name in (
            *("SessionOptions", "RunOptions", "GraphOptimizationLevel", "ExecutionMode", "OrtValue", "capi"),
            *("set_default_logger_severity", "set_global_thread_pool_sizes"),
        ):
            setattr(self, name, getattr(onnxruntime, name))

    def preload_dlls(self) -> None:
        self.loaded = True

    def get_available_providers(self) -> list[str]:
        return [TENSORRT, CUDA, CPU] if self.loaded else [CPU]

    def InferenceSession(  # noqa: N802
        self, path: str, options: Any, *, providers: list[tuple[str, dict[str, str]]], enable_fallback: int
    ) -> Any:
        assert not enable_fallback
        self.providers = providers
        stream = self._stream(providers)
        session = onnxruntime.InferenceSession(path, options, providers=[CPU])
        used = [name for name, _ in providers if name not in self.unusable]
        if stream is None:
            return _PlainSession(session, used)
        return FakeSession(self, session, used, stream)

    def _stream(self, providers: list[tuple[str, dict[str, str]]]) -> int | None:
        handles = set()
        for name, options in providers:
            unknown = options.keys() - _OPTIONS[name]
            if unknown:
                raise Misuse(f"{name} has no options {sorted(unknown)}")
            if "user_compute_stream" in options:
                handle = int(options["user_compute_stream"])
                if self.gpus.stream(handle).device != int(options["device_id"]):
                    raise Misuse(f"{name} is to be on GPU {options['device_id']}, but its stream is not")
                handles.add(handle)
        if len(handles) > 1:
            raise Misuse("providers of one session on several streams")
        return next(iter(handles), None)


class _PlainSession:
    """A session that copies by itself: as on the CPU."""

    def __init__(self, session: Any, providers: list[str]) -> None:
        self._session = session
        self._providers = providers
        for name in ("get_inputs", "get_outputs", "get_overridable_initializers", "run"):
            setattr(self, name, getattr(session, name))

    def get_providers(self) -> list[str]:
        return self._providers


class FakeSession:
    """A session on a stream."""

    def __init__(self, runtime: FakeOnnxRuntimeGpu, session: Any, providers: list[str], stream: int) -> None:
        self.runtime = runtime
        self.real = session
        self.stream = stream
        self.device = runtime.gpus.stream(stream).device
        self._providers = providers
        self.get_inputs, self.get_outputs = session.get_inputs, session.get_outputs
        self.get_overridable_initializers = session.get_overridable_initializers
        runtime.live[stream] = runtime.live.get(stream, 0) + 1

    def __del__(self) -> None:
        self.runtime.live[self.stream] -= 1
        self.runtime.gpus.stream(self.stream)  # which must still be there

    def get_providers(self) -> list[str]:
        return self._providers

    def get_input_memory_infos(self) -> list[Any]:
        return [self._info(tensor.name) for tensor in self.get_inputs()]

    def get_output_memory_infos(self) -> list[Any]:
        return [self._info(tensor.name) for tensor in self.get_outputs()]

    def _info(self, name: str) -> Any:
        where = "Cpu" if name in self.runtime.host_tensors else "Cuda"
        return SimpleNamespace(name=where, device_mem_type="OrtDeviceMemoryType.DEFAULT")

    def io_binding(self) -> FakeBinding:
        return FakeBinding(self)

    def run_with_iobinding(self, iobinding: FakeBinding, run_options: Any) -> None:
        gpus = self.runtime.gpus
        if run_options.get_run_config_entry("disable_synchronize_execution_providers") != "1":
            raise Misuse("the run would wait for the device")
        failure, self.runtime.fail_next = self.runtime.fail_next, ""
        if failure:
            raise RuntimeError(failure)
        if gpus.sick is not None:
            raise RuntimeError(
                f"CUDA failure {gpus.sick}: an illegal memory access was encountered ; GPU={self.device}"
            )
        outputs = iobinding.make_outputs()
        read, write = iobinding.readers(), [output.write for output in outputs]

        def compute() -> None:
            for put, result in zip(write, self.compute([take() for take in read], iobinding.input_names), strict=True):
                put(result)

        gpus.enqueue(self.stream, Operation("session", compute))

    def compute(self, arrays: list[Any], names: Sequence[str]) -> list[np.ndarray]:
        """What the real session makes of these inputs, in the order of its outputs; BF16 as UINT16."""
        binding = self.real.io_binding()
        tensors = (*self.get_inputs(), *self.get_overridable_initializers())
        kinds = {tensor.name: tensor.type for tensor in tensors}
        for name, array in zip(names, arrays, strict=True):
            if kinds[name] == "tensor(bfloat16)":
                value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
            else:
                value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, value)
        for output in self.get_outputs():
            binding.bind_output(output.name)
        self.real.run_with_iobinding(binding)
        return [_bits(value) for value in binding.get_outputs()]


class FakeBinding:
    """``IOBinding``: remembers addresses, as the real one does, and keeps nothing alive but arrays on the CPU."""

    def __init__(self, session: FakeSession) -> None:
        self._session = session
        self._inputs: dict[str, Callable[[], Any]] = {}
        self._shapes: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self._outputs: dict[str, bool] = {}
        self._values: list[FakeValue] = []

    @property
    def input_names(self) -> list[str]:
        return list(self._inputs)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: list[int], buffer_ptr: int
    ) -> None:
        self._check(name, device_type, device_id)
        dtype = np.dtype(np.uint16 if isinstance(element_type, int) else element_type)
        _check_type(self._session, name, element_type)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        gpus, device = self._session.runtime.gpus, device_id
        gpus.memory(buffer_ptr, nbytes, device)
        self._inputs[name] = lambda: gpus.memory(buffer_ptr, nbytes, device).copy().view(dtype).reshape(shape)
        self._shapes[name] = tuple(shape), dtype

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Of a value on the CPU. An initializer may be wherever it is needed: it is copied there at once."""
        session = self._session
        initializers = [tensor.name for tensor in session.get_overridable_initializers()]
        if name not in initializers:
            self._check(name, "cpu", 0)
        _check_type(session, name, ortvalue.element_type())
        array = _bits(ortvalue)
        given = array.copy() if name in initializers else array
        self._inputs[name] = lambda: given
        self._shapes[name] = array.shape, array.dtype

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0) -> None:
        self._check(name, device_type, device_id)
        self._outputs[name] = device_type == "cuda"

    def get_outputs(self) -> list[FakeValue]:
        return self._values

    def _check(self, name: str, device_type: str, device_id: int) -> None:
        session = self._session
        where = "cpu" if name in session.runtime.host_tensors else "cuda"
        if device_type != where:
            raise Misuse(f"'{name}' is on {where}, and bound to {device_type}: a copy that would not wait for ours")
        if device_type == "cuda" and device_id != session.device:
            raise Misuse(f"the session is on GPU {session.device}, and '{name}' bound on GPU {device_id}")

    def readers(self) -> list[Callable[[], Any]]:
        return list(self._inputs.values())

    def make_outputs(self) -> list[FakeValue]:
        """Values for all outputs of the graph; those that are bound are what `get_outputs` gives."""
        zeros = [np.zeros(shape, dtype) for shape, dtype in self._shapes.values()]
        shaped = self._session.compute(zeros, self.input_names)
        names = [output.name for output in self._session.get_outputs()]
        made = {}
        for name, array, output in zip(names, shaped, self._session.get_outputs(), strict=True):
            on_device = self._outputs.get(name, name not in self._session.runtime.host_tensors)
            made[name] = FakeValue(self._session, array, _onnx_type(output.type), on_device)
        self._values = [made[name] for name in self._outputs]
        return list(made.values())


class FakeValue:
    """``OrtValue``: memory of ONNX Runtime's own, which it uses again when the value is gone."""

    def __init__(self, session: FakeSession, like: np.ndarray, element_type: int, on_device: bool) -> None:
        self._gpus = session.runtime.gpus
        self._shape = like.shape
        self._dtype = like.dtype
        self._element_type = element_type
        self._memory: np.ndarray | None = None
        if on_device:
            self._address = self._gpus.allocate(session.device, max(like.nbytes, 1))
            if self._address < 0:
                raise RuntimeError(f"Failed to allocate memory for requested buffer of size {like.nbytes}")
        else:
            self._memory = np.full(max(like.nbytes, 1), POISON, np.uint8)
            self._address = self._memory.ctypes.data
        self._nbytes = like.nbytes
        self._on_device = on_device

    def __del__(self) -> None:
        if getattr(self, "_on_device", False) and self._address >= 0:
            self._gpus.poison(self._address, self._nbytes)
            self._gpus.free(self._address)

    @property
    def write(self) -> Callable[[np.ndarray], None]:
        """Puts a result there, later; does not keep the value alive."""
        gpus, address, on_device, memory = self._gpus, self._address, self._on_device, self._memory

        def put(result: np.ndarray) -> None:
            data = np.frombuffer(np.ascontiguousarray(result).tobytes(), np.uint8)
            if on_device:
                gpus.memory(address, data.nbytes)[:] = data
            elif memory is not None:
                memory[: data.nbytes] = data

        return put

    def data_ptr(self) -> int:
        return self._address

    def device_name(self) -> str:
        return "cuda" if self._on_device else "cpu"

    def shape(self) -> list[int]:
        return list(self._shape)

    def element_type(self) -> int:
        return self._element_type

    def numpy(self) -> np.ndarray:
        if self._memory is None:
            raise Misuse("a value in the device's memory is read from the host")
        return self._memory[: self._nbytes].view(self._dtype).reshape(self._shape)


def _bits(value: Any) -> np.ndarray:
    if value.element_type() != _BFLOAT16:
        return value.numpy()
    count = int(np.prod(value.shape(), dtype=np.int64))
    return np.ctypeslib.as_array((ctypes.c_uint16 * count).from_address(value.data_ptr())).reshape(value.shape()).copy()


def _onnx_type(name: str) -> int:
    """``tensor(float)`` as the number that ONNX gives it."""
    spelled = {"float": "FLOAT", "double": "DOUBLE"}
    element = name.removeprefix("tensor(").removesuffix(")")
    return TensorProto.DataType.Value(spelled.get(element) or element.upper())


def _check_type(session: FakeSession, name: str, element_type: Any) -> None:
    tensors = (*session.get_inputs(), *session.get_overridable_initializers())
    (tensor,) = [tensor for tensor in tensors if tensor.name == name]
    number = element_type if isinstance(element_type, int) else helper.np_dtype_to_tensor_dtype(np.dtype(element_type))
    if number != _onnx_type(tensor.type):
        raise RuntimeError(f"Unexpected input data type. Actual: ({number}) , expected: ({tensor.type})")
