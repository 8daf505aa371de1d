"""What requests hold and what models make of it, row by row: a row that went astray is seen in an answer.

Each row of a request holds one value that tells the request and the row. Models gather a batch, and cut up what they
made of it, as backends do (`BatchLayout`), and add up what stands in a row; so an answer tells what the model was given
for each of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..engine.config.model import ModelConfig
from ..engine.datatypes import BYTES, FP32
from ..engine.job import ExecutionBatch, Job
from ..engine.memory.tensors import RegionTensor
from ..engine.scheduling.batch import BatchLayout
from ..engine.scheduling.batch_regions import RegionBatch, names_regions
from ..engine.scheduling.sequence.state import keep_states
from ..engine.tensor import Tensor
from .graphs import answer
from .plan import NEW_SUM, SUM, ControlKind
from .shapes import COUNTS, EXTRA
from .texts import read_texts, texts

ROW = 1_000
"""How much more the rows of a request hold, each than the one before it."""

CONTROLS = frozenset(kind.name for kind in ControlKind)


def held(number: int, shape: tuple[int, ...]) -> np.ndarray:
    """What an input of a request holds, FP32[shape]; without a batch dimension it is a row."""
    array = np.full(shape, number, np.float32)
    if len(shape) > 1 and shape[0] > 1:
        array += np.arange(shape[0], dtype=np.float32)[:, None] * ROW
    return array


class ModelRows:
    """What one model does with the rows of its batches.

    Args:
        misled: called with a text when it is told wrong numbers of elements.
        read: called with each job whose inputs were left in shared memory, and whether they were lost; None for a model
            to which none are left.
    """

    def __init__(
        self, config: ModelConfig, misled: Callable[[str], None], read: Callable[[Job, bool], None] | None = None
    ) -> None:
        self._misled = misled
        self._read = read
        self._layout = BatchLayout(config)
        self._batching = config.max_batch_size > 0

    def execute(self, batch: ExecutionBatch) -> tuple[list[Tensor], list[float]]:
        """The output of each job, and the sum that each was given of its sequence, 0 without one."""
        if self._read is not None and names_regions(batch.jobs):
            return self._execute_in_regions(batch, self._read)
        jobs, inputs = self._layout.gather(batch.jobs)
        sums = read_texts(inputs[SUM]) if SUM in inputs else None
        found = [0.0] * len(jobs) if sums is None else [float(each) for each in np.ravel(sums)]
        if COUNTS in inputs:
            self._look_at_counts(batch, inputs[COUNTS])
        output = _total(0 if sums is None else sums, inputs)
        return [tensors[0] for _, tensors in self._layout.split(jobs, [output])], found

    def _execute_in_regions(
        self, batch: ExecutionBatch, read: Callable[[Job, bool], None]
    ) -> tuple[list[Tensor], list[float]]:
        """The same; jobs whose inputs cannot be read are failed, and have no output."""
        left = [job for job in batch.jobs if any(isinstance(each, RegionTensor) for each in job.inputs.values())]
        regions = RegionBatch(self._layout, batch.jobs, in_place=True)
        jobs, inputs = regions.gather()
        shares = regions.settle(self._layout.split(jobs, [_total(0, inputs)])) if jobs else []
        for job in left:
            read(job, job.answered)
        outputs = {job: tensors[0] for job, tensors in shares}
        nothing = Tensor("OUTPUT0", FP32, (0,), b"")
        return [outputs.get(job, nothing) for job in batch.jobs], [0.0 for _ in batch.jobs]

    def _look_at_counts(self, batch: ExecutionBatch, told: np.ndarray) -> None:
        counts = [float(job.inputs["INPUT0"].array.size) for job in batch.jobs]
        truth = [sum(counts[: index + 1]) for index in range(len(counts))]
        if told.tolist() != truth:
            self._misled(f"{batch!r} has {truth} elements, job by job; its model was told {told.tolist()}")

    def keep(self, jobs: list[Job], outputs: list[Tensor]) -> None:
        """Keep the new sums of these jobs, together."""
        sums = np.stack([output.array.flat[:1] for output in outputs]) if self._batching else outputs[0].array.flat[:1]
        datatype = jobs[0].inputs[SUM].datatype
        kept = texts(sums) if datatype is BYTES else sums
        keep_states(jobs, [Tensor(NEW_SUM, datatype, kept.shape, array=kept)], self._batching)


def answer_alone(job: Job) -> Tensor:
    """The output of a job that is executed by itself."""
    output = _total(0, {name: tensor.array for name, tensor in job.inputs.items()})
    return Tensor("OUTPUT0", FP32, output.shape, array=output)


def _total(state: np.ndarray | int, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """What is answered to these inputs, FP32 of the shape of the first."""
    if EXTRA in inputs:
        state = state + inputs[EXTRA].astype(np.float32)
    return answer(state, [inputs[name] for name in inputs if name.startswith("INPUT")])


def stray_data(job: Job) -> str:
    """What a row that only fills a gap holds of a client's data: a text, empty for nothing
    (docs/reference/sequences.md)."""
    for name, tensor in job.inputs.items():
        if name not in CONTROLS and tensor.array.any():
            return f"{name} of {job!r}, which only fills a row, holds {tensor.array.ravel()[:4].tolist()}"
    return ""
