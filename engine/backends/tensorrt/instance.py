"""An instance; its execution contexts, each under one profile; and the computation of a batch with one.

Rules:
 1. A context is used by one thread, and enqueues on one stream. So a batch may be enqueued while the one before it is
    still being computed: the second begins when the first has ended, and the memory that the context keeps for what is
    in between is never in use by both. Shapes and addresses belong to the call that enqueues, and change between two.
    Two contexts would need that memory twice, and gain nothing on the one stream.
 2. A context has one profile for all its life: to change it takes time, on the host and on the device.
 3. What TensorRT reads and writes of the host's memory is held by the `DeviceBatch` until that has landed, as the
    pipeline holds what is on the device.
 4. TensorRT wants an address of everything, also of what has no elements.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...config.model import Dims, ModelConfig
from ...errors import InternalError, TriremeError
from ...gpu.cupy_device import CupyDevice
from ...gpu.device import DeviceArray, DeviceStream, Graph
from ...gpu.graphs import CapturedGraph, GraphShape, capture_each, graph_shapes, input_shapes
from ...gpu.pipeline import Compute, GpuPipeline
from ..framework import DeviceBatch, ModelTensors, PipelineInstance, stream_priority
from ..signature import shape_text
from .library import Engine, Library, OptimizationProfile, choose

_BYTE = np.dtype(np.uint8)


class EngineContext:
    """See the rules.

    Args:
        strategy: a name of ``ExecutionContextAllocationStrategy``.

    Raises:
        InternalError: TensorRT cannot make it; the text says why.
    """

    def __init__(
        self,
        library: Library,
        engine: Engine,
        profile: OptimizationProfile,
        stream: DeviceStream,
        strategy: str,
        instance: str,
    ) -> None:
        self.profile = profile
        self._library = library
        self._tensors = tensors = engine.tensors
        self._device = device = engine.device
        self._stream = stream
        self._instance = instance
        self._dtypes = {
            name: tensor.datatype("output", instance).storage for name, tensor in tensors.signature.outputs.items()
        }
        self._growing: dict[str, GrowingOutput] = {}
        self._nothing = device.empty((1,), _BYTE)
        with library.errors.caught() as errors:
            self._context: Any = engine.raw.create_execution_context(
                getattr(library.trt.ExecutionContextAllocationStrategy, strategy)
            )
            if self._context is None:
                raise self._failure("unable to create TensorRT context", errors)
            try:
                self._context.set_optimization_profile_async(profile.index, stream.handle)
            except RuntimeError as error:  # which says nothing: the log does
                text = f"Can not set the specified optimization profile {profile} for {instance}"
                raise self._failure(text, errors) from error

    def enqueue(self, run: DeviceBatch, stream: DeviceStream, arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Enqueue a batch that the profile allows; gives what will hold the results.

        Raises:
            InternalError: TensorRT does not take it; the text says why.
            OutOfDeviceMemoryError: there is no room for the results.
        """
        assert stream is self._stream, "see rule 1"
        with self._library.errors.caught() as errors:
            results = self._bind(run, arrays, errors)
            try:
                self._execute(errors)
            except InternalError:
                self._give_up_growing(run, results)
                raise
            return self._take_growing(run, results)

    def capture(self, inputs: Mapping[str, DeviceArray]) -> tuple[Graph, dict[str, DeviceArray]]:
        """Capture the computation of a batch: a graph that reads these arrays, and writes those that it gives.

        Raises:
            InternalError: TensorRT does not take it, or cannot capture it; the text says why.
            OutOfDeviceMemoryError: there is no room for the results.
        """
        run = DeviceBatch((), 0, tuple(inputs))
        with self._library.errors.caught() as errors:
            outputs = {}
            for name, array in self._bind(run, tuple(inputs.values()), errors).items():
                if array is None:
                    raise InternalError(f"the shape of output '{name}' depends on what is computed")
                outputs[name] = array
            self._execute(errors)  # once before, which makes what TensorRT needs for these shapes
            return self._device.capture(self._stream, lambda: self._execute(errors)), outputs

    def close(self) -> None:
        """Everything has landed."""
        self._context = None
        self._growing.clear()

    def _bind(
        self, run: DeviceBatch, arrays: Sequence[DeviceArray], errors: list[str]
    ) -> dict[str, DeviceArray | None]:
        """Say what goes in, and where what comes out is to go; gives that."""
        for name, array in zip(run.names, arrays, strict=True):
            self._set_input(name, array.shape, self._device.address(array), errors)
        for name, array in run.host_inputs.items():
            self._set_input(name, array.shape, array.ctypes.data, errors)
        for name in self._tensors.on_host & self._tensors.signature.outputs.keys():
            dims = self._tensors.signature.outputs[name].dims
            run.host_outputs[name] = array = self._device.pinned(dims, self._dtypes[name])
            self._context.set_tensor_address(name, array.ctypes.data)
        self._infer_shapes(errors)
        return self._set_outputs(run)

    def _execute(self, errors: list[str]) -> None:
        if not self._context.execute_async_v3(self._stream.handle):
            raise self._failure(f"unable to enqueue for inference {self._instance}", errors)

    def _set_input(self, name: str, shape: Dims, address: int, errors: list[str]) -> None:
        if -1 in self._tensors.signature.inputs[name].dims and not self._context.set_input_shape(name, shape):
            raise self._failure(
                f"trt failed to set binding dimension to {shape_text(shape)} for input '{name}' for {self._instance}",
                errors,
            )
        self._context.set_tensor_address(name, address or self._device.address(self._nothing))

    def _infer_shapes(self, errors: list[str]) -> None:
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:
            raise self._failure(f"unable to infer shapes for {self._instance}: {error}", errors) from None
        if missing:
            raise self._failure(
                f"failed to specify the dimensions of all input bindings for {self._instance}: {', '.join(missing)}",
                errors,
            )

    def _set_outputs(self, run: DeviceBatch) -> dict[str, DeviceArray | None]:
        """Room for the outputs, by name; None for those whose shape depends on what is computed."""
        results: dict[str, DeviceArray | None] = {}
        for name, dtype in self._dtypes.items():
            if name in run.host_outputs:
                continue
            shape = tuple(self._context.get_tensor_shape(name))
            if -1 in shape:
                results[name] = None
                if name not in self._growing:
                    self._growing[name] = growing = GrowingOutput(self._library.trt, self._device)
                    self._context.set_output_allocator(name, growing.allocator)
                continue
            results[name] = array = self._device.empty(shape, dtype)
            self._context.set_tensor_address(name, self._device.address(array) or self._device.address(self._nothing))
        return results

    def _take_growing(self, run: DeviceBatch, results: dict[str, DeviceArray | None]) -> list[DeviceArray]:
        run.outputs = list(results)
        return [
            self._growing[name].take(name, self._dtypes[name], run.held) if array is None else array
            for name, array in results.items()
        ]

    def _give_up_growing(self, run: DeviceBatch, results: dict[str, DeviceArray | None]) -> None:
        """A batch has failed; raises why there was no memory for an output, if that is it."""
        growing = [self._growing[name].give_up(run.held) for name, array in results.items() if array is None]
        error = next((error for error in growing if error is not None), None)
        if error is not None:
            raise error from None

    def _failure(self, text: str, errors: Sequence[str]) -> InternalError:
        return InternalError(": ".join((text, "; ".join(errors))) if errors else text)


# -- Outputs whose shape is unknown before they have been computed: TensorRT asks for memory as it goes


class GrowingOutput:
    """One such output of one execution context.

    TensorRT calls its allocator between the call that enqueues a batch and the return of that call, and has told the
    shape by then.

    Attributes:
        allocator: the ``IOutputAllocator``: one for as long as the context lives, which keeps all that it ever got.
        shape: the batch's, once TensorRT has told it.
    """

    def __init__(self, trt: Any, device: CupyDevice) -> None:
        self._device = device
        self._arrays: list[DeviceArray] = []
        self.shape: Dims | None = None
        self._error: TriremeError | None = None
        self.allocator = _make_allocator(trt, self)

    def allocate(self, size: int) -> int | None:
        """The address of so many bytes; None if there are none left."""
        try:
            array = self._device.empty((max(size, 1),), _BYTE)
        except TriremeError as error:  # TensorRT cannot hand it on
            self._error = error
            return None
        self._arrays.append(array)
        return self._device.address(array)

    def take(self, name: str, dtype: np.dtype, held: list[object]) -> DeviceArray:
        """The output that a batch has made.

        Args:
            held: gets all memory that the batch was given.

        Raises:
            InternalError: TensorRT told no shape.
        """
        arrays, shape = self._arrays, self.shape
        self.give_up(held)
        if shape is None or not arrays:
            raise InternalError(f"TensorRT told no shape of the output '{name}'")
        return self._device.view(self._device.address(arrays[-1]), shape, dtype, arrays[-1])

    def give_up(self, held: list[object]) -> TriremeError | None:
        """The batch has failed; gives why there was no memory, if that is it."""
        error = self._error
        held.extend(self._arrays)
        self._arrays, self.shape, self._error = [], None, None
        return error


def _make_allocator(trt: Any, output: GrowingOutput) -> Any:
    class Allocator(trt.IOutputAllocator):
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)  # not super(): the class is one of C++

        def reallocate_output(self, tensor_name: str, memory: Any, size: int, alignment: int) -> int | None:
            return output.allocate(size)

        def reallocate_output_async(
            self, tensor_name: str, memory: Any, size: int, alignment: int, stream: int
        ) -> int | None:
            return output.allocate(size)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            output.shape = tuple(shape)

    return Allocator()


# CUDA graphs of an execution context (see `gpu.graphs`): captured when the instance is made, launched instead of what
# they stand for.
#
# Rules:
#  1. A batch that is smaller than the graph is filled up with zeros, before it is copied to the device.
#  2. Capturing needs the computation to be executed once. What the device uses for that is held until it has done it.


_log = logging.getLogger(__name__)


class CapturedGraphs:
    def __init__(
        self, config: ModelConfig, engine: Engine, context: EngineContext, stream: DeviceStream, instance: str
    ) -> None:
        tensors = engine.tensors
        self._device = engine.device
        self._stream = stream
        self._instance = instance
        self._held: list[object] = []
        shapes: Sequence[GraphShape] = ()
        if tensors.shape_tensors:
            _log.warning("Detected shape tensor, CUDA graph is not captured for %s", instance)
        else:
            shapes = graph_shapes(config, _inputs(config, context))
        dtypes = {name: tensor.datatype("input", instance).storage for name, tensor in tensors.signature.inputs.items()}
        self._choice = capture_each(shapes, partial(self._capture, context, dtypes), self._refused)
        self._tried = stream.record()

    def find(self, rows: int, arrays: Mapping[str, np.ndarray]) -> CapturedGraph | None:
        """The graph for a batch, by its inputs; None if it is to be executed without one."""
        if self._held and self._tried.reached():
            self._held.clear()
        return self._choice.fitting(rows, arrays)

    def launch(
        self, captured: CapturedGraph, run: DeviceBatch, stream: DeviceStream, arrays: Sequence[DeviceArray]
    ) -> list[DeviceArray]:
        """Launch a graph for a batch whose inputs have the graph's shapes; gives what will hold the results. Raises
        `OutOfDeviceMemoryError`: there is no room for these."""
        for name, array in zip(run.names, arrays, strict=True):
            stream.copy(array, captured.inputs[name])
        captured.graph.launch(stream)
        run.outputs = tuple(captured.outputs)
        results = []
        for output in captured.outputs.values():
            results.append(self._device.empty(output.shape, output.dtype))
            stream.copy(output, results[-1])
        return results

    def _capture(self, context: EngineContext, dtypes: Mapping[str, np.dtype], shape: GraphShape) -> CapturedGraph:
        context.profile.check({name: shape.shape(name) for name in dtypes}, {}, self._instance)
        inputs = {}
        for name, dtype in dtypes.items():
            # Of zeros, because it is executed once: what is in fresh memory may be no valid index, for example.
            zeros = self._device.pinned(shape.shape(name), dtype)
            zeros[...] = 0
            self._held.append(zeros)
            inputs[name] = self._stream.upload(zeros)
        graph, outputs = context.capture(inputs)
        return CapturedGraph(shape.rows, shape.shapes, shape.lower_rows, shape.lower_shapes, graph, inputs, outputs)

    def _refused(self, _: GraphShape, error: TriremeError) -> None:
        _log.warning("unable to record CUDA graph for %s: %s", self._instance, str(error))
        self._held.append(error)  # whose traceback holds what it was working with


def _inputs(config: ModelConfig, context: EngineContext) -> Mapping[str, Dims]:
    """Shapes for the graphs, without the batch dimension: what the configuration leaves open has the profile's optimum,
    unless the configuration says for which shapes to capture."""
    shapes = input_shapes(config)
    if config.message.optimization.cuda.graph_spec:
        return shapes
    skip = 1 if config.max_batch_size > 0 else 0
    best = {name: allowed.optimum[skip:] for name, allowed in context.profile.shapes.items()}
    return {
        name: tuple(at if dim == -1 else dim for dim, at in zip(dims, best[name], strict=True)) if best[name] else ()
        for name, dims in shapes.items()
        if name in best
    }


# -- An instance: chooses a profile, and lets the context of that compute


class TensorRtInstance(PipelineInstance):
    """An instance. Other ones on the device use the same engine.

    Raises:
        TriremeError: TensorRT cannot make the contexts.
    """

    shares_inputs = shares_outputs = False

    def __init__(
        self,
        library: Library,
        config: ModelConfig,
        name: str,
        tensors: ModelTensors,
        engine: Engine,
        profiles: Sequence[OptimizationProfile],
        strategy: str,
    ) -> None:
        self._device = engine.device
        with self._device.active():
            super().__init__(name, tensors, GpuPipeline(self._device, stream_priority(config)))
            stream = self._pipeline.compute
            self._values = engine.tensors.values[0]
            self._profiles = profiles
            self._shape_outputs = frozenset(output.name for output in config.output if output.is_shape_tensor)
            self._contexts = {
                profile.index: EngineContext(library, engine, profile, stream, strategy, name) for profile in profiles
            }
            self._graphs = {
                index: CapturedGraphs(config, engine, context, stream, name)
                for index, context in self._contexts.items()
                if config.message.optimization.cuda.graphs
            }

    def close(self) -> None:
        with self._device.active():
            for context in self._contexts.values():
                context.close()
            self._graphs.clear()
            self._contexts.clear()

    def _prepare(self, run: DeviceBatch, inputs: dict[str, Any]) -> Compute:
        run.host_inputs = {name: self._with_rows(inputs.pop(name), run.rows) for name in self._values}
        shapes = {name: array.shape for name, array in inputs.items()}
        values = {name: tuple(array.reshape(-1).tolist()) for name, array in run.host_inputs.items()}
        profile = choose(self._profiles, shapes, values, self._name)
        graphs = self._graphs.get(profile.index)
        captured = graphs.find(run.rows, inputs) if graphs else None
        if graphs is None or captured is None:
            return partial(self._contexts[profile.index].enqueue, run)
        for name, array in inputs.items():
            inputs[name] = self._filled_up(array, captured.shape(name))
        return partial(graphs.launch, captured, run)

    def _finish(self, run: DeviceBatch, arrays: dict[str, Any]) -> None:
        for name in self._shape_outputs:
            arrays[name] = self._shape_rows(name, arrays[name], run.rows)

    def _filled_up(self, array: np.ndarray, shape: Dims) -> np.ndarray:
        """A pinned array as a graph wants it."""
        if array.shape == shape:
            return array
        filled = self._device.pinned(shape, array.dtype)
        filled[...] = 0
        filled[tuple(map(slice, array.shape))] = array
        return filled

    def _with_rows(self, values: np.ndarray, rows: int) -> np.ndarray:
        """A shape tensor as the engine wants it: that of a batch has the number of rows in front."""
        if not self._tensors.batching:
            return values
        complete = self._device.pinned((1 + values.size,), values.dtype)
        complete[0] = rows
        complete[1:] = values
        return complete

    def _shape_rows(self, name: str, values: np.ndarray, rows: int) -> np.ndarray:
        """The content of a shape tensor that came out, for each row of a batch: without the rows in front."""
        if not self._tensors.batching or values.ndim == 0:
            return values
        if values[0] != rows:
            raise InternalError(
                f"failed to retrieve the output shape values from binding '{name}' of '{self._name}': the first is "
                f"{values[0]}, and the batch has {rows} rows"
            )
        return np.broadcast_to(values[1:], (rows, values.size - 1))
