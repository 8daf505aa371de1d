"""One setting, played: what came of it, and how it stands to an objective.

Rules:
 1. Every setting is played with the same parts of the log and the same seeds.
 2. A setting keeps the objective if nine of ten plays keep each bound.
 3. Of two settings the better one misses the bounds by less; if both keep them, it has fewer instances, or more
    throughput or goodput, as the aim says; figures that differ by less than `ALIKE` are the same; then it has fewer
    replicas, then the lower p99. Two are alike if they are equal but for p99, and what the plays say of that overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...engine.logs.request_log import LoggedRequest
from ...engine.options import ServerOptions
from ...simulations.planning import GeneratedRun, PlayedRun
from ..models import ForeseenModel
from ..prediction import ForeseenHost, Prediction, predict
from ..summary import Estimate, RunSummary
from .objective import Aim, Measure, ObjectiveBound, PlanObjective
from .settings import PlanSetting, planned_config, planned_options

ALIKE = 0.005


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of playing a setting.

    Attributes:
        requests: of the log that were played.
        overall, models: one summary a play, of all and by model.
        goodput: answers a second within the bounds of latency, one figure a play.
    """

    setting: PlanSetting
    requests: int
    overall: tuple[RunSummary, ...]
    models: dict[str, tuple[RunSummary, ...]] = field(default_factory=dict)
    goodput: tuple[float, ...] = ()

    def values(self, measure: Measure, model: str = "") -> list[float]:
        """One a play."""
        summaries = self.models.get(model, ()) if model else self.overall
        return [measured(summary, measure) for summary in summaries]

    def estimate(self, measure: Measure, model: str = "") -> Estimate:
        """NaN if no request was answered well."""
        return Estimate.of(self.values(measure, model))

    def excess(self, bound: ObjectiveBound) -> float:
        """By which part of the bound it is missed, at worst but for one of ten plays; 0 if it is kept."""
        each = [bound.excess(value) for value in self.values(bound.measure, bound.model)]
        if not each or any(part == math.inf for part in each):
            return math.inf
        return float(np.quantile(each, 0.9, method="lower"))

    def keeps(self, objective: PlanObjective) -> bool:
        """Rule 2."""
        return all(self.excess(bound) == 0 for bound in objective.bounds)

    def gain(self, aim: Aim) -> float:
        """The figure that is the aim; more is better."""
        if aim is Aim.INSTANCES:
            return -float(self.setting.instances)
        return float(np.median(self.goodput if aim is Aim.GOODPUT else self.values(Measure.THROUGHPUT)))

    def order(self, objective: PlanObjective) -> tuple[float, ...]:
        """Sorts trials of the same part of the log, the best first (rule 3)."""
        missed = sum(min(self.excess(bound), 1e6) for bound in objective.bounds)
        gain = self.gain(objective.aim)
        if objective.aim is not Aim.INSTANCES and gain > 0:
            gain = float(round(math.log(gain) / ALIKE))
        p99 = self.estimate(Measure.P99).value
        setting = self.setting
        return (missed, -gain, float(setting.replicas), p99 if p99 == p99 else math.inf, float(setting.instances))

    def is_like(self, best: Trial, objective: PlanObjective) -> bool:
        """Whether it is as good as the best, as far as the plays can tell (rule 3)."""
        if self.order(objective)[:3] != best.order(objective)[:3]:
            return False
        return self is best or self.estimate(Measure.P99).low <= best.estimate(Measure.P99).high


def measured(summary: RunSummary, measure: Measure) -> float:
    """The figure of a summary; NaN for a latency if no request was answered well."""
    if measure is Measure.REFUSED:
        return 1 - summary.answered / summary.requests if summary.requests else float("nan")
    if measure is Measure.THROUGHPUT:
        return summary.throughput
    if measure is Measure.TOKENS:
        return summary.tokens
    if measure.of_tokens:
        return getattr(summary, f"{measure.value}_s")
    return {
        Measure.P50: summary.p50_s,
        Measure.P95: summary.p95_s,
        Measure.P99: summary.p99_s,
        Measure.MEAN: summary.mean_s,
    }[measure]


@dataclass(frozen=True, slots=True)
class TrialGround:
    """All that trials have in common; what `play` makes of a setting is the same each time.

    Args:
        models: all that the log asks for, and the members of ensembles.
        host: how many front ends there are, each setting says for itself.
        seed: of all trials.
    """

    models: Sequence[ForeseenModel]
    log: Sequence[LoggedRequest]
    options: ServerOptions
    host: ForeseenHost
    objective: PlanObjective
    seed: int = 1

    def play(self, setting: PlanSetting, requests: int, plays: int) -> Trial:
        """Play the first requests of the log.

        Raises:
            TriremeError: no server can serve this.
        """
        log = self.log[:requests]
        prediction = self.predict(setting, requests, plays)
        models = {name: tuple(each) for name, each in prediction.models.items()}
        goodput = tuple(self._goodput(prediction, number) for number in range(plays))
        return Trial(setting, len(log), tuple(prediction.overall), models, goodput)

    def predict(self, setting: PlanSetting, requests: int, plays: int) -> Prediction:
        """The same, with all that was seen."""
        configs = {model.config.name: planned_config(model.config, setting) for model in self.models}
        options = planned_options(self.options, setting)
        log = self.log[:requests]
        host = replace(self.host, front_ends=setting.front_ends)
        how = {"plays": plays, "seed": self.seed, "replicas": setting.replicas}
        return predict(self.models, log, options, host, **how, configs=configs)

    def _good_texts(self, run: PlayedRun, texts: GeneratedRun) -> NDArray[np.bool_]:
        """Which requests are good by their tokens (`objective`, rule 4)."""
        first, between = (
            np.array([self.objective.good_within_s(name, kind) for name in run.models]) for kind in ("ttft", "itl")
        )
        good = np.ones(len(run), bool)
        model = run.model[texts.request]
        late = ~(texts.first_s - texts.received_s <= first[model]) & np.isfinite(first[model])
        sums = np.zeros(len(run))
        counts = np.zeros(len(run))
        np.add.at(sums, texts.between_request, texts.between_s * texts.between_count)
        np.add.at(counts, texts.between_request, texts.between_count)
        slow = sums[texts.request] > between[model] * np.maximum(counts[texts.request], 1)
        good[texts.request[late | slow]] = False
        return good

    def _goodput(self, prediction: Prediction, number: int) -> float:
        run = prediction.runs[number]
        within_s = np.array([self.objective.good_within_s(name) for name in run.models])
        good = run.well() & (run.answered_s - run.sent_s <= within_s[run.model])
        if run.generated is not None:
            good &= self._good_texts(run, run.generated)
        return float(good.sum()) / run.span_s if run.span_s > 0 else 0.0
