"""One instance: gather, to torch, run, back, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...config.sequence import ImplicitState
from ...errors import InternalError, TriremeError
from ...execution import ExecutionBatch, Phase
from ...scheduling.batch import BatchLayout
from ...scheduling.sequence.state import keep_states
from ...tensor import Tensor
from ..interface import InstanceSpec, ModelInstance
from .library import error_types, execute_error
from .program import Program
from .settings import Settings
from .tensors import OutputCheck, to_torch


class PyTorchInstance(ModelInstance):
    """An instance; `execute` and `close` on the instance's thread.

    Args:
        states: the implicit states of the model's sequences.
        threads: threads that one operator of this instance may use; 0 for torch's own choice. torch keeps the number
            for each thread that calls it, so instances do not take it from each other.
    """

    def __init__(
        self,
        torch: Any,
        config: ModelConfig,
        spec: InstanceSpec,
        program: Program,
        settings: Settings,
        layout: BatchLayout,
        states: Sequence[ImplicitState],
        threads: int,
    ) -> None:
        self._torch = torch
        self._errors = error_types(torch)
        self._name = spec.name
        self._max_rows = max(config.max_batch_size, 1)
        self._batching = config.max_batch_size > 0
        self._program: Program | None = program
        self._settings = settings
        self._layout = layout
        self._count = len(config.output)
        extra = [state for state in states if config.find_output(state.output_name) is None]
        outputs = [(output.name, output.datatype) for output in config.output]
        outputs += [(state.output_name, state.datatype) for state in extra]
        self._checks = [OutputCheck(torch, name, datatype, self._batching) for name, datatype in outputs]
        names = [name for name, _ in outputs]
        self._states = [(names.index(state.output_name), state) for state in states]
        if threads:
            torch.set_num_threads(threads)

    def execute(self, batch: ExecutionBatch) -> None:
        program = self._program
        assert program is not None, "a closed instance executes nothing"
        if batch.rows > self._max_rows:
            raise InternalError(f"batch size {batch.rows} for '{self._name}', max allowed is {self._max_rows}")
        jobs, arrays = self._layout.gather(batch.jobs)
        if not jobs:
            return
        inputs = {name: to_torch(self._torch, array, program.device) for name, array in arrays.items()}
        batch.mark(Phase.INFER_START)
        values = self._run(program, inputs)
        batch.mark(Phase.OUTPUT_START)
        outputs = self._arrays(values)
        shares = self._layout.split(jobs, outputs[: self._count])
        if self._states:
            kept = [(state, outputs[at]) for at, state in self._states]
            tensors = [Tensor(state.output_name, state.datatype, array.shape, array=array) for state, array in kept]
            keep_states(jobs, tensors, self._batching)
        self._layout.answer(shares)

    def _run(self, program: Program, inputs: dict[str, Any]) -> Sequence[Any]:
        torch, settings, device = self._torch, self._settings, program.device
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.inference_mode() if settings.inference_mode else torch.no_grad())
                stack.enter_context(torch.jit.optimized_execution(settings.optimized_execution))
                if settings.mixed_precision:
                    dtype = getattr(torch, settings.mixed_precision)
                    stack.enter_context(torch.autocast(device.type, dtype=dtype))
                if device.type == "cuda":
                    stack.enter_context(torch.cuda.device(device))
                    stack.enter_context(torch.backends.cudnn.flags(enabled=settings.cudnn))
                values = program.run(inputs)
                if device.type == "cuda" and settings.clean_cache:
                    torch.cuda.empty_cache()
                return values
        except TriremeError:
            raise
        except self._errors as error:
            raise execute_error(error) from error

    def _arrays(self, values: Sequence[Any]) -> list[np.ndarray]:
        try:
            return [check.array(value) for check, value in zip(self._checks, values, strict=True)]
        except self._errors as error:  # what a GPU did wrong may show only when its results are fetched
            raise execute_error(error) from error

    def close(self) -> None:
        self._program = None
        if self._torch.cuda.is_available():
            self._torch.cuda.empty_cache()
