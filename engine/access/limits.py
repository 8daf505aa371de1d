"""How much a caller may ask for, and what it has asked for.

Rules:
 1. A bucket holds up to `burst` tokens and gains `rate` of them a second; at first it is full. A request takes one.
 2. Bytes have a bucket of their own. A request is admitted if that is not empty, and may leave it in debt: so a request
    that is larger than the burst is not impossible, and the next one waits until the debt is paid.
 3. A request that is refused for any limit takes nothing from the others.
 4. New limits keep what the old ones had counted: requests in flight, and what was taken from a bucket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import LimitExceededError, RefusalReason

_IN_FLIGHT_RETRY_S = 1.0
_LONGEST_RETRY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """Limits of one caller; None for none.

    Attributes:
        requests_per_s, burst: of requests; the burst is at least 1.
        in_flight: requests that are admitted and not answered.
        bytes_per_s, bytes_burst: of what requests hold.
    """

    requests_per_s: float | None = None
    burst: float = 1.0
    in_flight: int | None = None
    bytes_per_s: float | None = None
    bytes_burst: float = 1.0


UNLIMITED = CallerLimits()


class TokenBucket:
    """Tokens that come at a rate (rule 1)."""

    __slots__ = ("_at_s", "_burst", "_rate", "tokens")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._at_s = now_s
        self.tokens = burst

    def refill(self, now_s: float) -> float:
        """Gain what has come since the last look; how many tokens there are. A clock that goes back brings nothing."""
        gained_s = now_s - self._at_s
        if gained_s > 0:
            tokens, burst = self.tokens + gained_s * self._rate, self._burst
            self.tokens = tokens if tokens < burst else burst  # noqa: FURB136 - faster, which every request has of it
            self._at_s = now_s
        return self.tokens

    def wait_s(self, needed: float) -> float:
        """Seconds until there are so many tokens, from the last look on."""
        return max(0.0, (needed - self.tokens) / self._rate)

    def change(self, rate: float, burst: float, now_s: float) -> None:
        """Another rate and burst; what was taken stays taken."""
        self.refill(now_s)
        taken = self._burst - self.tokens
        self._rate, self._burst, self.tokens = rate, burst, burst - taken


class CallerUsage:
    """What one caller has asked for, and whether it may ask for more. Lives as long as its name is in the rules, or a
    request of it is in flight.

    Attributes:
        number: see `Caller.number`.
        requests: that were admitted.
        in_flight: that were not completed yet.
        refused: requests by reason.
    """

    __slots__ = ("_bytes", "_limits", "_requests", "in_flight", "limited", "name", "number", "refused", "requests")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.requests = 0
        self.in_flight = 0
        self.refused: dict[RefusalReason, int] = {}
        self.limited = False
        self._limits = UNLIMITED
        self._requests: TokenBucket | None = None
        self._bytes: TokenBucket | None = None

    def limit(self, limits: CallerLimits, now_s: float) -> None:
        """Apply these limits from now on (rule 4)."""
        self._limits = limits
        self.limited = limits != UNLIMITED
        self._requests = _changed(self._requests, limits.requests_per_s, limits.burst, now_s)
        self._bytes = _changed(self._bytes, limits.bytes_per_s, limits.bytes_burst, now_s)

    def admit(self, nbytes: int, now_s: float) -> None:
        """Count a request in.

        Raises:
            LimitExceededError: a limit does not allow it now; says when it will.
        """
        if self.limited:
            most, requests, sizes = self._limits.in_flight, self._requests, self._bytes
            if most is not None and self.in_flight >= most:
                raise self._refusal(f"{most} requests in flight", _IN_FLIGHT_RETRY_S)
            if requests is not None and requests.refill(now_s) < 1:
                raise self._too_fast(now_s)
            if sizes is not None:
                if sizes.refill(now_s) <= 0:
                    raise self._too_fast(now_s)
                sizes.tokens -= nbytes
            if requests is not None:
                requests.tokens -= 1
        self.requests += 1
        self.in_flight += 1

    def complete(self) -> None:
        """A request that was admitted is answered, or given up."""
        assert self.in_flight > 0, f"{self.name}: more completed than admitted"
        self.in_flight -= 1

    def _too_fast(self, now_s: float) -> LimitExceededError:
        """Of the buckets that have too little, the one that takes longest to fill says how long to wait."""
        limits, requests, sizes = self._limits, self._requests, self._bytes
        waits = []
        if requests is not None and requests.refill(now_s) < 1:
            waits.append((requests.wait_s(1), f"{limits.requests_per_s:g} requests a second"))
        if sizes is not None and sizes.refill(now_s) <= 0:
            waits.append((sizes.wait_s(1), f"{limits.bytes_per_s:g} bytes a second"))
        wait_s, limit = max(waits)
        return self._refusal(limit, min(wait_s, _LONGEST_RETRY_S))

    def _refusal(self, limit: str, wait_s: float) -> LimitExceededError:
        text = f"caller '{self.name}' has reached its limit of {limit}; try again in {max(1, math.ceil(wait_s))} s"
        return LimitExceededError(text, retry_after_s=wait_s)


def _changed(bucket: TokenBucket | None, rate: float | None, burst: float, now_s: float) -> TokenBucket | None:
    if rate is None:
        return None
    if bucket is None:
        return TokenBucket(rate, burst, now_s)
    bucket.change(rate, burst, now_s)
    return bucket
