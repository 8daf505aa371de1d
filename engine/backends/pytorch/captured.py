"""A program as CUDA graphs: captured once for each shape, and then launched as a whole.

Rules:
 1. A graph reads and writes the same memory every time. So a batch's inputs are copied there first, and its results
    away from there at once, all on the stream of the graph, where one batch comes after the other.
 2. A smaller batch is padded with zeros, never with what another one has left; what comes out of the padding is cut
    off. Only the batch size is padded: what a larger shape would do to the outputs, PyTorch does not tell.
 3. The program is run a few times before it is captured, because TorchScript and the libraries beneath settle on their
    ways then.
 4. A program that cannot be captured, be it for lack of memory, is served without a graph, as in Triton; the log says
    why. Only a sick device is no place for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import TriremeError
from ...gpu.device import Graph, SickDeviceError
from ...gpu.graphs import GraphChoice, GraphShape
from ...gpu.torch_device import TorchDevice, TorchStream

_log = logging.getLogger(__name__)

_WARM_UP_RUNS = 3

Run = Callable[[dict[str, Any]], Sequence[Any]]
"""Enqueues the program on the current stream."""


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: Graph
    inputs: Mapping[str, Any]
    outputs: Sequence[Any]


class CapturedPrograms:
    """The graphs of one instance. Made and used on its thread.

    Args:
        stream: where batches are computed.
        shapes: what to capture.
        dtypes: of the inputs, numpy's.

    Raises:
        SickDeviceError: see `TorchDevice.errors`.
    """

    def __init__(
        self,
        name: str,
        device: TorchDevice,
        stream: TorchStream,
        run: Run,
        shapes: Sequence[GraphShape],
        dtypes: Mapping[str, np.dtype],
    ) -> None:
        self._device = device
        self._stream = stream
        self._captured: dict[int, _Captured] = {}
        done: list[GraphShape] = []
        for shape in sorted(shapes, key=lambda each: each.rows, reverse=True):  # smaller ones fit into its memory
            exact = replace(shape, lower_shapes=shape.shapes)  # rule 2
            try:
                self._captured[id(exact)] = self._capture(exact, run, dtypes)
            except SickDeviceError:
                raise
            except TriremeError as error:
                _log.warning("instance '%s': no CUDA graph for batch size %d: %s", name, exact.rows, error)
                continue
            done.append(exact)
        self._choice = GraphChoice(done)

    def run(self, rows: int, inputs: Mapping[str, Any]) -> list[Any] | None:
        """Serve a batch, if there is a graph for it.

        Args:
            rows: its batch size.
            inputs: on the device.

        Returns:
            The results, which no later batch touches; None if the batch is to be run as it is.
        """
        shape = self._find(rows, inputs)
        if shape is None:
            return None
        captured = self._captured[id(shape)]
        with self._device.errors(), self._stream.active():
            for name, given in inputs.items():
                _fill(captured.inputs[name], given)
            captured.graph.launch(self._stream)
            return [_cut(output, rows, shape.rows) for output in captured.outputs]

    def _find(self, rows: int, inputs: Mapping[str, Any]) -> GraphShape | None:
        batching = any(shape.rows for shape in self._choice.graphs)
        shapes = {name: tuple(given.shape[1:] if batching else given.shape) for name, given in inputs.items()}
        return self._choice.find(rows if batching else 0, shapes)

    def _capture(self, shape: GraphShape, run: Run, dtypes: Mapping[str, np.dtype]) -> _Captured:
        outputs: list[Any] = []
        with self._device.errors(), self._stream.active():
            inputs = {name: self._device.empty(shape.shape(name), dtypes[name]).zero_() for name in shape.shapes}
            for _ in range(_WARM_UP_RUNS):
                run(inputs)
        graph = self._device.capture(self._stream, lambda: outputs.extend(run(inputs)))
        return _Captured(graph, inputs, outputs)


def _fill(target: Any, given: Any) -> None:
    rows = given.shape[0] if given.dim() else 0
    if given.shape == target.shape:
        target.copy_(given, non_blocking=True)
    else:
        target.narrow(0, 0, rows).copy_(given, non_blocking=True)
        target.narrow(0, rows, target.shape[0] - rows).zero_()


def _cut(output: Any, rows: int, captured_rows: int) -> Any:
    if captured_rows and output.dim() and output.shape[0] == captured_rows:
        output = output.narrow(0, 0, rows)
    return output.clone()
