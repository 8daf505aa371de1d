"""Makes request logs: clients that are drawn instead of seen. The same seed gives the same log.

An arrival process says when requests come, kinds of requests say what they are. In a closed loop clients wait for
answers, so there only is a list of what they ask (`request_log`, rule 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from random import Random
from typing import Protocol

from ..errors import InvalidArgumentError
from ..request import LATEST
from .request_log import LoggedLoop, LoggedRequest, RequestTraffic

_MOST_TOKENS = 1 << 20
_MOST_SPREAD = 5.0


class ArrivalProcess(Protocol):
    """When requests come.

    Attributes:
        most_hz: the highest rate, in requests a second.
    """

    @property
    def most_hz(self) -> float: ...

    def offsets(self, chance: Random, seconds: float) -> Iterator[float]:
        """Seconds from the beginning, in order, all of them less than `seconds`."""
        ...


def poisson_offsets(chance: Random, rate_hz: float) -> Iterator[float]:
    """Arrivals of clients who know nothing of each other, without an end: `rate_hz` a second on average."""
    at_s = 0.0
    while True:
        at_s += chance.expovariate(rate_hz)
        yield at_s


def varying_offsets(
    chance: Random, rate_hz: Callable[[float], float], most_hz: float, seconds: float
) -> Iterator[float]:
    """The same at a rate that depends on the time, and is `most_hz` at most."""
    for at_s in takewhile(lambda at_s: at_s < seconds, poisson_offsets(chance, most_hz)):
        if chance.random() * most_hz < rate_hz(at_s):
            yield at_s


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Clients who know nothing of each other: `rate_hz` a second on average."""

    rate_hz: float

    def __post_init__(self) -> None:
        _check_rates(rate_hz=self.rate_hz)

    @property
    def most_hz(self) -> float:
        """See `ArrivalProcess`."""
        return self.rate_hz

    def offsets(self, chance: Random, seconds: float) -> Iterator[float]:
        """See `ArrivalProcess`."""
        return takewhile(lambda at_s: at_s < seconds, poisson_offsets(chance, self.rate_hz))


@dataclass(frozen=True, slots=True)
class BurstArrivals:
    """Bursts of `rate_hz` a second for `on_s`, and between them `quiet_hz` for `off_s`; these times are averages of
    exponential distributions. It begins with a quiet time."""

    rate_hz: float
    on_s: float
    off_s: float
    quiet_hz: float = 0.0

    def __post_init__(self) -> None:
        _check_rates(rate_hz=self.rate_hz, on_s=self.on_s, off_s=self.off_s)
        _check_range("quiet_hz", self.quiet_hz, 0.0)

    @property
    def most_hz(self) -> float:
        """See `ArrivalProcess`."""
        return max(self.rate_hz, self.quiet_hz)

    def offsets(self, chance: Random, seconds: float) -> Iterator[float]:
        """See `ArrivalProcess`."""
        began_s, bursts = 0.0, False
        while began_s < seconds:
            rate_hz = self.rate_hz if bursts else self.quiet_hz
            ends_s = began_s + chance.expovariate(1 / (self.on_s if bursts else self.off_s))
            at_s = began_s
            while rate_hz and (at_s := at_s + chance.expovariate(rate_hz)) < min(ends_s, seconds):
                yield at_s
            began_s, bursts = ends_s, not bursts


@dataclass(frozen=True, slots=True)
class DiurnalArrivals:
    """A rate that rises and falls as a sine does, from `least_hz` to `most_hz` and back in `period_s`."""

    least_hz: float
    most_hz: float
    period_s: float

    def __post_init__(self) -> None:
        _check_rates(most_hz=self.most_hz, period_s=self.period_s)
        _check_range("least_hz", self.least_hz, 0.0, self.most_hz)

    def offsets(self, chance: Random, seconds: float) -> Iterator[float]:
        """See `ArrivalProcess`."""

        def rate_hz(at_s: float) -> float:
            part = (1 - math.cos(2 * math.pi * at_s / self.period_s)) / 2
            return self.least_hz + (self.most_hz - self.least_hz) * part

        return varying_offsets(chance, rate_hz, self.most_hz, seconds)


@dataclass(frozen=True, slots=True)
class StepArrivals:
    """One rate after the other, for `each_s` each; then they begin anew."""

    rates_hz: tuple[float, ...]
    each_s: float

    def __post_init__(self) -> None:
        _check_rates(each_s=self.each_s, rates_hz=max(self.rates_hz, default=0.0))
        for rate_hz in self.rates_hz:
            _check_range("each of rates_hz", rate_hz, 0.0)

    @property
    def most_hz(self) -> float:
        """See `ArrivalProcess`."""
        return max(self.rates_hz)

    def offsets(self, chance: Random, seconds: float) -> Iterator[float]:
        """See `ArrivalProcess`."""
        rates = self.rates_hz

        def rate_hz(at_s: float) -> float:
            return rates[int(at_s / self.each_s) % len(rates)]

        return varying_offsets(chance, rate_hz, self.most_hz, seconds)


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Lengths of prompts and texts, drawn from lognormal distributions.

    Attributes:
        prompt, new: medians, in tokens.
        prompt_spread, new_spread: standard deviations of the logarithm; 0 for always the same.
        most_new: tokens that a client asks for at most; 0 for as many as it gets.
        context: tokens of prompt and text together at most; 0 for no limit.
        shared: tokens with which all prompts begin alike, as far as they are longer than that.
    """

    prompt: float
    new: float
    prompt_spread: float = 0.0
    new_spread: float = 0.0
    most_new: int = 0
    context: int = 0
    shared: int = 0

    def __post_init__(self) -> None:
        _check_range("prompt", self.prompt, 1)
        _check_range("tokens", self.new, 1)
        for name in ("prompt_spread", "new_spread"):
            _check_range(name, getattr(self, name), 0, _MOST_SPREAD)
        _check_range("max_tokens", self.most_new, 0)
        _check_range("context", self.context, 2 if self.context else 0)
        _check_range("shared", self.shared, 0)

    def drawn(self, request: LoggedRequest, chance: Random) -> LoggedRequest:
        """The request, with tokens."""
        room = self.context or _MOST_TOKENS
        prompt = min(max(1, round(self.prompt * math.exp(chance.gauss(0, self.prompt_spread)))), room - 1)
        most = min(room - prompt, self.most_new or room)
        new = min(max(1, round(self.new * math.exp(chance.gauss(0, self.new_spread)))), most)
        return replace(
            request,
            prompt_tokens=prompt,
            found_tokens=min(self.shared, prompt - 1),
            max_tokens=most if self.most_new else new,
            generated_tokens=new,
        )


@dataclass(frozen=True, slots=True)
class RequestKind:
    """Requests of one sort; see also `LoggedRequest`.

    Attributes:
        weight: how often it is chosen, beside the weights of the others.
        rows: drawn from these, each as likely as the others.
        row_nbytes: bytes of a row's inputs; 0 for unknown.
        sequence_length: requests of a sequence on average (geometrically distributed); 0 for requests that belong to
            none. What is chosen then is the beginning of a sequence.
        think_s: between two requests of a sequence, on average.
        tokens: of requests for generated text; None for others.
    """

    model: str
    weight: float = 1.0
    version: int = LATEST
    rows: tuple[int, ...] = (1,)
    row_nbytes: int = 0
    elements: tuple[int, ...] = ()
    priority: int = 0
    timeout_us: int = 0
    sequence_length: float = 0.0
    think_s: float = 0.0
    ensemble: bool = False
    tenant: str = ""
    protocol: str = ""
    tokens: TokenLengths | None = None

    def __post_init__(self) -> None:
        if not self.model:
            raise InvalidArgumentError("a kind of requests needs the name of a model")
        _check_rates(weight=self.weight)
        _check_range("each of rows", min(self.rows, default=0), 1)
        _check_range("sequence_length", self.sequence_length, 1.0 if self.sequence_length else 0.0)
        for name in ("row_nbytes", "priority", "timeout_us", "think_s"):
            _check_range(name, getattr(self, name), 0)

    def draw(self, chance: Random, at_s: float, sequence: int) -> Iterator[LoggedRequest]:
        """A request that comes at `at_s`, or the requests of a sequence with this number that begins then."""
        ends_p = 1 / self.sequence_length if self.sequence_length else 1.0
        start = end = False
        while not end:
            started, start, end = start, True, chance.random() < ends_p
            if started:
                at_s += chance.expovariate(1 / self.think_s) if self.think_s else 0.0
            rows = chance.choice(self.rows)
            flags = (sequence, not started, end) if self.sequence_length else (0, False, False)
            request = LoggedRequest(
                round(at_s, 6),
                self.model,
                self.version,
                rows,
                rows * self.row_nbytes,
                self.elements,
                self.priority,
                self.timeout_us,
                *flags,
                self.ensemble,
                self.tenant,
                self.protocol,
            )
            yield request if self.tokens is None else self.tokens.drawn(request, chance)


def generate(arrivals: ArrivalProcess, kinds: Sequence[RequestKind], seconds: float, seed: int = 1) -> RequestTraffic:
    """A log of so many seconds; sequences that begin in time go on until they are over.

    Raises:
        InvalidArgumentError: there is no kind, or no time.
    """
    _check_rates(seconds=seconds)
    chance = Random(seed)
    requests: list[LoggedRequest] = []
    for number, (at_s, kind) in enumerate(_kinds(chance, kinds, arrivals.offsets(chance, seconds)), start=1):
        requests += kind.draw(chance, at_s, number)
    return RequestTraffic(sorted(requests, key=lambda request: request.offset_s))


def generate_closed(loop: LoggedLoop, kinds: Sequence[RequestKind], count: int, seed: int = 1) -> RequestTraffic:
    """What the clients of a closed loop ask: `count` requests, and what belongs to the last sequence.

    Raises:
        InvalidArgumentError: there is no kind, or no request.
    """
    _check_rates(count=count)
    chance = Random(seed)
    requests: list[LoggedRequest] = []
    for number, (at_s, kind) in enumerate(_kinds(chance, kinds, iter(lambda: 0.0, None)), start=1):
        if len(requests) >= count:
            break
        requests += replace(kind, think_s=0.0).draw(chance, at_s, number)  # it is the loop's clients who think
    return RequestTraffic(requests, loop)


def _kinds(
    chance: Random, kinds: Sequence[RequestKind], offsets: Iterator[float]
) -> Iterator[tuple[float, RequestKind]]:
    """Each arrival with its kind."""
    if not kinds:
        raise InvalidArgumentError("there is no kind of requests, expected one at least")
    weights = [kind.weight for kind in kinds]
    for at_s in offsets:
        yield at_s, kinds[0] if len(kinds) == 1 else chance.choices(kinds, weights)[0]


def _check_rates(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InvalidArgumentError(f"{name} must be more than 0 and finite, not {value!r}")


def _check_range(name: str, value: float, least: float, most: float = math.inf) -> None:
    if not least <= value <= most or value == math.inf:
        expected = f"from {least:g} to {most:g}" if most < math.inf else f"at least {least:g} and finite"
        raise InvalidArgumentError(f"{name} must be {expected}, not {value!r}")
