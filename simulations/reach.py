"""How far swarm runs reach: how many requests are answered, and in how many runs each feature comes into play.

A run in which nearly all requests are refused proves little, and a feature that few runs reach is hardly tested. So
what is counted here is looked at by run, and not summed over runs as `coverage` does it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..engine.config.sequence import DirectStrategy
from .events import AnswerFound, BatchSealed, ExecutionEnded, ReplyDelivered, RequestAnswered, RequestQueued
from .graphs import is_step
from .history import Handlers
from .invariants.resources import Demands
from .invariants.state import WorldState

ANSWERED = "answered"
"""How many requests of clients were answered well."""

REACHABLE_SERVING = (
    "a batch of several requests",
    "sequences side by side, direct",
    "sequences side by side, oldest",
    "a request waited for resources",
    "an answer found in the cache",
    "an answer found in the cache, and held for its turn",
)

FEATURES = (
    "a batch of several requests",
    "sealed: preferred size",
    "sealed: delay over",
    "rejected: expired",
    "an expired request was let wait",
    "refused: queue full",
    "a later request went before an earlier one",
    "an answer waited for its turn",
    "sequences side by side, direct",
    "sequences side by side, oldest",
    "rejected: sequence too long in the backlog",
    "a request executed again",
    "a state found",
    "an ensemble answered",
    "a step for a later answer of a decoupled member",
    "a request waited for resources",
    "an answer found in the cache",
    "an answer found in the cache, and held for its turn",
    "an instance restarted",
    "rejected: sequence lost",
    "a model loaded again",
    "the server-wide budget was used up",
    "two batches in flight",
)
"""Of `coverage.REACHABLE`: what stands for a feature that came into play."""


class ServingCoverage:
    """Counts what is served, and how.

    Args:
        count: called with each.
        demands, pools: see `WorldWatch`.
    """

    def __init__(
        self, count: Callable[[str], None], state: WorldState, demands: Demands, pools: Mapping[str, int]
    ) -> None:
        self._count = count
        self._state = state
        self._demands = demands
        self._pools = pools
        self._held: Counter[str] = Counter()
        self._holding: dict[int, str] = {}  # by batch, its model
        self._found_ns: dict[int, int] = {}

    def handlers(self) -> Handlers:
        return {
            RequestQueued: self._queued,
            BatchSealed: self._sealed,
            ExecutionEnded: self._ended,
            AnswerFound: self._found,
            ReplyDelivered: self._delivered,
            RequestAnswered: self._answered,
        }

    def _demand(self, model: str) -> Mapping[str, int]:
        return self._demands.get(self._state.models[model].config.name, {}) if self._pools else {}

    def _queued(self, event: RequestQueued) -> None:
        demand = self._demand(event.model)
        lacking = any(self._held[name] + count > self._pools[name] for name, count in demand.items())
        if lacking and self._state.models[event.model].idle > 0:
            self._count("a request waited for resources")

    def _sealed(self, event: BatchSealed) -> None:
        view = self._state.models[event.model]
        if sum(map(bool, event.requests)) > 1:
            if view.sequences is None:
                self._count("a batch of several requests")
            else:
                direct = isinstance(view.sequences.strategy, DirectStrategy)
                self._count(f"sequences side by side, {'direct' if direct else 'oldest'}")
        demand = self._demand(event.model)
        if demand:
            self._holding[event.batch] = event.model
            self._held.update(demand)

    def _ended(self, event: ExecutionEnded) -> None:
        model = self._holding.pop(event.batch, "")
        if model:
            self._held.subtract(self._demand(model))

    def _found(self, event: AnswerFound) -> None:
        self._count("an answer found in the cache")
        self._found_ns[event.request] = event.at_ns

    def _delivered(self, event: ReplyDelivered) -> None:
        found_ns = self._found_ns.pop(event.request, event.at_ns)
        if found_ns != event.at_ns:
            self._count("an answer found in the cache, and held for its turn")

    def _answered(self, event: RequestAnswered) -> None:
        if not event.error and not is_step(event.request):
            self._count(ANSWERED)


def shares_answered(runs: Sequence[Counter[str]]) -> list[float]:
    """Of each run with requests, the share of them that was answered well, in ascending order."""
    return sorted(counts[ANSWERED] / counts["requests"] for counts in runs if counts["requests"])


def runs_that_reach(runs: Sequence[Counter[str]], feature: str) -> float:
    """The share of the runs in which this came up."""
    return sum(1 for counts in runs if counts[feature]) / max(1, len(runs))


def reach(runs: Sequence[Counter[str]]) -> Iterator[str]:
    """What was reached in these runs, as lines for people.

    Args:
        runs: the counts of each.
    """
    shares = shares_answered(runs)
    deciles = statistics.quantiles(shares, n=10) if len(shares) > 1 else shares
    yield f"requests answered, by run: {statistics.median(shares):.0%} in the median"
    yield f"    deciles: {' '.join(f'{share:.0%}' for share in deciles)}"
    yield "runs in which a feature came up, and how often in one of those (median)"
    width = max(map(len, FEATURES))
    for feature in FEATURES:
        often = [counts[feature] for counts in runs if counts[feature]]
        times = f"{statistics.median(often):6.0f}" if often else "     -"
        yield f"    {feature:{width}} {runs_that_reach(runs, feature):6.1%} {times}"
