"""The server's own `GenerationInstance` on a network that is a rule, watched step by step.

The memory of keys and values is played (`generating.PlayedMemory`): what is computed is read from the places where it
should be. A step takes the time that a cost model says, and faults strike it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio

from ..engine.backends.generation.instance import GenerationInstance
from ..engine.backends.generation.network import Network
from ..engine.generation.blocks import BlockMemory
from ..engine.generation.iterations import IterationLimits, Step
from ..engine.generation.requests import Generation, GenerationState
from ..engine.job import ExecutionBatch, Job
from .generated_texts import END_OF_TEXT, LETTERS, SPELLING, scripted_logits
from .generating import PlayedMemory


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """What the instances of a model have in common.

    Attributes:
        fixed_s, token_s: of a step: its time, and more for each of its tokens.
    """

    limits: IterationLimits
    blocks: int
    block_size: int
    shares: bool
    fixed_s: float
    token_s: float

    @property
    def room(self) -> int:
        """Tokens that a text may have, its prompt included."""
        return min(self.limits.context, self.blocks * self.block_size)

    def seconds(self, step: Step) -> float:
        return self.fixed_s + self.token_s * step.tokens


class ScriptedNetwork(Network):
    """A network to an instance.

    Args:
        amid: called with each step that is computed, before anything of it is done, and when all of it is; may raise.
        broken: whether the logits of a generation are no numbers.
    """

    def __init__(
        self,
        model: ScriptedModel,
        played: PlayedMemory,
        amid: Callable[[Step, bool], None],
        broken: Callable[[Generation], bool],
    ) -> None:
        self.vocabulary, self.context, self.adapters = LETTERS, model.limits.context, ()
        self._played = played
        self._amid = amid
        self._broken = broken

    def run(self, step: Step) -> np.ndarray:
        self._amid(step, False)
        self._played.move(step)
        self._played.compute(step)
        drawing = [piece for piece in step.pieces if piece.draws]
        logits = np.zeros((len(drawing), self.vocabulary), np.float32)
        for row, piece in enumerate(drawing):
            broken = self._broken(piece.generation)
            logits[row] = np.nan if broken else scripted_logits(step.tokens_of(piece, 0))
        self._amid(step, True)
        return logits


def number_of(job: Job) -> int:
    """Of its request."""
    return int(job.request.parameters["number"])


class WatchedInstance(GenerationInstance):
    """An instance that is watched.

    Args:
        begins: called with each step that begins, the time, and the requests in it that have a final answer then.

    Attributes:
        spec_name: its name.
        stepping: a step is under way.
        lost_s: when it died, or began to hang.
        noticed_s: when that must have been noticed.
        closed: it has been closed.
        jobs: what it has been given, and has not said to be over.
        followed: steps that the thread went on with by itself.
    """

    def __init__(
        self,
        name: str,
        model: ScriptedModel,
        network: ScriptedNetwork,
        begins: Callable[[WatchedInstance, Step, float, Sequence[int]], None],
    ) -> None:
        memory = BlockMemory(model.blocks, model.block_size, shares=model.shares)
        super().__init__(name, network, SPELLING, model.limits, memory, frozenset({END_OF_TEXT}))
        self.spec_name = name
        self.model = model
        self.stepping = self.closed = False
        self.lost_s: float | None = None
        self.noticed_s = math.inf
        self.jobs: dict[Job, None] = {}
        self._begins = begins
        self.followed = 0
        self._following: deque[tuple[float, Sequence[int]]] = deque(maxlen=1)  # begun, and not told of

    def admit(self, batch: ExecutionBatch, over: Callable[[], None]) -> None:
        (job,) = batch.jobs
        self.jobs[job] = None

        def told() -> None:
            del self.jobs[job]
            over()

        super().admit(batch, told)

    def begin_step(self, now_s: float) -> Any:
        work = super().begin_step(now_s)
        self.stepping = work is not None
        if work is not None and work.step is not None:
            self._begins(self, work.step, now_s, self._answered(work.step))
        return work

    def follow(self, step: Any, result: Any) -> Any:
        following = super().follow(step, result)
        if following is not None and following.step is not None:
            self._following.append((trio.current_time(), self._answered(following.step)))
        return following

    def end_step(self, step: Any, result: Any) -> None:
        self.stepping = result.following is not None
        super().end_step(step, result)
        if self.stepping:
            self.followed += 1
            self._begins(self, result.following.step, *self._following.popleft())

    def fail_step(self, step: Any, error: Any) -> None:
        self.stepping = False
        super().fail_step(step, error)

    def close(self) -> None:
        self.closed = True
        super().close()

    # ---- what it has in hand ----

    @property
    def running(self) -> list[Generation]:
        """In order."""
        return [each for each in self.core if each.state is GenerationState.RUNNING]

    @property
    def has_work(self) -> bool:
        """Whether something is to be computed."""
        return any(True for _ in self.core) or any(not request.gone for request in self._new)

    def number_of(self, generation: Generation) -> int:
        """Of the request that a generation belongs to."""
        return number_of(self._request_of(generation).job)

    def _answered(self, step: Step) -> Sequence[int]:
        """Numbers of requests in a step that have their final answer."""
        jobs = [self._request_of(piece.generation).job for piece in step.pieces]
        return [number_of(job) for job in jobs if job.answered]

    def untold(self) -> list[int]:
        """Numbers of requests whose clients could have text that they have not been given."""
        found = []
        for request in self._requests.values():
            of, window = request.asked, request.job.window
            crowded = window is not None and window.crowded
            # One that is gone may be in a last step, whose text is not sent.
            fresh = not request.gone and any(choice.ready for choice in request.choices)
            if of is not None and of.stream and not crowded and fresh:
                found.append(number_of(request.job))
        return found

    def left(self) -> str:
        """What it still has, though all is over; nothing if all is well."""
        memory = self.core.memory
        if self._requests or self._new:
            return f"{len(self._requests) + len(self._new)} requests"
        if memory.free != memory.count:
            return f"{memory.count - memory.free} blocks"
        if sorted(self.core._unheld) != list(range(self.core.limits.held)):
            return "blocks of the host"
        return ""
