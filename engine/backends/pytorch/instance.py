"""Instances: one that executes a batch on its thread, from beginning to end (gather, to torch, run, back, scatter), and
one on a GPU that enqueues it, with CUDA graphs where they are wanted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import InternalError, TriremeError
from ...execution import ExecutionBatch, Phase
from ...gpu.device import Graph, SickDeviceError, Stream
from ...gpu.graphs import GraphChoice, GraphShape
from ...gpu.pipeline import Flight, Pipeline
from ...gpu.torch_device import TorchDevice, TorchStream
from ...job import Job
from ...scheduling.batch import BatchLayout
from ..interface import ModelInstance, StreamInstance
from .program import Runner, error_types, execute_error
from .tensors import Outputs, to_torch


class PyTorchInstance(ModelInstance):
    """An instance on the CPU, or one that the device may be waited for; `execute` and `close` on the instance's thread.

    Args:
        threads: threads that one operator of this instance may use; 0 for torch's own choice. torch keeps the number
            for each thread that calls it, so instances do not take it from each other.
    """

    def __init__(
        self,
        torch: Any,
        name: str,
        runner: Runner,
        layout: BatchLayout,
        outputs: Outputs,
        max_rows: int,
        threads: int,
    ) -> None:
        self._torch = torch
        self._errors = error_types(torch)
        self._name = name
        self._runner: Runner | None = runner
        self._layout = layout
        self._outputs = outputs
        self._max_rows = max_rows
        if threads:
            torch.set_num_threads(threads)

    def execute(self, batch: ExecutionBatch) -> None:
        runner = self._runner
        assert runner is not None, "a closed instance executes nothing"
        if batch.rows > self._max_rows:
            raise InternalError(f"batch size {batch.rows} for '{self._name}', max allowed is {self._max_rows}")
        jobs, arrays = self._layout.gather(batch.jobs)
        if not jobs:
            return
        device = runner.program.device
        own = len(jobs) > 1  # joined from several, and not what a job has brought
        inputs = {name: to_torch(self._torch, array, device, own=own) for name, array in arrays.items()}
        batch.mark(Phase.INFER_START)
        values = runner.run(inputs)
        batch.mark(Phase.OUTPUT_START)
        arrays = self._arrays(values)
        runner.clean()
        self._outputs.answer(jobs, arrays)

    def _arrays(self, values: Sequence[Any]) -> list[np.ndarray]:
        try:
            return [check.array(value) for check, value in zip(self._outputs.checks, values, strict=True)]
        except self._errors as error:  # what a GPU did wrong may show only when its results are fetched
            raise execute_error(error) from error

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
        self._runner = None


# -- An instance on a GPU: it enqueues copies and computation on streams of its own, and no thread waits for them


Launched = tuple[Sequence[Job], Flight]


class PyTorchStreamInstance(StreamInstance):
    """An instance on a GPU of a model without strings.

    Inputs are gathered into pinned memory, and the answers are views on the pinned memory that the outputs were copied
    to; that goes back to its pool when the last of them has been sent.

    Args:
        stateful: it has implicit state. What a sequence remembers is there when a batch has been collected, and a
            second batch in flight could only be made of other sequences. By the direct strategy, where each has its
            row, both would then be half empty. So there is one at a time.
    """

    def __init__(
        self,
        name: str,
        device: TorchDevice,
        runner: Runner,
        layout: BatchLayout,
        outputs: Outputs,
        max_rows: int,
        priority: int = 0,
        stateful: bool = False,
    ) -> None:
        self._name = name
        self._device = device
        self._runner: Runner | None = runner
        self._layout = layout
        self._outputs = outputs
        self._max_rows = max_rows
        self._captured: CapturedPrograms | None = None
        if stateful:
            self.credits = 1
        self._pipeline: Pipeline | None = Pipeline(device, priority)
        device.loaded(self._pipeline.compute)

    def capture(self, shapes: Sequence[GraphShape], dtypes: Mapping[str, np.dtype]) -> None:
        """Capture CUDA graphs, which then serve the batches that they fit. See `CapturedPrograms`."""
        assert self._pipeline is not None
        assert self._runner is not None
        stream = self._pipeline.compute
        assert isinstance(stream, TorchStream)
        run = partial(enqueue, self._runner, self._outputs)
        self._captured = self._device.load(
            lambda: CapturedPrograms(self._name, self._device, stream, run, shapes, dtypes)
        )

    def launch(self, batch: ExecutionBatch, on_landed: Callable[[], None]) -> Launched:
        assert self._pipeline is not None, "a closed instance executes nothing"
        if batch.rows > self._max_rows:
            raise InternalError(f"batch size {batch.rows} for '{self._name}', max allowed is {self._max_rows}")
        jobs, arrays = self._layout.gather(batch.jobs, self._device.pinned, self._device.index)
        compute = partial(self._compute, list(arrays), batch.rows)
        place = partial(self._outputs.place, jobs, self._device.index) if self._layout.wants_place(jobs) else None
        return jobs, self._pipeline.launch(list(arrays.values()), compute, on_landed, place)

    def collect(self, batch: ExecutionBatch, launched: Launched) -> None:
        jobs, flight = launched
        self._outputs.answer(jobs, flight.collect(batch))

    def healthy(self, launched: Launched) -> None:
        _, flight = launched
        flight.reached()

    def close(self) -> None:
        runner, self._runner = self._runner, None
        self._captured = self._pipeline = None
        if runner is not None:
            runner.close()

    def _compute(self, names: Sequence[str], rows: int, stream: Stream, arrays: Sequence[Any]) -> Sequence[Any]:
        """See `pipeline.Compute`."""
        runner = self._runner
        assert runner is not None
        assert isinstance(stream, TorchStream)
        inputs = dict(zip(names, arrays, strict=True))
        if self._captured is not None:
            results = self._captured.run(rows, inputs)
            if results is not None:
                return results
        with self._device.errors(), stream.active():
            results = enqueue(runner, self._outputs, inputs)
            runner.clean()
        return results


def enqueue(runner: Runner, outputs: Outputs, inputs: dict[str, Any]) -> list[Any]:
    """Enqueue a run on the current stream.

    Returns:
        The results, held to the configuration, contiguous and on the runner's device.
    """
    values = runner.run(inputs)
    return [check.on_device(value, runner.program.device) for check, value in zip(outputs.checks, values, strict=True)]


# A program as CUDA graphs: captured once for each shape, and then launched as a whole.
#
# Rules:
#  1. A graph reads and writes the same memory every time. So a batch's inputs are copied there first, and its results
#     away from there at once, all on the stream of the graph, where one batch comes after the other.
#  2. A smaller batch is padded with zeros, never with what another one has left; what comes out of the padding is cut
#     off. Only the batch size is padded: what a larger shape would do to the outputs, PyTorch does not tell.
#  3. The program is run a few times before it is captured, because TorchScript and the libraries beneath settle on
#     their ways then.
#  4. A program that cannot be captured, be it for lack of memory, is served without a graph, as in Triton; the log says
#     why. Only a sick device is no place for it.


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
