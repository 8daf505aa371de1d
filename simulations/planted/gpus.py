"""Bugs of GPU instances, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.gpu.flights import Flights
from ...engine.gpu.pipeline import Flight, GpuPipeline
from ...engine.scheduling.core import InstanceId
from ...engine.scheduling.dispatcher import Dispatcher


def _memory_back_early(original: Any, flight: Flight, *arguments: Any) -> None:
    """What a GPU uses for a batch is not held until the batch has landed."""
    original(flight, *arguments)
    flight._held = None


def _one_credit_too_many(original: Any, dispatcher: Dispatcher, instance: InstanceId, most: int, **about: Any) -> None:
    """A GPU instance is given one batch more than it has credits."""
    original(dispatcher, instance, most + (most > 1), **about)


def _shared_stream(original: Any, pipeline: GpuPipeline, *arguments: Any) -> None:
    """Outputs are copied on the stream of the inputs, where they hold up those of the next batch."""
    original(pipeline, *arguments)
    pipeline._copies_out = pipeline._copies_in


def _sickness_unnoticed(original: Any, flights: Flights, now_s: float) -> None:
    """No instance looks after batches that do not land."""
    original(flights, now_s)


GPU_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "memory-back-early": (Flight, "__init__", _memory_back_early),
    "one-credit-too-many": (Dispatcher, "attach", _one_credit_too_many),
    "shared-stream": (GpuPipeline, "__init__", _shared_stream),
    "sickness-unnoticed": (Flights, "overdue", _sickness_unnoticed),
}
