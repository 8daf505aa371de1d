"""One trace setting at work: it decides which requests are traced, and knows how many of them are still under way.

Rules:
 1. Of every `rate` requests the last is traced, while `count` lasts; each trace takes one of it.
 2. A request with a context of its caller's (mode opentelemetry) is traced whatever rate and count are, and takes
    nothing of either, as long as the level is not OFF.
 3. Nothing is traced in the mode triton without a file to write to.
 4. A setting is never changed, but replaced; the new one counts from the beginning. The old one is *retired*: it takes
    no new traces, and is over when the last one under way has come back.

States: ACTIVE --count used up--> EXHAUSTED; both --replaced--> RETIRED.
"""

from __future__ import annotations

import enum

from .config import TraceConfig, TraceLevel, TraceMode


class SettingState(enum.Enum):
    ACTIVE = "active"
    EXHAUSTED = "exhausted"
    RETIRED = "retired"


class TraceSetting:
    """The setting of the server, or of one model.

    Attributes:
        level, rate, log_frequency: as set.
        count: traces that may still be taken; -1 for any number.
        own: names of the fields that were set for this one; the others follow the setting behind it.
        notes: what of the level traces really tell; spans have no tensors.
        open: traces taken that have not come back.
    """

    __slots__ = (
        "_can_sample",
        "_retired",
        "_seen",
        "count",
        "level",
        "log_frequency",
        "notes",
        "open",
        "own",
        "rate",
    )

    def __init__(
        self, config: TraceConfig, level: TraceLevel, rate: int, count: int, log_frequency: int, own: frozenset[str]
    ) -> None:
        self.level = level
        self.rate = rate
        self.count = count
        self.log_frequency = log_frequency
        self.own = own
        self.open = 0
        self._seen = 0
        self._retired = False
        exporting = config.mode is TraceMode.OPENTELEMETRY
        self.notes = level & TraceLevel.TIMESTAMPS if exporting else level
        self._can_sample = bool(self.notes and rate) and (exporting or bool(config.file))

    @property
    def state(self) -> SettingState:
        if self._retired:
            return SettingState.RETIRED
        return SettingState.EXHAUSTED if self.count == 0 else SettingState.ACTIVE

    @property
    def can_sample(self) -> bool:
        """Whether any request at all may be traced by rule 1."""
        return self._can_sample and self.count != 0

    def sample(self) -> bool:
        """Whether the request that has come is to be traced (rule 1)."""
        if not self.can_sample:
            return False
        self._seen += 1
        if self._seen < self.rate:
            return False
        self._seen = 0
        if self.count > 0:
            self.count -= 1
        return True

    def give_back(self, was_sampled: bool) -> None:
        """The last `sample`, which gave this, does not count: the request comes again."""
        if not was_sampled:
            self._seen = max(0, self._seen - 1)
            return
        self._seen = self.rate - 1
        if self.count >= 0:
            self.count += 1

    @property
    def is_complete(self) -> bool:
        """No trace will come back any more."""
        return self.open == 0 and (self._retired or self.count == 0)

    def retire(self) -> None:
        """Another has taken its place."""
        self._retired = True

    def __repr__(self) -> str:
        return (
            f"<TraceSetting {self.state.value}: {'|'.join(self.level.names())}, every {self.rate}, {self.count} left, "
            f"{self.open} open>"
        )
