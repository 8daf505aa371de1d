"""CUDA graphs of an execution context: captured when the instance is made, launched instead of what they stand for.

Rules:
 1. A graph reads and writes the same memory every time. So a batch's inputs are copied there, and its results from
    there, on the stream that it is launched in: the batch before is computed by then, and the one after it not yet.
 2. A batch that is smaller than the graph is filled up with zeros, before it is copied to the device.
 3. What cannot be captured, be it for lack of memory, is executed without a graph, and the log says why. Only a sick
    device is no place for it.
 4. Capturing needs the computation to be executed once. What the device uses for that is held until it has done it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...config.model import Dims, ModelConfig
from ...errors import TriremeError
from ...gpu.cupy_device import CupyDevice
from ...gpu.device import DeviceArray, Graph, SickDeviceError, Stream
from ...gpu.graphs import GraphChoice, GraphShape, graph_shapes, input_shapes
from .context import EngineContext, Run
from .signature import EngineTensors

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Captured:
    """One graph, and the memory that it reads and writes, by name."""

    shape: GraphShape
    graph: Graph
    inputs: Mapping[str, DeviceArray]
    outputs: Mapping[str, DeviceArray]


class CapturedGraphs:
    """The graphs of one context.

    Args:
        config: says which there are to be.
        instance: the name of whose they are.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: EngineTensors,
        context: EngineContext,
        device: CupyDevice,
        stream: Stream,
        instance: str,
    ) -> None:
        self._batching = config.max_batch_size > 0
        self._device = device
        self._stream = stream
        self._captured: list[Captured] = []
        self._held: list[object] = []
        if tensors.shape_tensors:
            _log.warning("Detected shape tensor, CUDA graph is not captured for %s", instance)
            return
        dtypes = {name: tensor.datatype("input", instance).storage for name, tensor in tensors.signature.inputs.items()}
        for shape in graph_shapes(config, _inputs(config, context)):
            try:
                context.profile.check({name: shape.shape(name) for name in dtypes}, {}, instance)
                self._captured.append(self._capture(context, shape, dtypes))
            except SickDeviceError:
                raise
            except TriremeError as error:
                _log.warning("unable to record CUDA graph for %s: %s", instance, str(error))
                self._held.append(error)  # whose traceback holds what it was working with
        self._tried = stream.record()
        self._choice = GraphChoice([captured.shape for captured in self._captured])

    def find(self, rows: int, shapes: Mapping[str, Dims]) -> Captured | None:
        """The graph for a batch; None if it is to be executed without one.

        Args:
            shapes: of all inputs, with the batch dimension if the model has one.
        """
        if self._held and self._tried.reached():
            self._held.clear()
        if not self._captured:
            return None
        inner = {name: shape[1:] for name, shape in shapes.items()} if self._batching else shapes
        chosen = self._choice.find(rows if self._batching else 0, inner)
        return next((captured for captured in self._captured if captured.shape is chosen), None)

    def launch(self, captured: Captured, run: Run, stream: Stream, arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Launch a graph for a batch (rule 1); gives what will hold the results.

        Args:
            arrays: the inputs that `run` names, of the graph's shapes.

        Raises:
            OutOfDeviceMemoryError: there is no room for the results.
        """
        for name, array in zip(run.names, arrays, strict=True):
            stream.copy(array, captured.inputs[name])
        captured.graph.launch(stream)
        results = []
        for name, output in captured.outputs.items():
            results.append(self._device.empty(output.shape, output.dtype))
            run.outputs.append(name)
            stream.copy(output, results[-1])
        return results

    def _capture(self, context: EngineContext, shape: GraphShape, dtypes: Mapping[str, np.dtype]) -> Captured:
        # Of zeros, because it is executed once: what is in fresh memory may be no valid index, for example.
        zeros = {name: self._device.pinned(shape.shape(name), dtype) for name, dtype in dtypes.items()}
        inputs = {}
        for name, array in zeros.items():
            array[...] = 0
            self._held.append(array)
            inputs[name] = self._stream.upload(array)
        graph, outputs = context.capture(inputs)
        return Captured(shape, graph, inputs, outputs)


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
