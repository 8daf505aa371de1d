"""An instance that executes a batch on its thread, from beginning to end: gather, to torch, run, back, scatter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...errors import InternalError
from ...execution import ExecutionBatch, Phase
from ...gpu.device import Stream
from ...gpu.graphs import GraphShape
from ...gpu.pipeline import Flight, Pipeline
from ...gpu.torch_device import TorchDevice, TorchStream
from ...job import Job
from ...scheduling.batch import BatchLayout
from ..interface import ModelInstance, StreamInstance
from .captured import CapturedPrograms
from .program import error_types, execute_error
from .runner import Runner
from .tensors import Outputs, to_torch


class PyTorchInstance(ModelInstance):
    """An instance on the CPU, or one that the device may be waited for; `execute` and `close` on the instance's thread.

    Args:
        max_rows: most that a batch may have.
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
        device: where the program is.
        max_rows: most that a batch may have.
        priority: of its streams.
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
