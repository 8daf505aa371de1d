"""A stand-in for TensorRT: the part of its Python interface that `trireme.engine.backends.tensorrt` uses, and no more.

It runs `fake_plans` on `fake_gpu.FakeGpus`: what is enqueued is computed when the stream comes to it, from what is in
memory then. Names, the order of arguments, and the effects of mistakes (None or False, and a line in the log) are as
the reference says (10.13 to 11.4). What a real engine would let pass, and be wrong, is a `Misuse`.
"""

from __future__ import annotations

import enum
import json
import math
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_gpu import FakeGpus, Misuse, Operation
from fake_plans import COMPUTE, FUNCTIONS, VERSION, Dims

DataType = enum.Enum("DataType", "FLOAT HALF BF16 INT8 UINT8 INT32 INT64 BOOL FP8 INT4")
TensorFormat = enum.Enum("TensorFormat", "LINEAR CHW4")
TensorIOMode = enum.Enum("TensorIOMode", "NONE INPUT OUTPUT")
TensorLocation = enum.Enum("TensorLocation", "DEVICE HOST")
ExecutionContextAllocationStrategy = enum.Enum("ExecutionContextAllocationStrategy", "STATIC ON_PROFILE_CHANGE")
Severity = enum.Enum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE")

_NUMPY = {
    DataType.FLOAT: "f4",
    DataType.HALF: "f2",
    DataType.BF16: "u2",
    DataType.INT8: "i1",
    DataType.UINT8: "u1",
    DataType.INT32: "i4",
    DataType.INT64: "i8",
    DataType.BOOL: "?",
}
_COST_NS = 5000


class FakeTensorRT(SimpleNamespace):
    """What ``import tensorrt`` may give.

    Args:
        current: the number of the calling thread's current device.
        plugins: that are registered.

    Attributes:
        contexts: all execution contexts that live.
        refuses_profiles: whether no profile can be set, for lack of memory, say.
        waits: whether another thread lets the device go on, while a call waits for it.
    """

    def __init__(self, gpus: FakeGpus, current: Callable[[], int], plugins: tuple[str, ...] = ()) -> None:
        self.gpus = gpus
        self.current = current
        self.plugins = plugins
        self.has_plugins = False
        self.logger: ILogger | None = None
        self.contexts: list[Context] = []
        self.reads: list[int] = []
        self.waits = False
        self.refuses_profiles = False
        super().__init__(
            __version__=VERSION,
            DataType=DataType,
            TensorFormat=TensorFormat,
            TensorIOMode=TensorIOMode,
            TensorLocation=TensorLocation,
            ExecutionContextAllocationStrategy=ExecutionContextAllocationStrategy,
            ILogger=ILogger,
            IOutputAllocator=IOutputAllocator,
            Runtime=lambda logger: Runtime(self, logger),
        )

    def init_libnvinfer_plugins(self, logger: Any, namespace: str) -> bool:
        assert isinstance(logger, ILogger)
        assert namespace == ""
        self.has_plugins = True
        return True

    def error(self, text: str) -> None:
        assert self.logger is not None
        self.logger.log(Severity.ERROR, text)


class _Base:
    """A class of C++ that is derived from: its own constructor must be called."""

    def __init__(self) -> None:
        self.constructed = True


class ILogger(_Base):
    Severity = Severity

    def log(self, severity: Severity, msg: str) -> None:
        raise AssertionError("pure virtual")


class IOutputAllocator(_Base):
    pass


class Runtime:
    def __init__(self, trt: FakeTensorRT, logger: ILogger) -> None:
        assert getattr(logger, "constructed", False), "ILogger.__init__ was not called"
        assert trt.logger in (None, logger), "another logger than before is not heard"
        trt.logger = logger
        self.engine_host_code_allowed = False
        self._trt = trt
        self._device = trt.current()

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        trt = self._trt
        assert isinstance(serialized_engine, bytes)
        assert trt.has_plugins, "TensorRT's own plugins are not registered"
        trt.reads.append(self._device)
        try:
            described = json.loads(serialized_engine)
        except ValueError:
            return self._refuse(
                "Error Code 1: Serialization (Serialization assertion header.magicTag == kMAGIC failed.)"
            )
        if described["version"] != VERSION:
            return self._refuse(
                "Error Code 6: API Usage Error (The engine plan file is not compatible with this version of TensorRT, "
                f"expecting library version {VERSION} got {described['version']}, please rebuild.)"
            )
        if described["compute"] != COMPUTE:
            return self._refuse(
                "Error Code 6: API Usage Error (The engine plan file is generated on an incompatible device, expecting "
                f"compute {COMPUTE} got compute {described['compute']}, please rebuild.)"
            )
        if described.get("plugin", "") not in ("", *trt.plugins):
            return self._refuse(
                "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Cannot deserialize plugin since "
                "corresponding IPluginCreator not found in Plugin Registry)"
            )
        if described.get("host_code") and not self.engine_host_code_allowed:
            return self._refuse("Engine contains host code, and engineHostCodeAllowed is false")
        return Engine(trt, described, trt.current())

    def _refuse(self, text: str) -> None:
        self._trt.error(text)


class Engine:
    def __init__(self, trt: FakeTensorRT, described: Any, device: int) -> None:
        self.trt = trt
        self.device = device
        self.function = FUNCTIONS[described["function"]]
        self.inputs = {each["name"]: each for each in described["inputs"]}
        self.outputs = {each["name"]: each for each in described["outputs"]}
        self.tensors = self.inputs | self.outputs
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = len(described["inputs"][0]["profiles"])

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[self.tensors[name]["element"]]

    def get_tensor_shape(self, name: str) -> Dims:
        return tuple(self.tensors[name]["dims"])

    def get_tensor_format(self, name: str) -> TensorFormat:
        return TensorFormat[self.tensors[name].get("format", "LINEAR")]

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if self.is_shape_inference_io(name) else TensorLocation.DEVICE

    def is_shape_inference_io(self, name: str) -> bool:
        return self.tensors[name].get("shape", False)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        return [tuple(dims) for dims in self.inputs[name]["profiles"][profile_index]]

    def get_tensor_profile_values(self, profile_index: int, name: str) -> list[list[int]]:
        assert self.is_shape_inference_io(name)
        return self.inputs[name]["values"][profile_index]

    def create_execution_context(self, strategy: ExecutionContextAllocationStrategy) -> Context:
        assert self.trt.current() == self.device, "another device is current"
        context = Context(self, strategy)
        self.trt.contexts.append(context)
        return context

    def numpy(self, name: str) -> np.dtype:
        return np.dtype(_NUMPY[self.get_tensor_dtype(name)])


class Context:
    """``IExecutionContext``: on one stream, and asked by one thread at a time.

    Attributes:
        profile: its number.
        flying: batches that are enqueued and not computed yet.
        enqueued: batches that were enqueued, or captured.
    """

    def __init__(self, engine: Engine, strategy: ExecutionContextAllocationStrategy) -> None:
        self.engine = engine
        self.strategy = strategy
        self.profile = -1
        self.flying = 0
        self.enqueued = 0
        self._gpus = engine.trt.gpus
        self._stream: int | None = None
        self._shapes: dict[str, Dims] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._warm: set[object] = set()

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._gpus.stream(stream_handle)
        if self.flying:
            raise Misuse("a profile is changed while a batch is computed")
        if profile_index not in range(self.engine.num_optimization_profiles) or self.engine.trt.refuses_profiles:
            self.engine.trt.error(f"setOptimizationProfileAsync: no profile {profile_index}")
            raise RuntimeError("Error in set optimization profile async.")  # never False
        self.profile = profile_index
        self._stream = stream_handle
        self._shapes.clear()
        return True

    def set_input_shape(self, name: str, shape: Dims) -> bool:
        least, _, most = self.engine.get_tensor_profile_shape(name, self.profile)
        fits = len(shape) == len(most) and all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))
        if not fits:
            self.engine.trt.error(f"setInputShape: {name} {shape} is not within profile {self.profile}")
            return False
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in self.engine.tensors or not isinstance(memory, int) or not memory:
            raise Misuse(f"the address of {name} is {memory!r}")
        self._addresses[name] = memory
        return True

    def set_output_allocator(self, name: str, output_allocator: Any) -> bool:
        assert isinstance(output_allocator, IOutputAllocator)
        assert output_allocator.constructed
        if name in self._allocators:
            raise Misuse("a context keeps every allocator that it was given")
        self._allocators[name] = output_allocator
        return True

    def infer_shapes(self) -> list[str]:
        inputs = self.engine.inputs
        missing = [name for name in inputs if -1 in self.engine.get_tensor_shape(name) and name not in self._shapes]
        missing += [name for name in inputs if self.engine.is_shape_inference_io(name) and name not in self._addresses]
        if not missing:
            try:
                self._output_shapes()
            except ValueError as error:
                self.engine.trt.error(f"inferShapes: {error}")
                raise RuntimeError("shape inference failed") from None
        return missing

    def get_tensor_shape(self, name: str) -> Dims:
        if name in self.engine.inputs:
            return self._input_shapes()[name]
        assert not self.infer_shapes(), "shapes are asked for before all inputs are specified"
        return self._output_shapes()[name]

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine = self.engine
        stream = self._gpus.stream(stream_handle)
        if engine.trt.current() != engine.device or stream.device != engine.device:
            raise Misuse("an engine is used on another device than its own")
        if self.flying and stream_handle != self._stream:
            raise Misuse("a context is used on two streams at once")
        self._stream = stream_handle
        if self.infer_shapes():
            engine.trt.error("enqueueV3: not all inputs are specified")
            return False
        shapes = self._output_shapes()
        growing = [name for name, shape in shapes.items() if -1 in shape]
        bound = self._addresses.keys() | self._allocators.keys()
        unset = [name for name in engine.tensors if name not in bound]
        if unset:
            engine.trt.error(f"enqueueV3: no address of {', '.join(unset)}")
            return False
        key = tuple(self._input_shapes().items())
        if stream.captured is not None and (growing or key not in self._warm):
            engine.trt.error("enqueueV3: operation not permitted when stream is capturing")
            return False
        self._warm.add(key)
        self.enqueued += 1
        run = _Run(self, dict(self._addresses), self._input_shapes(), shapes)
        self.flying += stream.captured is None
        self._gpus.enqueue(stream_handle, Operation("engine", run.compute, _COST_NS))
        return run.grow(self._allocators) if growing else True

    def values(self) -> dict[str, np.ndarray]:
        """Of the shape tensors that go in, as they are in the host's memory."""
        return {
            name: self.at(name, self._addresses[name], shape)
            for name, shape in self._input_shapes().items()
            if self.engine.is_shape_inference_io(name)
        }

    def at(self, name: str, address: int, shape: Dims) -> np.ndarray:
        """What is at an address that was given for a tensor."""
        engine = self.engine
        dtype = engine.numpy(name)
        nbytes = math.prod(shape) * dtype.itemsize
        if engine.get_tensor_location(name) is TensorLocation.HOST:
            raw = self._gpus.host(address, nbytes)
        else:
            raw = self._gpus.memory(address, nbytes, engine.device)
        return raw.view(dtype).reshape(shape)

    def _input_shapes(self) -> dict[str, Dims]:
        return {name: self._shapes.get(name, self.engine.get_tensor_shape(name)) for name in self.engine.inputs}

    def _output_shapes(self) -> Mapping[str, Dims]:
        found = self.engine.function.shapes(self._input_shapes(), self.values())
        return {name: tuple(found[name]) for name in self.engine.outputs}


class _Run:
    """One batch: with the addresses and shapes that were there when it was enqueued."""

    def __init__(
        self, context: Context, addresses: dict[str, int], inputs: dict[str, Dims], outputs: Mapping[str, Dims]
    ) -> None:
        self._context = context
        self._addresses = addresses
        self._inputs = inputs
        self._outputs = outputs
        self._values = {name: array.copy() for name, array in context.values().items()}
        self._grown: dict[str, np.ndarray] = {}
        self._over = threading.Event()

    def compute(self) -> None:
        context = self._context
        arrays = {name: context.at(name, self._addresses[name], shape) for name, shape in self._inputs.items()}
        for name, values in self._values.items():
            if not np.array_equal(arrays[name], values):
                raise Misuse(f"the values of {name} have changed since the batch was enqueued")
        results = context.engine.function.compute(arrays)
        for name, shape in self._outputs.items():
            result = results[name].astype(context.engine.numpy(name), copy=False)
            if -1 in shape:
                self._grown[name] = result
            else:
                context.at(name, self._addresses[name], shape)[...] = result
        context.flying = max(context.flying - 1, 0)
        self._over.set()

    def grow(self, allocators: Mapping[str, Any]) -> bool:
        """Wait for what only the device knows, and ask for memory for it."""
        context = self._context
        if context.engine.trt.waits:
            assert self._over.wait(10)
        else:
            context._gpus.run()
        for name, result in self._grown.items():
            address = allocators[name].reallocate_output_async(name, 0, result.nbytes, 256, context._stream)
            if address is None:
                context.engine.trt.error(f"no memory for {name}")
                return False
            context.at(name, address, result.shape)[...] = result
            allocators[name].notify_shape(name, result.shape)
        return True
