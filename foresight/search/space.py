"""Which settings are worth trying.

Rules:
 1. Each dimension of a model has a few values; the present one is always among them. Instances from 1 to twice the
    cores that it needs; batches of powers of two up to the largest that was measured; no delay and a few parts of the
    tightest bound of latency; no limit of the queue and a few multiples of a batch, with levels of priority for the
    lowest level alone, too; batching adaptive for parts of the bound, or not.
 2. What cannot be combined is not tried: delays and preferred sizes with adaptive batching. Models with sequences keep
    their schedulers as they are.
 3. Where several instances could execute at a time that share cores, so may be a limit of executions.
 4. Of models that generate text, what their steps go by is tried in place of all that (`step_settings`).
 5. A neighbour differs in one dimension. Replicas are one, from 1 to as many as there may be.
 6. So are front ends, if the profiles tell what they cost: none, and powers of two up to the cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from ...engine.config.model import ModelConfig, TimeoutAction
from ...engine.profiles import ModelProfile
from ..models import ForeseenModel
from ..planned_models import front_ends_unknown
from .objective import PlanObjective
from .settings import ModelSetting, PlanSetting, executing_groups, present_setting
from .step_settings import step_settings

MOST_INSTANCES = 8
_DELAYS = (0.02, 0.1, 0.3)
_OBJECTIVES = (0.4, 0.8)
_QUEUES = (2, 8, 32)
_USUAL_BOUND_S = 0.05
_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class ModelSpace:
    """The values of the dimensions of one model."""

    instances: tuple[int, ...]
    sizes: tuple[int, ...]
    batchings: tuple[ModelSetting, ...]
    """Everything else, in an order in which neighbours are alike."""

    def settings(self) -> Iterator[ModelSetting]:
        """All that can be combined, each once."""
        found = {
            _valid(replace(batching, instances=instances, max_batch_size=size)): None
            for instances, size, batching in itertools.product(self.instances, self.sizes, self.batchings)
        }
        yield from found


def _valid(setting: ModelSetting) -> ModelSetting:
    """Preferred sizes that are no less than a batch are left out."""
    preferred = tuple(size for size in setting.preferred if size < setting.max_batch_size)
    return replace(setting, preferred=preferred)


@dataclass(frozen=True, slots=True)
class PlanSpace:
    """The settings that may be tried.

    Attributes:
        present: always one of them.
        models: all settings of each model.
    """

    present: PlanSetting
    models: Mapping[str, tuple[ModelSetting, ...]]
    executions: tuple[int, ...] = (0,)
    replicas: tuple[int, ...] = (1,)
    front_ends: tuple[int, ...] = (0,)

    def __len__(self) -> int:
        return math.prod(map(len, (*self.models.values(), self.executions, self.replicas, self.front_ends)))

    def all(self) -> Iterator[PlanSetting]:
        """Each, once, the present one first."""
        yield self.present
        for front_ends, replicas, executions in itertools.product(self.front_ends, self.replicas, self.executions):
            for chosen in itertools.product(*self.models.values()):
                setting = PlanSetting(tuple(zip(self.models, chosen, strict=True)), executions, replicas, front_ends)
                if setting != self.present:
                    yield setting

    def drawn(self, count: int, chance: Random) -> list[PlanSetting]:
        """So many different ones or all, the present one and its neighbours first; in the same number of each count of
        instances as far as there are."""
        if len(self) <= count:
            return list(self.all())
        found = dict.fromkeys([self.present, *self.neighbours(self.present, chance)[: count // 4]])
        by_count = {name: _by_instances(settings) for name, settings in self.models.items()}
        for _ in range(count * _ATTEMPTS):
            if len(found) >= count:
                break
            chosen = [(name, chance.choice(chance.choice(groups))) for name, groups in by_count.items()]
            limits = tuple(map(chance.choice, (self.executions, self.replicas, self.front_ends)))
            found[PlanSetting(tuple(chosen), *limits)] = None
        return list(found)

    def neighbours(self, setting: PlanSetting, chance: Random) -> list[PlanSetting]:
        """Rule 5, shuffled."""
        found = [
            setting.with_model(name, other)
            for name, others in self.models.items()
            for other in others
            if _differences(other, setting.of(name)) == 1
        ]
        found += [replace(setting, executions=each) for each in self.executions if each != setting.executions]
        found += [replace(setting, replicas=each) for each in self.replicas if each != setting.replicas]
        found += [replace(setting, front_ends=each) for each in self.front_ends if each != setting.front_ends]
        chance.shuffle(found)
        return found


def _by_instances(settings: Sequence[ModelSetting]) -> list[list[ModelSetting]]:
    groups: dict[int, list[ModelSetting]] = {}
    for setting in settings:
        groups.setdefault(setting.instances, []).append(setting)
    return list(groups.values())


def _differences(one: ModelSetting, other: ModelSetting) -> int:
    """In how many dimensions they differ; what batching is made of is one, but for the limits of the queue."""
    parts = [
        (each.instances, each.max_batch_size, (each.batching, each.preferred, each.delay_us, each.adaptive_ms))
        for each in (one, other)
    ]
    steps = one.steps.differences(other.steps) if one.steps is not None and other.steps is not None else 0
    return sum(mine != its for mine, its in zip(*parts, strict=True)) + (one.queue_limits != other.queue_limits) + steps


def plan_space(
    models: Sequence[ForeseenModel],
    objective: PlanObjective,
    cores: float,
    most_instances: int = MOST_INSTANCES,
    most_replicas: int = 1,
    front_ends: int = 0,
) -> PlanSpace:
    """The space of a repository.

    Args:
        models: with their present configurations.
        cores: that the server has.
        most_instances: of a model.
        most_replicas: servers behind a gateway.
        front_ends: that the server has at present.
    """
    present = present_setting({model.config.name: model.config for model in models}, front_ends)
    spaces = {
        model.config.name: tuple(
            _model_space(model.config, model.profile, present.of(model.config.name), objective, cores, most_instances)
        )
        for model in models
        if model.profile is not None
    }
    limits: tuple[int, ...] = (0,)
    if len(spaces) > 1 and all(model.profile is None or _is_plain(model.config) for model in models):
        limits = (0, *range(1, max(1, round(cores)) + 1))
    numbers = (front_ends,)
    if not front_ends_unknown(model.profile for model in models if model.profile is not None):
        numbers = tuple(_with(front_ends, [0, *(2**power for power in range(int(cores).bit_length()))]))
    return PlanSpace(present, spaces, limits, tuple(range(1, most_replicas + 1)), numbers)


def _is_plain(config: ModelConfig) -> bool:
    """Its groups have no limits of their own, which one of all models would change."""
    return not any(group.HasField("rate_limiter") for group in config.message.instance_group)


def _model_space(
    config: ModelConfig,
    profile: ModelProfile,
    present: ModelSetting,
    objective: PlanObjective,
    cores: float,
    most: int,
) -> Iterator[ModelSetting]:
    """Rules 1 and 2; the present setting first."""
    needed = max((point.cores for point in profile.service if point.side_by_side == 1), default=0.0)
    enough = max(1, min(most, round(2 * cores / needed))) if needed > 0 else most
    instances = _with(present.instances, range(1, enough + 1)) if executing_groups(config) == 1 else [present.instances]
    if config.has_sequence_batching:
        instances = [present.instances]
    largest = max((point.rows for point in profile.service), default=1)
    sizes = [present.max_batch_size]
    if present.max_batch_size > 0 and not config.has_sequence_batching:
        powers = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
        sizes = _with(present.max_batch_size, powers)
    if profile.generation is not None and present.steps is not None:
        ways = list(step_settings(config, profile.generation, present.steps))
        found = (replace(present, instances=count, steps=way) for count in instances for way in ways)
        yield from dict.fromkeys([present, *found])
        return
    batchings = [present]
    if max(sizes) > 1 and not config.has_sequence_batching:
        within_s = objective.good_within_s(config.name)
        bound_s = within_s if within_s < math.inf else _USUAL_BOUND_S
        batchings += _batchings(config, present, bound_s, max(sizes))
    space = ModelSpace(tuple(instances), tuple(sizes), tuple(batchings))
    yield from dict.fromkeys([present, *space.settings()])


def _with(present: int, others: Sequence[int]) -> list[int]:
    return sorted({present, *others})


def _batchings(config: ModelConfig, present: ModelSetting, bound_s: float, largest: int) -> Iterator[ModelSetting]:
    """Of one model that has batches: all ways to form them, each with all limits of the queue."""
    limits = _queue_limits(present, largest)
    delays_us = [0, *(max(1, round(bound_s * part * 1e6)) for part in _DELAYS)]
    ways = [ModelSetting()] if not config.decoupled else []
    if not present.batching and config.dynamic_batching is None:
        yield present
    for delay_us in sorted({*delays_us, present.delay_us}):
        ways.append(ModelSetting(batching=True, delay_us=delay_us))
        if delay_us:
            ways.append(ModelSetting(batching=True, delay_us=delay_us, preferred=(max(2, largest // 2),)))
    if _may_be_adaptive(config):
        ways += [ModelSetting(batching=True, adaptive_ms=round(bound_s * part * 1e3, 3)) for part in _OBJECTIVES]
    for way in ways:
        for queue in limits if way.batching else [()]:
            yield replace(way, queue_limits=queue)


def _queue_limits(present: ModelSetting, largest: int) -> list[tuple[int, ...]]:
    now = present.queue_limits or (0,)
    found = [now, tuple(0 for _ in now), *(tuple(largest * times for _ in now) for times in _QUEUES)]
    if len(now) > 1:
        found += [(*now[:-1], largest * times) for times in _QUEUES]
    return list(dict.fromkeys(found))


def _may_be_adaptive(config: ModelConfig) -> bool:
    batching = config.dynamic_batching
    if config.decoupled or (batching is not None and batching.preserve_ordering):
        return False
    policies = [] if batching is None else [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    return not any(each.timeout_action is TimeoutAction.DELAY and each.default_timeout_us for each in policies)
