"""An instance that executes a batch on its thread, from beginning to end: gather, to torch, run, back, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import InternalError
from ...execution import ExecutionBatch, Phase
from ...scheduling.batch import BatchLayout
from ..interface import ModelInstance
from .library import error_types, execute_error
from .outputs import Outputs
from .runner import Runner
from .tensors import to_torch


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
