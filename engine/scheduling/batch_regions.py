"""Batches whose tensors are in shared memory of the machine, executed on a thread.

Rules:
 1. What a framework may read in place, it reads in place if the batch has one job. Otherwise inputs are copied once,
    from the regions to the batch's arrays.
 2. An output that the framework can write in place it does write there (`RegionBatch.lend_places`), unless it reads
    or writes something else in the same place: a client may want an output where its input is. Others are copied
    to their places once, on this thread, so that who encodes the answer finds them there.
 3. Regions are the clients': an input that is lost meanwhile, and an output that cannot be written, fail their own job.
    The others go on. A job that cannot be read has zeros for its input, so that all keep their rows.
 4. Outputs are put in place if only clients read them, and their clients still wait: rule 8 of `batch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..config.model import Dims
from ..errors import TriremeError
from ..job import Job
from ..memory.regions import Loan, RegionSlice
from ..memory.tensors import PlacedOutput, RegionTensor, put_in_place
from ..tensor import Tensor
from .batch import BatchLayout, Inputs, Jobs, Shares


def names_regions(jobs: Jobs) -> bool:
    """Whether a job has an input or an output in shared memory."""
    for job in jobs:
        request = job.request
        if request.in_regions or request.output_places is not None:
            return True
    return False


@dataclass(slots=True, eq=False)
class LentOutput:
    """Where a framework is to write an output.

    Attributes:
        array: of the output's shape and dtype.
        placed: what stands for it afterwards.
    """

    array: np.ndarray
    placed: PlacedOutput
    place: RegionSlice
    loan: Loan

    def check(self, name: str) -> None:
        """Look whether what was written is in the region.

        Raises:
            InvalidArgumentError: the segment was cut short.
            InternalError: there was no memory for it.
        """
        try:
            self.loan.check()
        except OSError as error:
            raise self.place.unwritable(name, error) from error


class RegionBatch:
    """One batch.

    Args:
        jobs: at least one.
        in_place: the framework may read inputs, and write outputs, that change meanwhile.

    Attributes:
        jobs: those that `gather` left.
    """

    def __init__(self, layout: BatchLayout, jobs: Jobs, *, in_place: bool) -> None:
        self.jobs = jobs
        self._layout = layout
        self._in_place = in_place
        self._borrowed: list[tuple[Job, RegionTensor]] = []
        self._lent: dict[str, LentOutput] = {}

    def gather(self) -> tuple[Jobs, Inputs]:
        """See `BatchLayout.gather`. No jobs if none can be read."""
        for job in self.jobs:
            if job.request.in_regions:
                self._borrow(job)
        if all(job.answered for job in self.jobs):
            return [], {}
        alone = self._in_place and len(self.jobs) == 1
        copies = bool(self._borrowed) and not alone
        self.jobs, inputs = self._layout.gather(self.jobs, np.empty if copies else None)
        return self.jobs, inputs

    @property
    def rows(self) -> int:
        """Of the batch."""
        return sum([job.rows for job in self.jobs])

    def take_back(self) -> None:
        """The framework has not written the outputs that it was to write in place."""
        self._lent.clear()

    def _borrow(self, job: Job) -> None:
        try:
            for tensor in job.inputs.values():
                if isinstance(tensor, RegionTensor):
                    tensor.borrow()
                    self._borrowed.append((job, tensor))
        except TriremeError as error:
            job.fail(error)
            job.inputs = {name: _zeros(tensor) for name, tensor in job.inputs.items()}

    def lend_places(self, shapes: Mapping[str, Dims]) -> Mapping[str, LentOutput]:
        """Where outputs can be written in place, by name.

        Args:
            shapes: of outputs, those of the whole batch, as the model makes them.
        """
        if not self._in_place or len(self.jobs) != 1 or not self._layout.wants_place(self.jobs):
            return {}
        for name, placed in zip(shapes, self._layout.place(self.jobs, None, shapes), strict=True):
            if placed is not None:
                (tensor,) = placed.tensors
                if self._is_used(tensor.place):
                    continue
                loan = tensor.place.lend()
                dtype = tensor.datatype.storage
                if loan is not None and not loan.array.ctypes.data % dtype.alignment:
                    array = loan.array.view(dtype).reshape(shapes[name])
                    self._lent[name] = LentOutput(array, placed, tensor.place, loan)
        return self._lent

    def _is_used(self, place: RegionSlice) -> bool:
        """Whether the framework reads inputs, or writes another output, where this output is to be (rule 2)."""
        return any(place.overlaps(tensor.place) for _, tensor in self._borrowed) or any(
            place.overlaps(lent.placed.tensors[0].place) for lent in self._lent.values()
        )

    def settle(self, shares: Shares) -> Shares:
        """The shares of those jobs with which nothing has gone wrong, their outputs in place. The others are failed."""
        for job, tensor in self._borrowed:
            if not job.answered:
                try:
                    tensor.check()
                except TriremeError as error:
                    job.fail(error)
        settled: list[tuple[Job, Sequence[Tensor]]] = []
        for job, tensors in shares:
            if job.answered:
                continue
            try:
                settled.append((job, self._placed(job, tensors)))
            except TriremeError as error:
                job.fail(error)
        return settled

    def _placed(self, job: Job, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        places = job.request.output_places
        if not places or not self._layout.may_place([job]):
            return tensors
        placed: list[Tensor] = []
        for tensor in tensors:
            place = places.get(tensor.name)
            if tensor.name in self._lent:
                self._lent[tensor.name].check(tensor.name)
            elif place is not None and place.gpu is None and not isinstance(tensor, RegionTensor):
                nbytes = tensor.nbytes
                put_in_place(tensor, place)
                tensor = RegionTensor(tensor.name, tensor.datatype, tensor.shape, place.first(nbytes))
            placed.append(tensor)
        return placed


def _zeros(tensor: Tensor) -> Tensor:
    """A tensor like one that cannot be read."""
    if not isinstance(tensor, RegionTensor):
        return tensor
    return Tensor(tensor.name, tensor.datatype, tensor.shape, np.zeros(tensor.nbytes, np.uint8).data)
