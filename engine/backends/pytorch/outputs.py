"""What a model has computed: held to the configuration, cut up, and given to the requests and their sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...config.model import ModelConfig
from ...config.sequence import ImplicitState
from ...job import Job
from ...region_tensor import PlacedOutput
from ...scheduling.batch import BatchLayout
from ...scheduling.sequence.state import keep_arrays
from .tensors import OutputCheck


class Outputs:
    """The outputs of one model, and its implicit states.

    Args:
        states: of the model's sequences.

    Attributes:
        checks: for each value that the model gives, in the order of `TensorNames.outputs`.
    """

    def __init__(self, torch: Any, config: ModelConfig, layout: BatchLayout, states: Sequence[ImplicitState]) -> None:
        self._layout = layout
        self._batching = config.max_batch_size > 0
        self._count = len(config.output)
        extra = [state for state in states if config.find_output(state.output_name) is None]
        outputs = [(output.name, output.datatype) for output in config.output]
        outputs += [(state.output_name, state.datatype) for state in extra]
        self.checks = [OutputCheck(torch, name, datatype, self._batching) for name, datatype in outputs]
        self._names = names = [name for name, _ in outputs]
        self._states = [(names.index(state.output_name), state) for state in states]

    def place(self, jobs: Sequence[Job], gpu: int, results: Sequence[Any]) -> list[PlacedOutput | None]:
        """Where the results of a batch go that are on a GPU: see `pipeline.Place`."""
        return self._layout.place(
            jobs, gpu, {name: tuple(result.shape) for name, result in zip(self._names, results, strict=True)}
        )

    def answer(self, jobs: Sequence[Job], arrays: Sequence[Any]) -> None:
        """Answer the jobs of a batch.

        Args:
            arrays: a `pipeline.Output` for each of `checks`.
        """
        shares = self._layout.split(jobs, arrays[: self._count])
        if self._states:
            keep_arrays(jobs, [(state, arrays[at]) for at, state in self._states], self._batching)
        self._layout.answer(shares)
