"""What is generated: one continuation of a prompt, and what it has come to."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from .blocks import BlockTable


class GenerationState(enum.Enum):
    """Where a generation is (`iterations`)."""

    PENDING = "pending"
    RUNNING = "running"
    SWAPPED = "swapped"
    OVER = "over"


class GenerationEnd(enum.Enum):
    """Why a generation is over."""

    STOP = "stop"
    """It came to its end: the model's token for that, or a text to stop at."""

    LENGTH = "length"
    """It has as many tokens as it was to have."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Generation:
    """One continuation.

    Args:
        number: of the request that it belongs to.
        tokens: the prompt; tokens are added as they are drawn.
        most_new: so many at most.
        level: of priority; 1 goes before 2.
        deadline_s: when it is too late for it.
        salt: what its keys and values depend on besides its tokens.
        adapter: the name of the one that it is computed with; empty for none. It is in the salt.
        choices: so many continuations of the prompt are wanted. When the first tokens are drawn the others begin, each
            a generation of its own (`choice` 1 and up).

    Attributes:
        order: what comes first: by level, then by arrival, then by choice.
        computed: so many of its tokens are in memory.
        found: so many were there already when it began.
        preemptions: how often it has made room.
        held: numbers of blocks of the host that it is swapped out to.
        end: why it is over.
    """

    number: int
    tokens: list[int]
    most_new: int
    level: int = 1
    deadline_s: float | None = None
    salt: bytes = b""
    adapter: str = ""
    choices: int = 1
    choice: int = 0
    prompt: int = 0
    order: tuple[int, int, int] = (0, 0, 0)
    computed: int = 0
    found: int = 0
    preemptions: int = 0
    state: GenerationState = GenerationState.PENDING
    table: BlockTable | None = None
    held: list[int] = field(default_factory=list)
    end: GenerationEnd | None = None

    def __post_init__(self) -> None:
        self.prompt = self.prompt or len(self.tokens)

    @property
    def new(self) -> Sequence[int]:
        """The tokens that were drawn."""
        return self.tokens[self.prompt :]

    @property
    def missing(self) -> int:
        """Tokens that are to be computed before the next one can be drawn."""
        return len(self.tokens) - self.computed

    @property
    def wide(self) -> int:
        """As how many it counts: its choices share one until their first tokens are drawn."""
        return self.choices if len(self.tokens) == self.prompt else 1
