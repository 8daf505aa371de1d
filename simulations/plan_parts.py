"""What plans are made of: parts of models, and of the machine (`plan`)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..engine.config.model import QueuePolicy, TimeoutAction


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """The queue policy of a priority level; level 0 is the default one."""

    level: int = 0
    delay: bool = False
    timeout_us: int = 0
    override: bool = False
    max_queue_size: int = 0

    def policy(self) -> QueuePolicy:
        action = TimeoutAction.DELAY if self.delay else TimeoutAction.REJECT
        return QueuePolicy(action, self.timeout_us, self.override, self.max_queue_size)


@dataclass(frozen=True, slots=True)
class SequencesPlan:
    """That a model is stateful. Delay and preferred sizes are the model's.

    Attributes:
        oldest: the oldest strategy instead of the direct one.
        candidates: oldest: sequences that an instance takes on at once; 0 for as many as a batch has rows.
        utilization: direct: the part of the slots that need not wait for the delay.
        idle_us: how long a sequence may be silent.
        sums: the server keeps the sum of a sequence's requests, which are answered with it (implicit state).
        same_buffer: of `sums`: it is kept in one place.
        texts: of `sums`: it is kept as a text.
        iterative: a request may be executed again and again before it is answered.
    """

    oldest: bool = False
    candidates: int = 0
    utilization: float = 0.0
    idle_us: int = 1_000_000
    sums: bool = False
    same_buffer: bool = False
    texts: bool = False
    iterative: bool = False


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """So many of a resource: what there is, or what an instance holds while it executes."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """A GPU.

    Attributes:
        units: computations that it can do at once.
        row_in_ns, row_out_ns: time that a copy takes for a row of one input, or output.
        memory_bytes: for arrays; 0 for plenty.
        ill_ns: how long nothing can be begun on it when it has fallen ill.
    """

    units: int = 1
    row_in_ns: int = 1_000_000
    row_out_ns: int = 1_000_000
    memory_bytes: int = 0
    ill_ns: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step of an ensemble. Its output is a tensor, named by the number of the step, counted from 1.

    Attributes:
        takes: for each input of its model, the tensor that it gets; 0 is the input of the ensemble.
    """

    model: str
    takes: tuple[int, ...] = (0,)


class View(enum.Enum):
    """What a client asks about the server: methods of `Management`."""

    LIVE = "live"
    READY = "ready"
    MODEL_READY = "model_ready"
    METADATA = "server_metadata"
    STATISTICS = "model_statistics"
    INDEX = "repository_index"


@dataclass(frozen=True, slots=True)
class RegionChange:
    """That clients of front ends register their memory anew, and when.

    Attributes:
        share: of all that they need; 0 if it is only unregistered.
    """

    at_ns: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """Such a question, about a model if it is about one, and when it is asked."""

    at_ns: int
    view: View
    model: str
