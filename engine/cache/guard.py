"""Whether to ask a cache at all, after it has failed.

Rules:
 1. A cache that works is asked.
 2. One that has failed is left alone for `RETRY_S`; then one request asks, and the others only when that one got an
    answer.
 3. The log says once that it is gone, and once that it is back.

States: WORKING ─(failed)▶ RESTING ─(`RETRY_S` over, a request comes)▶ TRYING ─(worked)▶ WORKING or ─(failed)▶ RESTING.
TRYING is RESTING begun anew, so a try without a result costs another `RETRY_S`.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("trireme.cache")

RETRY_S = 1.0


class CacheGuard:
    """One cache's.

    Args:
        name: the cache's, for people.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._rests_until_s: float | None = None

    @property
    def working(self) -> bool:
        return self._rests_until_s is None

    def admits(self, now_s: float) -> bool:
        """Whether the request at hand may ask the cache."""
        if self._rests_until_s is None:
            return True
        if now_s < self._rests_until_s:
            return False
        self._rests_until_s = now_s + RETRY_S
        return True

    def worked(self) -> None:
        """The cache has answered."""
        if self._rests_until_s is not None:
            self._rests_until_s = None
            logger.info("response cache '%s' answers again", self._name)

    def failed(self, reason: str, now_s: float) -> None:
        """It has not, for this reason."""
        if self._rests_until_s is None:
            logger.error("response cache '%s' fails, requests go on without it: %s", self._name, reason)
        self._rests_until_s = now_s + RETRY_S

    def __repr__(self) -> str:
        return f"<CacheGuard of {self._name}: {'working' if self.working else 'resting'}>"
