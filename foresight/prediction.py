"""Plays traffic in virtual time, several times, and says what comes of it and how sure that is.

Rules:
 1. Each play draws anew what the profile does not know: one factor on each model's service times and one on the loop's
    work, normal about 1, whose deviation is the standard error of the measurement. So the spread of the plays is that
    of chance and of the profile's error together.
 2. All settings that are compared are played with the same seeds, and each model has chance of its own, so that a
    difference is the settings'.
 3. Replicas are machines like this one. A gateway gives them requests by turns, and a sequence as a whole; what the
    gateway itself costs is not in the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from ..engine.config.model import ModelConfig
from ..engine.errors import InvalidArgumentError
from ..engine.logs.request_log import LoggedRequest
from ..engine.options import ServerOptions
from ..engine.profiles import ModelProfile, Way
from ..simulations.planning import PlayedRun, merged_runs, play
from .models import ForeseenModel
from .planned_models import ProfiledCosts, front_ends_unknown, planned_model, served_factor
from .summary import Estimate, RunSummary, estimate, summarise

PLAYS = 5
_MOST_DEVIATION = 0.25


@dataclass(frozen=True, slots=True)
class ForeseenHost:
    """The machine that is foreseen.

    Attributes:
        cores: that the server has.
        client_cores: of these, what clients on the same machine take.
        way: how requests come that do not say.
        loop_first, front_ends: see `HostCosts`.
    """

    cores: float
    client_cores: float = 0.0
    way: Way = Way.HTTP
    loop_first: bool = True
    front_ends: int = 0

    @property
    def free_cores(self) -> float:
        """What clients leave the server."""
        return max(0.1, self.cores - self.client_cores)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What comes of traffic.

    Attributes:
        overall: one summary a play.
        models: the same of each model that was asked.
        runs: the plays.
    """

    overall: Sequence[RunSummary]
    models: Mapping[str, Sequence[RunSummary]] = field(default_factory=dict)
    runs: Sequence[PlayedRun] = ()

    def estimate(self, name: str, model: str = "") -> Estimate:
        """Of an attribute of `RunSummary`."""
        return estimate(self.models[model] if model else self.overall, name)


def predict(
    models: Sequence[ForeseenModel],
    log: Sequence[LoggedRequest],
    options: ServerOptions,
    host: ForeseenHost,
    *,
    plays: int = PLAYS,
    seed: int = 1,
    configs: Mapping[str, ModelConfig] | None = None,
    replicas: int = 1,
) -> Prediction:
    """Play a log.

    Args:
        models: all that are asked, and the members of ensembles.
        plays: how often, at least once.
        configs: by model, configurations to try in place of the present ones.
        replicas: servers that share the traffic (rule 3).

    Raises:
        InvalidArgumentError: the log asks for a model that is not among them, or is empty; or the profiles do not tell
            what front ends do.
    """
    configs = configs or {}
    known = {model.config.name: model for model in models}
    asked = list(dict.fromkeys(logged.model for logged in log))
    missing = sorted(set(asked) - known.keys())
    if missing:
        raise InvalidArgumentError(f"the log asks for model '{missing[0]}', which is not there")
    if not log:
        raise InvalidArgumentError("the log has no requests")
    log = with_tokens(log, known)
    profiles = {name: model.profile for name, model in known.items() if model.profile is not None}
    apart = host.front_ends > 0
    if apart and (why := front_ends_unknown(profiles.values())):
        raise InvalidArgumentError(f"nothing can be predicted with --front-ends {host.front_ends}: {why}")
    counts = {name: replicas * instance_count(configs.get(name, known[name].config)) for name in profiles}
    parts = replica_parts(log, replicas)
    runs: list[PlayedRun] = []
    for number in range(plays):
        chance = Random(f"prediction {seed} {number}")
        planned = [
            planned_model(
                model,
                _factor(model.profile, chance) * served_factor(model.profile, host.way, apart),
                configs.get(name),
                host.way,
            )
            for name, model in known.items()
        ]
        loop_factor = _drawn_factor(_host_error(profiles, apart), chance)
        costs = ProfiledCosts(
            *(profiles, host.free_cores, host.way, chance, loop_factor, host.loop_first, host.front_ends),
            clients_here=host.client_cores > 0,
        )
        runs.append(merged_runs([play(planned, part, options, seed * 1000 + number, costs=costs) for part in parts]))
    stateful = {name for name, model in known.items() if model.config.has_sequence_batching}
    overall = [summarise(run, counts, "", stateful) for run in runs]
    each = {name: [summarise(run, counts, name, stateful) for run in runs] for name in asked}
    return Prediction(overall, each, runs)


def with_tokens(log: Sequence[LoggedRequest], models: Mapping[str, ForeseenModel]) -> Sequence[LoggedRequest]:
    """Without those requests for generated text whose prompts are of unknown length: they were refused.

    Raises:
        InvalidArgumentError: nothing is left.
    """
    generating = {name for name, model in models.items() if model.profile is not None and model.profile.generation}
    if not generating:
        return log
    kept = [each for each in log if each.prompt_tokens or each.model not in generating]
    if not kept:
        raise InvalidArgumentError(
            f"the log has no numbers of tokens for '{log[0].model}', which generates text; expected prompt_tokens, as "
            "--request-log writes them"
        )
    return kept


def replica_parts(log: Sequence[LoggedRequest], replicas: int) -> list[list[LoggedRequest]]:
    """What each replica is asked (rule 3); those that are asked nothing are left out."""
    parts: list[list[LoggedRequest]] = [[] for _ in range(replicas)]
    bound: dict[tuple[str, int | str], int] = {}
    turn = 0
    for logged in log:
        place = bound.get((logged.model, logged.sequence)) if logged.sequence and not logged.start else None
        if place is None:
            place, turn = turn, (turn + 1) % replicas
            if logged.sequence:
                bound[logged.model, logged.sequence] = place
        parts[place].append(logged)
    return [part for part in parts if part]


def instance_count(config: ModelConfig) -> int:
    """Instances that execute requests."""
    return sum(group.count * max(1, len(group.gpus)) for group in config.instance_group if not group.passive)


def _factor(profile: ModelProfile | None, chance: Random) -> float:
    """Rule 1, of a model."""
    if profile is None:
        return 1.0
    if profile.generation is not None:
        return _drawn_factor(profile.generation.ratios.relative_error, chance)
    errors = [point.time.relative_error for point in profile.service if point.side_by_side == 1]
    return _drawn_factor(sum(errors) / len(errors), chance)


def _drawn_factor(deviation: float, chance: Random) -> float:
    return max(0.1, chance.gauss(1.0, min(deviation, _MOST_DEVIATION)))


def _host_error(profiles: Mapping[str, ModelProfile], front_ends: bool) -> float:
    """The standard error of what a request costs beside its execution, the work of the loop and of front ends and what
    is outside, as a part of it: the largest. Alone, what is outside is so little that one request that was held up
    makes its error large.

    Args:
        front_ends: of a server that has some.
    """
    points = [point for profile in profiles.values() for point in profile.host if (point.front_ends > 0) is front_ends]
    costs = [
        point.request_s + point.batch_s + point.front_request_s + 2 * point.front_turn_s + point.outside.mean_s
        for point in points
    ]
    return max((point.outside.error_s / cost for point, cost in zip(points, costs, strict=True) if cost), default=0.0)
