"""What a plan may set of a repository's models, and the configurations that result.

Rules:
 1. A setting says everything that can be set of each model; what is as at present is not written into a configuration.
    So the setting of the present configuration changes nothing.
 2. Instances are set where one group of instances executes; with several, they stay as they are.
 3. Adaptive batching chooses delays and sizes itself, so it goes without a delay and preferred sizes.
 4. `executions` limits how many executions of all models run at a time: each needs one unit of the resource
    `RESOURCE`, of which there are so many. That and `front_ends` are the server's, which is started with
    `server_flags`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ...engine.config.model import ModelConfig, copy_message, model_config
from ...engine.config.objective import PARAMETER
from ...engine.options import ServerOptions
from ...engine.scheduling.rate_limiter import ExplicitResource
from .step_settings import StepSetting, present_steps, set_steps

RESOURCE = "execution"
_OF_SERVERS = ("executions", "replicas", "front_ends")


@dataclass(frozen=True, slots=True)
class ModelSetting:
    """Of one model that executes.

    Attributes:
        instances: that execute requests, on each of the group's GPUs.
        max_batch_size: 0 if the model has no batches.
        batching: requests are batched by the server.
        preferred: batch sizes besides the largest one.
        delay_us: that a batch may wait for more.
        queue_limits: requests that may wait, by priority level, the first level first; 0 for no limit. One entry if
            there are no levels, none without batching.
        adaptive_ms: the latency objective of adaptive batching; 0 for none.
        steps: of a model that generates text; None for another.
    """

    instances: int = 1
    max_batch_size: int = 0
    batching: bool = False
    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    queue_limits: tuple[int, ...] = ()
    adaptive_ms: float = 0.0
    steps: StepSetting | None = None

    def __str__(self) -> str:
        words = [f"{self.instances} instance{'s' if self.instances != 1 else ''}"]
        if self.steps is not None:
            return ", ".join([*words, str(self.steps)])
        words.append(f"max {self.max_batch_size}")
        if self.batching:
            preferred = f" of {','.join(map(str, self.preferred))}" if self.preferred else ""
            words.append(f"adaptive {self.adaptive_ms:g} ms" if self.adaptive_ms else f"batches{preferred}")
            words += [f"delay {self.delay_us} µs"] * bool(self.delay_us)
            words += [f"queue {'/'.join(map(str, self.queue_limits))}"] * any(self.queue_limits)
        else:
            words.append("no batching")
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class PlanSetting:
    """Of all models of a log that execute, by name, in order.

    Attributes:
        executions: see rule 4; 0 for no limit.
        replicas: servers with all of this, each on a machine of its own, behind a gateway.
        front_ends: processes that read and write for each server; 0 if it does so itself.
    """

    models: tuple[tuple[str, ModelSetting], ...]
    executions: int = 0
    replicas: int = 1
    front_ends: int = 0

    def of(self, model: str) -> ModelSetting:
        """Raises KeyError: the model is not set."""
        return dict(self.models)[model]

    def with_model(self, model: str, setting: ModelSetting) -> PlanSetting:
        """The same but for one model."""
        return replace(self, models=tuple((name, setting if name == model else old) for name, old in self.models))

    def differences(self, other: PlanSetting) -> int:
        """In how many values this differs from another one of the same models."""
        pairs = zip((each for _, each in self.models), (each for _, each in other.models), strict=True)
        names = [each.name for each in fields(ModelSetting)]
        found = sum(getattr(mine, name) != getattr(its, name) for mine, its in pairs for name in names)
        return found + sum(getattr(self, name) != getattr(other, name) for name in _OF_SERVERS)

    @property
    def instances(self) -> int:
        """Of all models, on all replicas."""
        return self.replicas * sum(each.instances for _, each in self.models)

    def __str__(self) -> str:
        several = len(self.models) > 1
        words = [f"{name}: {each}" if several else str(each) for name, each in self.models]
        words += [f"{self.executions} executions at a time"] * bool(self.executions)
        words += [f"{self.front_ends} front end{'s' if self.front_ends != 1 else ''}"] * bool(self.front_ends)
        return "; ".join([*words, *[f"{self.replicas} replicas"] * (self.replicas > 1)])


def present_setting(configs: Mapping[str, ModelConfig], front_ends: int = 0) -> PlanSetting:
    """What complete configurations say, on a server with so many front ends; of ensembles nothing is set."""
    found = [(name, _present(config)) for name, config in configs.items() if not config.has_ensemble_scheduling]
    return PlanSetting(tuple(found), front_ends=front_ends)


def executing_groups(config: ModelConfig) -> int:
    """How many groups of instances execute requests."""
    return sum(not group.passive for group in config.instance_group)


def _present(config: ModelConfig) -> ModelSetting:
    batching = config.dynamic_batching
    instances = sum(group.count for group in config.instance_group if not group.passive)
    steps = present_steps(config)
    if batching is None or steps is not None:
        return ModelSetting(instances, config.max_batch_size, steps=steps)
    levels = range(1, batching.priority_levels + 1) if batching.priority_levels else [0]
    return ModelSetting(
        instances,
        config.max_batch_size,
        True,
        tuple(size for size in batching.preferred_batch_sizes if size != config.max_batch_size),
        batching.max_queue_delay_us,
        tuple(batching.policy(level).max_queue_size for level in levels),
        float(config.parameters.get(PARAMETER, "0")),
    )


def planned_config(config: ModelConfig, setting: PlanSetting) -> ModelConfig:
    """A complete configuration with a setting; itself if it is no other."""
    if config.has_ensemble_scheduling:
        return config
    message = copy_message(config.message)
    set_message(message, config, setting)
    new = setting.of(config.name)
    if new.batching and not new.preferred and new.max_batch_size > 0:  # as a configuration is completed
        message.dynamic_batching.preferred_batch_size[:] = [new.max_batch_size]
    return config if message == config.message else replace(model_config(message), decoupled=config.decoupled)


def planned_options(options: ServerOptions, setting: PlanSetting) -> ServerOptions:
    """A server's options with a setting (rule 4)."""
    if not setting.executions:
        return options
    return replace(options, rate_limit=True, rate_limit_resources=(ExplicitResource(RESOURCE, setting.executions),))


def server_flags(setting: PlanSetting, present: PlanSetting) -> list[str]:
    """What `trireme serve` needs besides the configurations, as far as it is other than now (rule 4)."""
    front_ends = [f"--front-ends={setting.front_ends}"] if setting.front_ends != present.front_ends else []
    return [*execution_flags(setting), *front_ends]


def execution_flags(setting: PlanSetting) -> list[str]:
    """Those that limit executions."""
    if not setting.executions:
        return []
    return ["--rate-limit=execution_count", f"--rate-limit-resource={RESOURCE}:{setting.executions}"]


def set_message(message: Any, config: ModelConfig, setting: PlanSetting) -> None:
    """Write a setting into a configuration's message, complete or as a user has written it.

    Args:
        config: the present one, complete: what is as in it is left alone.
    """
    new, old = setting.of(config.name), _present(config)
    if new.instances != old.instances:
        _set_instances(message, config, new.instances)
    if new != old and new.max_batch_size:  # written, so that no backend completes it, or adds batching
        message.max_batch_size = new.max_batch_size
    if new.steps is not None and old.steps is not None:
        set_steps(message, new.steps, old.steps)
    elif not new.batching and old.batching:
        message.ClearField("dynamic_batching")
        message.parameters.pop(PARAMETER, None)
    elif new.batching:
        _set_batching(message, new, old)
    if setting.executions:
        _limit_executions(message, config)


def _set_instances(message: Any, config: ModelConfig, count: int) -> None:
    if not message.instance_group:
        group = message.instance_group.add()
        group.kind = next(each for each in config.message.instance_group if not each.passive).kind
    for group in message.instance_group:
        if not group.passive:
            group.count = count


def _limit_executions(message: Any, config: ModelConfig) -> None:
    if not message.instance_group:
        present = next(each for each in config.message.instance_group if not each.passive)
        message.instance_group.add(count=present.count, kind=present.kind)
    for group in message.instance_group:
        if not group.passive and not any(each.name == RESOURCE for each in group.rate_limiter.resources):
            group.rate_limiter.resources.add(name=RESOURCE, count=1, **{"global": True})


def _set_batching(message: Any, new: ModelSetting, old: ModelSetting) -> None:
    batching = message.dynamic_batching
    if not old.batching:
        batching.SetInParent()
    if new.preferred != old.preferred or any(size > new.max_batch_size for size in batching.preferred_batch_size):
        del batching.preferred_batch_size[:]
        batching.preferred_batch_size.extend(new.preferred)
    if new.delay_us != old.delay_us:
        batching.max_queue_delay_microseconds = new.delay_us
    if new.queue_limits != (old.queue_limits or (0,)):
        if len(new.queue_limits) == 1:
            batching.default_queue_policy.max_queue_size = new.queue_limits[0]
        else:
            _set_levels(batching, new.queue_limits, old.queue_limits)
    if new.adaptive_ms != old.adaptive_ms:
        message.parameters.pop(PARAMETER, None)
        if new.adaptive_ms:
            message.parameters[PARAMETER].string_value = f"{new.adaptive_ms:g}"


def _set_levels(batching: Any, new: tuple[int, ...], old: tuple[int, ...]) -> None:
    for level, (limit, before) in enumerate(zip(new, old, strict=True), start=1):
        if limit == before:
            continue
        if level not in batching.priority_queue_policy and batching.HasField("default_queue_policy"):
            batching.priority_queue_policy[level].CopyFrom(batching.default_queue_policy)
        batching.priority_queue_policy[level].max_queue_size = limit
