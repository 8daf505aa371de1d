"""What a plan prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..summary import Estimate
from .objective import Measure, PlanObjective
from .trials import Trial

_SHOWN = 6


def plan_table(
    trials: Sequence[Trial], chosen: Trial, present: Trial | None, objective: PlanObjective
) -> Iterator[str]:
    """Lines: the chosen setting, the present one, and the best others, with the bounds between which nine of ten plays
    lie."""
    others = [trial for trial in trials if trial is not chosen and trial is not present]
    rows = [("chosen", chosen)] if chosen is not present else [("chosen = present", chosen)]
    rows += [("present", present)] if present is not None and present is not chosen else []
    rows += [("other", trial) for trial in others[:_SHOWN]]
    texts = any(math.isfinite(trial.estimate(Measure.TTFT_P95).value) for trial in trials)
    more = f"{'ttft p95':>10}{'itl p99':>9}{'tokens':>10}" if texts else ""
    head = f"{'':16}{'p50':>9}{'p99':>9}{'from':>9}{'to':>9}{'answered':>11}{'good':>9}{'refused':>9}"
    yield f"{head}{more}  keeps  setting"
    for label, trial in rows:
        p99 = trial.estimate(Measure.P99)
        cells = f"{_ms(trial.estimate(Measure.P50).value)}{_ms(p99.value)}{_ms(p99.low)}{_ms(p99.high)}"
        rates = f"{trial.estimate(Measure.THROUGHPUT).value:>9.1f}/s{Estimate.of(trial.goodput).value:>7.1f}/s"
        refused = f"{trial.estimate(Measure.REFUSED).value:>9.2%}"
        if texts:
            refused += f" {_ms(trial.estimate(Measure.TTFT_P95).value)}{_ms(trial.estimate(Measure.ITL_P99).value)}"
            refused += f"{trial.estimate(Measure.TOKENS).value:>8.1f}/s"
        kept = "yes" if trial.keeps(objective) else "no"
        yield f"{label:16}{cells}{rates}{refused}  {kept:5}  {trial.setting}"


def _ms(seconds: float) -> str:
    if seconds != seconds:
        return f"{'none':>9}"
    value = seconds * 1e3
    return f"{value:>7.2f}ms" if value < 1000 else f"{value:>7.0f}ms"


def missed_bounds(trial: Trial, objective: PlanObjective) -> list[str]:
    """Each bound that a setting does not keep, with what is predicted."""
    found: list[str] = []
    for bound in objective.bounds:
        if trial.excess(bound):
            value = trial.estimate(bound.measure, bound.model)
            shown = value.high if bound.upper else value.low
            scale, unit = (1e3, "ms") if bound.measure.is_latency else (1.0, "/s")
            if bound.measure is Measure.REFUSED:
                scale, unit = 100.0, "%"
            told = f"{shown * scale:.2f}{unit}" if shown == shown else "nothing was answered"
            found.append(f"{bound}: {told} in one of ten plays")
    return found
