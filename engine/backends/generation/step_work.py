"""What an instance of a generating model and its thread hand each other: requests, steps, and what comes of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import TriremeError
from ...generation.iterations import Step
from ...generation.requests import Generation
from ...generation.sampling import DrawnToken
from ...job import Job
from .asked import Asked
from .asked_constraints import Constraint
from .choices import DrawnChoice
from .times import RequestTimes


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """A request that is being answered.

    Attributes:
        looked: what it asks for and its prompt, before it is ready for its first step: the thread's.
        constraint, read: the one that it waits for, and what was read of that.
    """

    job: Job
    over: Callable[[], None]
    asked: Asked | None = None
    prompt: Sequence[int] = ()
    most_new: int = 0
    choices: list[DrawnChoice] = field(default_factory=list)
    times: RequestTimes = field(default_factory=RequestTimes)
    deadline_s: float | None = None
    deadline_ns: float = math.inf
    looked: tuple[Asked, Sequence[int]] | None = None
    constraint: Constraint | None = None
    read: Any = None
    gone: bool = False


class DrawnText(NamedTuple):
    """A token that was drawn, the text that is certain with it, and whether that is at its end."""

    token: DrawnToken
    text: str
    stopped: bool


class StepAhead(NamedTuple):
    """A step that is known before, and the time before which it has to begin; `now_ns` tells the time."""

    step: Step
    limit_ns: float
    now_ns: Callable[[], int]


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """What a step has to do: new requests, and what their generations need; and tokens.

    Attributes:
        ahead: the step after it, if it is known: the event loop leaves it there and may take it back, the thread may
            take it; who is first has it.
    """

    new: Sequence[GenerationRequest]
    step: Step | None
    ahead: deque[StepAhead] = field(default_factory=lambda: deque(maxlen=1))

    def take_ahead(self) -> StepAhead | None:
        """From any thread."""
        try:
            return self.ahead.pop()
        except IndexError:
            return None


@dataclass(slots=True)
class GenerationResult:
    """What came of it: why new requests are refused, which have constraints to be read, and which long prompts; the
    tokens that were drawn, and why none could be; or why nothing was computed; and the step that the thread goes on
    with."""

    refused: dict[GenerationRequest, TriremeError] = field(default_factory=dict)
    unread: dict[GenerationRequest, Constraint] = field(default_factory=dict)
    long: set[GenerationRequest] = field(default_factory=set)
    drawn: dict[Generation, list[DrawnText]] = field(default_factory=dict)
    failed: dict[Generation, TriremeError] = field(default_factory=dict)
    error: TriremeError | None = None
    following: GenerationStep | None = None
