"""Generating models of a planned run: the server's own instances, step executors and iteration scheduler.

Rules:
 1. The network is played: a step takes the time that the plan says for what it computes, and what is drawn does not
    matter, since a text has as many tokens as the log says.
 2. Answers come in the end. What it costs the event loop to send a token to each text of a step is counted for the
    step, when the next one has begun: as the server does it.
 3. A step is longer by a part (`PlannedSteps.held_up`) of what the event loop works meanwhile.
 4. Steps after a rest take longer (`PlannedSteps.rested`). A short rest while those after a longer one still do costs
    the larger of the two, and not their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ...engine.backends.generation.instance import GenerationInstance
from ...engine.backends.generation.network import Network
from ...engine.backends.generation.tokenizer import Tokenizer
from ...engine.backends.interface import InstanceSpec
from ...engine.generation.blocks import BlockMemory
from ...engine.generation.iterations import IterationLimits, Step
from ...engine.generation.records import GenerationRecord
from ...engine.job import Job

StepTime = Callable[[Step, Random], float]
"""Seconds that a step takes while there are cores enough, with chance of the model's own."""

RestTime = Callable[[float, int], float]
"""Seconds that a step takes more: the one of this number, counted from 0, after so many seconds without a step."""

_VOCABULARY = 1 << 10


def no_more(_rest_s: float, _number: int) -> float:
    """After a rest steps take what others take."""
    return 0.0


@dataclass(frozen=True, slots=True)
class PlannedSteps:
    """A generating model, as a plan has it.

    Attributes:
        seconds: what a step takes.
        limits: of its steps, for each instance; and of memory: so many `blocks` of so many tokens (`size`).
        shares: beginnings are shared.
        cores: that a step uses.
        held_up: see rule 3.
        on_device: steps take no core of the machine.
        rested: see rule 4.
    """

    seconds: StepTime
    limits: IterationLimits
    blocks: int
    size: int
    shares: bool = True
    cores: float = 1.0
    held_up: float = 0.0
    on_device: bool = False
    rested: RestTime = no_more


class _PlayedNetwork(Network):
    """A network to an instance."""

    def __init__(self, context: int) -> None:
        self.vocabulary, self.context, self.adapters = _VOCABULARY, context, ()
        self._step: Step | None = None

    def taken(self) -> Step | None:
        """The step that it was given since this was asked last."""
        step, self._step = self._step, None
        return step

    def run(self, step: Step) -> np.ndarray:
        self._step = step
        return np.zeros((sum(piece.draws for piece in step.pieces), 1), np.float32)


class _PlayedTokenizer(Tokenizer):
    def __init__(self) -> None:
        super().__init__(Path("played"))

    def encode(self, text: str) -> list[int]:
        return [1] * max(1, len(text))

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        del special
        return "x" * len(tokens)


class PlayedInstance(GenerationInstance):
    """An instance of a generating model in a planned run.

    Attributes:
        model: whose.
        network: its own.
        note: called with each job that is over, and what came of it.
    """

    def __init__(self, name: str, model: ModelInSteps) -> None:
        planned = model.planned
        memory = BlockMemory(planned.blocks, planned.size, shares=planned.shares)
        self.model = model
        self.network = _PlayedNetwork(planned.limits.context)
        self.note: Callable[[Job, GenerationRecord], None] = lambda _job, _record: None
        super().__init__(name, self.network, _PlayedTokenizer(), planned.limits, memory, frozenset())

    def _note_end(self, request: Any) -> None:
        super()._note_end(request)
        if request.job.generated is not None:
            self.note(request.job, request.job.generated)


class StepRests:
    """What the steps of one instance take more after rests (`steps`, rule 4)."""

    def __init__(self, rested: RestTime) -> None:
        self._rested = rested
        self._rest_s = math.inf  # of the last rest that counts
        self._since = -1  # steps since that, but for the first
        self._ended_s = -math.inf

    def more_s(self, now_s: float) -> float:
        """A step begins now; seconds that it takes more."""
        rest_s = now_s - self._ended_s
        self._since += 1
        still_s, more_s = self._rested(self._rest_s, self._since), self._rested(rest_s, 0)
        if more_s > still_s:
            self._rest_s, self._since = rest_s, 0
        return max(still_s, more_s)

    def ends(self, now_s: float) -> None:
        """It is over."""
        self._ended_s = now_s


class ModelInSteps:
    """What the instances of one model share.

    Attributes:
        index: of the model.
        instances: that have been made.
    """

    def __init__(self, name: str, planned: PlannedSteps, index: int, seed: int) -> None:
        self.name = name
        self.planned = planned
        self.index = index
        self.chance = Random(f"{seed} {name}")
        self.instances = 0

    def make(self, spec: InstanceSpec) -> PlayedInstance:
        """Another instance."""
        return PlayedInstance(spec.name, self)
