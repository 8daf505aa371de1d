"""Forming a batch: how far from the head of the queue a batch may reach, and whether it should go now.

Rules (docs/reference/scheduling.md#forming-a-batch):
 1. Jobs are looked at in queue order, and a batch is a run of them from the head: none overtakes another, none is
    split.
 2. The first job starts the batch, whatever its size.
 3. A further job *closes* the batch and stays outside if it would bring it over max_batch_size, or is not compatible
    with the first.
 4. The best *cut* is where the rows so far last equalled a preferred size; failing that, it is before the job that
    would bring them over the largest preferred size.
 5. When there is nothing more to look at, the first line that applies says what to do:

        a best cut is known, and no delay is over                      send up to the cut; the reason is the cut's
        the batch is closed (rule 3, or max_batch_size is reached)     send all; the reason is why it closed
        a delay is configured, and over                                send all: DELAY
        as many rows as the largest preferred size                     send all: FULL
        no delay is configured, or the model is draining               send all: IDLE, or DRAIN
        otherwise                                                      wait until the delay is over

    The batch's delay counts from the oldest job that was looked at.

Which requests may share a batch (docs/reference/scheduling.md#compatible-requests):
 6. An input with a variable dimension must have one shape throughout a batch (batch dimension aside), unless the
    configuration allows ragged batches of it. Inputs of fixed shape are not compared: validation has checked them.
 7. A shape tensor must also have one content: the model reads it once a batch.
 8. If the model has optional inputs, all requests of a batch must give the same ones.
 9. Implicit states are inputs as well, and must agree in type and shape, which may be others than the configuration
    says: a model decides what it leaves behind.
10. Nothing else matters: neither requested outputs nor parameters nor ids.

The walk can go on where it stopped when jobs arrive at the tail, so a job is usually looked at once.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass

from ..config.model import ModelConfig
from ..job import Job, SealReason

FULL, PREFERRED, DELAY, IDLE, SHAPE, UNBATCHED, DRAIN, _ = SealReason  # members of an enumeration take long to look up


@dataclass(slots=True, eq=False)
class Compatibility:
    """Gives each job a signature; jobs with equal signatures may share a batch.

    Args:
        shapes: inputs whose shapes, batch dimension aside, must agree (rule 6).
        contents: shape tensors: inputs without a batch dimension whose shape and content must agree (rule 7).
        same_inputs: whether the sets of input names must agree (rule 8).
        states: whether implicit states must agree (rule 9).
    """

    shapes: tuple[str, ...]
    contents: tuple[str, ...] = ()
    same_inputs: bool = False
    states: bool = False

    @classmethod
    def of(cls, config: ModelConfig, states: bool = False) -> Compatibility | None:
        """What the model's requests must agree on; None if any of them may share a batch.

        Args:
            states: whether it has implicit states.
        """
        if config.max_batch_size == 0:
            return None  # every request is executed alone
        contents = tuple(tensor.name for tensor in config.input if tensor.is_shape_tensor)
        shapes = tuple(
            tensor.name
            for tensor in config.input
            if -1 in tensor.dims and not tensor.allow_ragged_batch and not tensor.is_shape_tensor
        )
        same_inputs = any(tensor.optional for tensor in config.input)
        return cls(shapes, contents, same_inputs, states) if shapes or contents or same_inputs or states else None

    def signature(self, job: Job) -> Hashable:
        """What the jobs of a batch have in common with this one, which may lack optional inputs."""
        inputs = job.inputs
        parts: list[Hashable] = []
        for name in self.shapes:
            tensor = inputs.get(name)
            parts.append(None if tensor is None else tensor.shape[1:])
        for name in self.contents:
            tensor = inputs.get(name)
            parts.append(None if tensor is None else (tensor.shape, bytes(tensor.buffer)))
        if self.same_inputs:
            parts.append(frozenset(inputs))
        if self.states:
            parts.append(job.state.signature)
        return tuple(parts)


class Formation:
    """The batch that an instance would get: a walk along the queue, job by job.

    Args:
        preferred: preferred sizes, in rows; if there are none, it is `max_rows`.
        max_rows: max_batch_size, at least 1.
        delay_s: how long a batch may wait to grow; 0 for not at all.
        compatibility: what the jobs of a batch must agree on; None for nothing.

    Attributes:
        closed: why no further job can join; None while one can.
        count, rows: of the jobs looked at, those that closed the batch aside.
    """

    __slots__ = (
        "_compatibility",
        "_cut",
        "_cut_reason",
        "_delay_s",
        "_largest",
        "_max_rows",
        "_oldest_s",
        "_preferred",
        "_signature",
        "closed",
        "count",
        "rows",
    )

    def __init__(
        self, preferred: Collection[int], max_rows: int, delay_s: float, compatibility: Compatibility | None
    ) -> None:
        self._preferred = frozenset(preferred or (max_rows,))
        self._largest = max(self._preferred)
        self._max_rows = max_rows
        self._delay_s = delay_s
        self._compatibility = compatibility
        self.rows = 0
        self._cut = 0
        self._cut_reason = FULL
        self._oldest_s = 0.0
        self._signature: Hashable = None
        self.clear()

    def clear(self) -> None:
        """Start again at the head of the queue. The rest is set by its first job."""
        self.count = 0
        self.closed: SealReason | None = None

    def is_complete(self, now: float) -> bool:
        """Whether no job could join the batch that would be sent now, whatever comes, and however long it waits."""
        if not self._delay_s:
            return self.closed is not None or self.rows >= self._largest
        return self.closed is not None and (self._cut in (0, self.count) or now >= self.ripe_s)

    def walk(self, jobs: Iterable[Job]) -> None:
        """Start again, with a queue's jobs from its head."""
        self.clear()
        for job in jobs:
            if not self.add(job):
                break

    def add(self, job: Job) -> bool:
        """Look at the next job (rules 2 to 4).

        Returns:
            Whether to go on; if not, the batch is closed.
        """
        if self.count:
            rows = self.rows + job.rows
            if rows > self._largest:
                if not self._cut:
                    self._cut = self.count
                    self._cut_reason = FULL
                if not self._delay_s:  # the cut will be taken whatever follows, so do not look further
                    self.closed = self._cut_reason
                    return False
            if rows > self._max_rows:
                self.closed = FULL
                return False
            if self._compatibility is not None and self._compatibility.signature(job) != self._signature:
                self.closed = SHAPE
                return False
            if job.enqueued_s < self._oldest_s:
                self._oldest_s = job.enqueued_s
        else:
            rows = job.rows
            self._cut = 0
            self._oldest_s = job.enqueued_s
            if self._compatibility is not None:
                self._signature = self._compatibility.signature(job)
        self.count += 1
        self.rows = rows
        if rows >= self._max_rows:
            self.closed = FULL
        if rows in self._preferred:
            self._cut = self.count
            self._cut_reason = self.closed or PREFERRED
        return self.closed is None

    def decide(self, now: float, draining: bool) -> tuple[int, SealReason] | None:
        """What to do when there is nothing more to look at, or no point in it (rule 5). Needs at least one job.

        Returns:
            How many jobs to send and why, or None to wait until `ripe_s`.
        """
        late = self._delay_s > 0 and now >= self.ripe_s
        if self._cut and not late:
            return self._cut, self._cut_reason
        if self.closed is not None:
            return self.count, self.closed
        if late:
            return self.count, DELAY
        if self.rows >= self._largest:
            return self.count, FULL
        if draining:
            return self.count, DRAIN
        return None if self._delay_s else (self.count, IDLE)

    @property
    def ripe_s(self) -> float:
        """When the delay is over for the oldest job looked at."""
        return self._oldest_s + self._delay_s
