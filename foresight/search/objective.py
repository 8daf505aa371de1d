"""What a plan is to reach: bounds that must hold, and what is best among all settings that keep them.

    p99<50ms                  of all requests
    digits:p99<50ms,p50<5ms   of one model's, and of all
    ttft_p95<500ms,itl_p99<80ms
    refused<0.1%,throughput>100/s

Rules:
 1. Bounds are separated by commas. Each is `MEASURE<VALUE` or `MEASURE>VALUE`, with `MODEL:` before it if it is of one
    model's requests only. Latencies take `us`, `ms` or `s`, rates `/s` or nothing, parts `%` or nothing.
 2. `refused` is the part of requests that was not answered well. Unless a bound says otherwise, or goodput is
    maximised, it is to be at most `USUAL_REFUSED`: else a server that refuses nearly everything would be the fastest.
 3. Goodput is requests a second that are answered within the latency bounds: a request is good if it is within the
    bounds of all requests and within those of its model, whichever quantile they are about.
 4. Of generated text there are the time to the first token (`ttft_p95`) and between two (`itl_p99`), by p50, p95 and
    p99, and `tokens` a second. A text is good if its first token came within the bound, and the mean time between its
    tokens is within that.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass

from ...engine.errors import InvalidArgumentError

USUAL_REFUSED = 0.01


class Measure(enum.Enum):
    """What a bound is about. The value is its name."""

    P50 = "p50"
    P95 = "p95"
    P99 = "p99"
    MEAN = "mean"
    THROUGHPUT = "throughput"
    REFUSED = "refused"
    TTFT_P50 = "ttft_p50"
    TTFT_P95 = "ttft_p95"
    TTFT_P99 = "ttft_p99"
    ITL_P50 = "itl_p50"
    ITL_P95 = "itl_p95"
    ITL_P99 = "itl_p99"
    TOKENS = "tokens"

    @property
    def is_latency(self) -> bool:
        return not self.is_rate and self is not Measure.REFUSED

    @property
    def is_rate(self) -> bool:
        return self in (Measure.THROUGHPUT, Measure.TOKENS)

    @property
    def of_tokens(self) -> str:
        """`ttft` or `itl`, if it is about the time to the first token, or between two; empty if not."""
        found = self.value.partition("_")[0]
        return found if found in ("ttft", "itl") else ""


class Aim(enum.Enum):
    """What is best among the settings that keep all bounds."""

    INSTANCES = "instances"
    THROUGHPUT = "throughput"
    GOODPUT = "goodput"


@dataclass(frozen=True, slots=True)
class ObjectiveBound:
    """One bound.

    Attributes:
        limit: seconds, requests a second, or a part of all requests.
        upper: the measure must be at most `limit`; else at least.
        model: whose requests; empty for all.
    """

    measure: Measure
    limit: float
    upper: bool = True
    model: str = ""

    def excess(self, value: float) -> float:
        """By which part of the limit a value misses it; 0 if it keeps it, infinite if there is no value."""
        if value != value:
            return math.inf
        over = value - self.limit if self.upper else self.limit - value
        return max(0.0, over / max(self.limit, 1e-12))

    def __str__(self) -> str:
        if self.measure.is_latency:
            shown = f"{self.limit * 1e3:g}ms"
        elif self.measure.is_rate:
            shown = f"{self.limit:g}/s"
        else:
            shown = f"{self.limit * 100:g}%"
        whose = f"{self.model}:" if self.model else ""
        return f"{whose}{self.measure.value}{'<' if self.upper else '>'}{shown}"


@dataclass(frozen=True, slots=True)
class PlanObjective:
    """Bounds and aim.

    Attributes:
        bounds: all of them, the usual one of refusals included.
    """

    bounds: tuple[ObjectiveBound, ...]
    aim: Aim

    def good_within_s(self, model: str, of_tokens: str = "") -> float:
        """How long a request to a model may take to be good (rule 3); infinite if no bound is about that.

        Args:
            of_tokens: until its first token (`ttft`), or between two (`itl`); else until its answer.
        """
        limits = [
            bound.limit
            for bound in self.bounds
            if bound.measure.is_latency and bound.measure.of_tokens == of_tokens and bound.model in ("", model)
        ]
        return min(limits, default=math.inf)

    def __str__(self) -> str:
        verb = "minimise" if self.aim is Aim.INSTANCES else "maximise"
        return f"{verb} {self.aim.value} with {', '.join(map(str, self.bounds)) or 'no bound'}"


_BOUND = re.compile(
    r"(?:(?P<model>[^:<>]+):)?(?P<measure>[a-z0-9_]+)\s*(?P<sign>[<>])=?\s*(?P<value>[0-9.eE+-]+)(?P<unit>\D*)"
)
_LATENCY_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_UNITS = {
    Measure.THROUGHPUT: {"/s": 1.0, "": 1.0},
    Measure.TOKENS: {"/s": 1.0, "": 1.0},
    Measure.REFUSED: {"%": 0.01, "": 1.0},
}


def read_objective(text: str, aim: Aim) -> PlanObjective:
    """The objective that a user wrote; empty for no bound but the usual one.

    Raises:
        InvalidArgumentError: it is none; says which part, and what was expected.
    """
    bounds = tuple(_bound(part.strip()) for part in text.split(",")) if text.strip() else ()
    if aim is not Aim.GOODPUT and not any(bound.measure is Measure.REFUSED for bound in bounds):
        bounds = (*bounds, ObjectiveBound(Measure.REFUSED, USUAL_REFUSED))
    objective = PlanObjective(bounds, aim)
    if aim is Aim.INSTANCES and not any(bound.measure is not Measure.REFUSED for bound in bounds):
        raise InvalidArgumentError("to minimise instances, --objective needs a bound, such as 'p99<50ms'")
    if aim is Aim.GOODPUT and not any(bound.measure.is_latency for bound in bounds):
        raise InvalidArgumentError("goodput counts answers within a bound of latency: --objective 'p99<50ms', say")
    return objective


def _bound(text: str) -> ObjectiveBound:
    found = _BOUND.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(
            f"'{text}' is no bound; expected one such as p99<50ms, refused<1% or throughput>100/s"
        )
    names = {measure.value: measure for measure in Measure}
    measure = names.get(found["measure"])
    if measure is None:
        raise InvalidArgumentError(f"'{text}': '{found['measure']}' is no measure; expected one of {', '.join(names)}")
    units = _LATENCY_UNITS if measure.is_latency else _UNITS[measure]
    unit = found["unit"].strip()
    if unit not in units:
        shown = ", ".join(f"'{each}'" if each else "nothing" for each in units)
        raise InvalidArgumentError(f"'{text}': found unit '{unit}' of {measure.value}, expected {shown}")
    try:
        limit = float(found["value"]) * units[unit]
    except ValueError:
        limit = math.nan
    if not 0 <= limit < math.inf or (limit == 0 and measure is not Measure.REFUSED):
        raise InvalidArgumentError(f"'{text}': '{found['value']}' is no number above 0")
    upper = found["sign"] == "<"
    if upper is measure.is_rate:
        raise InvalidArgumentError(f"'{text}': {measure.value} needs {'>' if upper else '<'}")
    return ObjectiveBound(measure, limit, upper, found["model"] or "")
