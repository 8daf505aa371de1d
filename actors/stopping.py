"""How long a server that stops waits for its models.

Rules:
 1. Until its time is over it waits for requests in flight; then, for what is left of that, for models to be unloaded.
 2. However little time is left, idle models get `_GRACE_S` to close. No client waits for that.
 3. No client waits for copies for shadows (`shadows`) either: they were given up, but a batch that executes one cannot
    be ended. However much time is left, models at which nothing else is in flight get `_GRACE_S`, too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from .budget import InflightBudget
from .repository import Repository
from .shadows import Shadows

logger = logging.getLogger("trireme.server")

_GRACE_S = 1.0


async def drain_models(repository: Repository, budget: InflightBudget, shadows: Shadows, timeout_s: float) -> bool:
    """Wait for all models, which have been told to drain.

    Args:
        shadows: which have given their copies up.

    Returns:
        Whether everything was answered and unloaded in time, but for rule 3.
    """

    def unanswered() -> list[str]:
        only_copies = shadows.busy and not budget.statistics().requests
        return [] if only_copies else repository.inflight()

    text = "Timeout %d: Found %d model versions that have in-flight inferences"
    remaining_s = await _count_down(repository, max(0.0, timeout_s), unanswered, text, logging.INFO)
    if not unanswered():
        logger.info("All models are stopped, unloading models")
        if repository.inflight():
            text = "Timeout %d: Found %d model versions that execute copies for shadows"
            await _count_down(repository, _GRACE_S, repository.inflight, text, logging.INFO)
        text = "Timeout %d: Found %d live models and 0 in-flight non-inference requests"
        await _count_down(repository, max(_GRACE_S, remaining_s), repository.living, text, logging.DEBUG)
    return not (unanswered() or repository.living())


async def _count_down(
    repository: Repository, remaining_s: float, pending: Callable[[], list[str]], text: str, level: int
) -> float:
    """Wait until nothing is pending, saying each second, and in the end, how much is, and at `level` what; what
    remains of the time."""
    while True:
        lines = pending()
        logger.info(text, math.ceil(remaining_s), len(lines))
        for line in lines:
            logger.log(level, "%s", line)
        if not lines or remaining_s <= 0:
            return remaining_s
        with trio.move_on_after(min(1.0, remaining_s)) as second:
            while pending():
                await repository.changed()
        if second.cancelled_caught:
            remaining_s = max(0.0, remaining_s - 1)
