"""Bugs of the adaptive batcher, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.job import Job
from ...engine.scheduling.adaptive import AdaptiveBatcher
from ...engine.scheduling.core import InstanceId


def _impatient_refusal(original: Any, batcher: AdaptiveBatcher, job: Job, now: float) -> bool:
    """What is queued on lower levels counts as if it came first."""
    lowest = max(batcher._rows, default=0)
    level_of, batcher._rows = batcher._rows, {0: sum(batcher._rows.values())} if lowest else batcher._rows
    try:
        return original(batcher, job, now)
    finally:
        batcher._rows = level_of


def _forgotten_rows(original: Any, batcher: AdaptiveBatcher, job: Job) -> None:
    """Requests that are rejected as late still count as queued."""
    rows = dict(batcher._rows)
    original(batcher, job)
    batcher._rows = rows


def _time_of_the_dead(original: Any, batcher: AdaptiveBatcher, instance: InstanceId) -> None:
    """The batches of an instance that is gone are still waited for."""
    held = dict(batcher._held)
    original(batcher, instance)
    batcher._held.update(held)


ADAPTIVE_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "impatient-refusal": (AdaptiveBatcher, "would_be_late", _impatient_refusal),
    "forgotten-rows": (AdaptiveBatcher, "_reject_as_late", _forgotten_rows),
    "time-of-the-dead": (AdaptiveBatcher, "instance_gone", _time_of_the_dead),
}
