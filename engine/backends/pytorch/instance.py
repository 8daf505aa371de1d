"""Instances: one that executes a batch on its thread, and one on a GPU that enqueues it, by CUDA graphs if wanted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...errors import InternalError, TriremeError
from ...gpu.device import Stream
from ...gpu.graphs import CapturedGraph, GraphShape, capture_each
from ...gpu.pipeline import Compute, Pipeline
from ...gpu.torch_device import TorchDevice, TorchStream
from ..framework import DeviceBatch, ModelTensors, PipelineInstance, ThreadInstance
from .program import OutputCheck, Runner, error_types, execute_error, to_torch


class PyTorchInstance(ThreadInstance):
    """An instance on the CPU, or one that the device may be waited for.

    Args:
        checks: for each value that the model gives.
        threads: that one operator of this instance may use. torch keeps the number for each thread that calls it, so
            instances do not take it from each other.
    """

    def __init__(
        self,
        torch: Any,
        name: str,
        tensors: ModelTensors,
        runner: Runner,
        checks: Sequence[OutputCheck],
        threads: int,
    ) -> None:
        super().__init__(name, tensors, runner.run, error_types(torch))
        self._torch = torch
        self._runner = runner
        self._checks = checks
        self._converts = self._fetches = True
        torch.set_num_threads(threads)

    def _convert(self, inputs: dict[str, Any], rows: int, jobs: int) -> dict[str, Any]:
        device = self._runner.program.device
        own = jobs > 1  # joined from several, and not what a job has brought
        return {name: to_torch(self._torch, array, device, own=own) for name, array in inputs.items()}

    def _fetch(self, outputs: Sequence[Any]) -> list[np.ndarray]:
        try:
            arrays = [check.array(value) for check, value in zip(self._checks, outputs, strict=True)]
        except self._errors as error:  # what a GPU did wrong may show only when its results are fetched
            raise execute_error(error) from error
        self._runner.clean()
        return arrays

    def _failure(self, error: Exception) -> InternalError:
        return execute_error(error)

    def close(self) -> None:
        super().close()
        self._runner.close()


class PyTorchStreamInstance(PipelineInstance):
    """An instance on a GPU of a model without strings: it enqueues copies and computation on streams of its own."""

    def __init__(
        self,
        name: str,
        tensors: ModelTensors,
        device: TorchDevice,
        runner: Runner,
        checks: Sequence[OutputCheck],
        priority: int = 0,
    ) -> None:
        super().__init__(name, tensors, Pipeline(device, priority))
        self._device = device
        self._runner = runner
        self._checks = checks
        self._captured: CapturedPrograms | None = None
        device.loaded(self._pipeline.compute)

    def capture(self, shapes: Sequence[GraphShape]) -> None:
        """Capture CUDA graphs, which then serve the batches that they fit. See `CapturedPrograms`."""
        stream = self._pipeline.compute
        assert isinstance(stream, TorchStream)
        dtypes = {name: datatype.storage for name, datatype in self._tensors.inputs.items()}
        self._captured = self._device.load(
            lambda: CapturedPrograms(self._name, self._device, stream, self._enqueue, shapes, dtypes)
        )

    def close(self) -> None:
        self._captured = None
        del self._pipeline
        self._runner.close()

    def _prepare(self, run: DeviceBatch, inputs: dict[str, Any]) -> Compute:
        run.outputs = tuple(self._tensors.outputs)
        return partial(self._compute, run)

    def _compute(self, run: DeviceBatch, stream: Stream, arrays: Sequence[Any]) -> Sequence[Any]:
        """See `pipeline.Compute`."""
        assert isinstance(stream, TorchStream)
        inputs = dict(zip(run.names, arrays, strict=True))
        if self._captured is not None:
            results = self._captured.run(run.rows, inputs)
            if results is not None:
                return results
        with self._device.errors(), stream.active():
            results = list(self._enqueue(inputs).values())
            self._runner.clean()
        return results

    def _enqueue(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Enqueue a run on the current stream.

        Returns:
            The results by name, held to the configuration, contiguous and on the program's device.
        """
        device, values = self._runner.program.device, self._runner.run(inputs)
        outputs = zip(self._tensors.outputs, self._checks, values, strict=True)
        return {name: check.on_device(value, device) for name, check, value in outputs}


# A program as CUDA graphs: captured once for each shape, and then launched as a whole (see `gpu.graphs`).
#
# Rules:
#  1. A smaller batch is padded with zeros, never with what another one has left; what comes out of the padding is cut
#     off. Only the batch size is padded: what a larger shape would do to the outputs, PyTorch does not tell.
#  2. The program is run a few times before it is captured, because TorchScript and the libraries beneath settle on
#     their ways then.


_log = logging.getLogger(__name__)

_WARM_UP_RUNS = 3


class CapturedPrograms:
    """The graphs of one instance. Made and used on its thread.

    Args:
        enqueue: enqueues the program on the current stream; gives its outputs by name.

    Raises:
        SickDeviceError: see `TorchDevice.errors`.
    """

    def __init__(
        self,
        name: str,
        device: TorchDevice,
        stream: TorchStream,
        enqueue: Callable[[dict[str, Any]], Mapping[str, Any]],
        shapes: Sequence[GraphShape],
        dtypes: Mapping[str, np.dtype],
    ) -> None:
        self._name = name
        self._device = device
        self._stream = stream
        self._choice = capture_each(shapes, partial(self._capture, enqueue, dtypes), self._refused)

    def run(self, rows: int, inputs: Mapping[str, Any]) -> list[Any] | None:
        """Serve a batch, if there is a graph for it.

        Args:
            inputs: on the device.

        Returns:
            The results, which no later batch touches; None if the batch is to be run as it is.
        """
        captured = self._choice.fitting(rows, inputs)
        if captured is None:
            return None
        with self._device.errors(), self._stream.active():
            for name, given in inputs.items():
                _fill(captured.inputs[name], given)
            captured.graph.launch(self._stream)
            return [_cut(output, rows, captured.rows) for output in captured.outputs.values()]

    def _capture(
        self, enqueue: Callable[[dict[str, Any]], Mapping[str, Any]], dtypes: Mapping[str, np.dtype], shape: GraphShape
    ) -> CapturedGraph:
        outputs: dict[str, Any] = {}
        with self._device.errors(), self._stream.active():
            inputs = {name: self._device.empty(shape.shape(name), dtypes[name]).zero_() for name in shape.shapes}
            for _ in range(_WARM_UP_RUNS):
                enqueue(inputs)
        graph = self._device.capture(self._stream, lambda: outputs.update(enqueue(inputs)))
        # Rule 1: in all other dimensions only the exact shapes fit.
        return CapturedGraph(shape.rows, shape.shapes, shape.lower_rows, shape.shapes, graph, inputs, outputs)

    def _refused(self, shape: GraphShape, error: TriremeError) -> None:
        _log.warning("instance '%s': no CUDA graph for batch size %d: %s", self._name, shape.rows, error)


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
