"""A request log as a plan: what was asked of a real server, asked of simulated models at the same times."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from ..engine.logs.request_log import LoggedRequest
from .plan import ModelPlan, Plan, RequestPlan, SequencesPlan
from .workloads import replayed

LEAST_BATCH = 8


def plan_of_log(log: Iterable[LoggedRequest], seed: int = 1) -> Plan:
    """A plan without faults. How the models were configured a log does not say: those that were asked for sequences are
    stateful, the others batch dynamically, up to the largest request, and as many as 8 rows at least. Simulated models
    know their sequences by numbers, so strings get some that the log does not have.

    Args:
        seed: of the order in which tasks run.
    """
    arrivals = list(log)
    rows: dict[str, int] = {}
    stateful: set[str] = set()
    for logged in arrivals:
        rows[logged.model] = max(rows.get(logged.model, LEAST_BATCH), logged.rows)
        if logged.sequence:
            stateful.add(logged.model)
    models = tuple(
        ModelPlan(
            name,
            max_batch_size=rows[name],
            dynamic=name not in stateful,
            sequences=SequencesPlan() if name in stateful else None,
        )
        for name in sorted(rows)
    )
    numbers = _numbers(logged.sequence for logged in arrivals)
    requests = tuple(
        RequestPlan(
            number,
            logged.model,
            arrival.at_ns,
            rows=logged.rows,
            priority=logged.priority,
            timeout_us=logged.timeout_us,
            sequence=numbers.get(arrival.sequence, arrival.sequence),
            start=arrival.start,
            end=arrival.end,
        )
        for number, (logged, arrival) in enumerate(zip(arrivals, replayed(arrivals), strict=True), start=1)
    )
    return Plan(seed, models, requests, calm_ns=0)


def _numbers(ids: Iterable[int | str]) -> dict[int | str, int]:
    """A number for each id that is none, or not one of 64 bits without a sign."""
    present = list(dict.fromkeys(ids))
    fit = {each for each in present if isinstance(each, int) and 0 <= each < 1 << 64}
    free = (number for number in count(1) if number not in fit)
    return {each: next(free) for each in present if each not in fit and each}
