"""The options about traces that a server starts with: ``--trace-config`` (docs/reference/traces.md#settings)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

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
        schedule_delay_ms: time between two exports.
        max_export_batch_size: most spans of one export.
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
