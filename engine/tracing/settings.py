"""Settings of traces: those that a server starts with (``--trace-config``), and those that are at work, which count
(docs/reference/traces.md#settings)."""

from __future__ import annotations

import enum
from dataclasses import InitVar, dataclass, field

UNLIMITED = -1
"""A count of traces that never runs out."""

DEFAULT_RATE = 1000


class TraceMode(enum.Enum):
    """Where traces go: files of Triton's, or spans that are sent to an OpenTelemetry collector."""

    TRITON = "triton"
    OPENTELEMETRY = "opentelemetry"


class TraceLevel(enum.Flag):
    """What is noted of a request. The names are those of the protocols."""

    OFF = 0
    TIMESTAMPS = 1
    TENSORS = 2

    def names(self) -> list[str]:
        """As the protocols list them; ``OFF`` alone if there is nothing else."""
        return [level.name or "" for level in TraceLevel if level in self] or ["OFF"]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of the mode opentelemetry (docs/reference/traces.md#opentelemetry).

    Attributes:
        url: where spans are posted to, by OTLP over HTTP.
        resource: attributes of the server, as (key, value).
        max_queue_size: spans that may wait; what comes while they do is dropped.
        given: the options that clients are told about, as (name, value), in this order.
    """

    url: str = "http://localhost:4318/v1/traces"
    resource: tuple[tuple[str, str], ...] = (("service.name", "triton-inference-server"),)
    max_queue_size: int = 2048
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512
    given: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Settings at start.

    Attributes:
        level, rate, count, log_frequency: what global settings begin with, and are cleared to.
        file: where traces are written to; needed in the mode triton.
        export: for the mode opentelemetry.
    """

    mode: TraceMode = TraceMode.TRITON
    level: TraceLevel = TraceLevel.OFF
    rate: int = DEFAULT_RATE
    count: int = UNLIMITED
    log_frequency: int = 0
    file: str = ""
    export: ExportOptions = field(default_factory=ExportOptions)


# One trace setting at work: it decides which requests are traced, and knows how many of them are still under way.
#
# Rules:
#  1. Of every `rate` requests the last is traced, while `count` lasts; each trace takes one of it.
#  2. A request with a context of its caller's (mode opentelemetry) is traced whatever rate and count are, and takes
#     nothing of either, as long as the level is not OFF.
#  3. Nothing is traced in the mode triton without a file to write to.
#  4. A setting is never changed, but replaced; the new one counts from the beginning. The old one is *retired*: it
#     takes no new traces, and is over when the last one under way has come back.
#
# States: ACTIVE --count used up--> EXHAUSTED; both --replaced--> RETIRED.


@dataclass(slots=True, eq=False, repr=False)
class TraceSetting:
    """The setting of the server, or of one model.

    Attributes:
        level, rate, log_frequency: as set.
        count: traces that may still be taken; -1 for any number.
        own: names of the fields that were set for this one; the others follow the setting behind it.
        notes: what of the level traces really tell; spans have no tensors.
        open: traces taken that have not come back.
        retired: another has taken its place.
    """

    config: InitVar[TraceConfig]
    level: TraceLevel
    rate: int
    count: int
    log_frequency: int
    own: frozenset[str]
    open: int = field(default=0, init=False)
    notes: TraceLevel = field(init=False)
    _seen: int = field(default=0, init=False)
    retired: bool = field(default=False, init=False)
    _can_sample: bool = field(init=False)

    def __post_init__(self, config: TraceConfig) -> None:
        exporting = config.mode is TraceMode.OPENTELEMETRY
        self.notes = self.level & TraceLevel.TIMESTAMPS if exporting else self.level
        self._can_sample = bool(self.notes and self.rate) and (exporting or bool(config.file))

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
        return self.open == 0 and (self.retired or self.count == 0)

    def __repr__(self) -> str:
        state = "retired" if self.retired else "active" if self.count else "exhausted"
        level = "|".join(self.level.names())
        return f"<TraceSetting {state}: {level}, every {self.rate}, {self.count} left, {self.open} open>"
