"""Which instances a configuration asks for, and which of those that there are will do
(docs/reference/model-control.md#changes-in-place).

Rules:
 1. A group asks for `count` instances on each of its devices, called ``<group name>_<i>``
    (docs/reference/model-configuration.md#instance-groups). Passive ones are made and warmed up, and get no work.
 2. An instance will do for an order if both are alike: the settings of their groups are the same but for name and
    count, and so is the device. Its name does not matter, and stays.
 3. Of those that will do the one with the very name goes first, then the one that stands first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from ..backends.interface import InstanceSpec
from ..config.instance_groups import UNLIMITED, RateLimit
from ..config.model import InstanceGroup, ModelConfig, VersionPolicy, copy_message


@dataclass(frozen=True, slots=True)
class InstanceOrder:
    """One instance that is wanted.

    Attributes:
        passive: it gets no work.
        likeness: equal for instances that can stand for each other (rule 2).
    """

    spec: InstanceSpec
    limit: RateLimit = UNLIMITED
    passive: bool = False
    likeness: Hashable = field(default=None, repr=False)


def instance_orders(config: ModelConfig, limits: Sequence[RateLimit]) -> Iterator[InstanceOrder]:
    """The instances that a configuration asks for (rule 1).

    Args:
        limits: by instance group; empty if executions are not limited.
    """
    for group, limit in zip_longest(config.instance_group, limits, fillvalue=UNLIMITED):
        assert isinstance(group, InstanceGroup)
        devices = group.gpus or (0,)
        alike = replace(group, name="", count=0)
        for index in range(group.count * len(devices)):
            device = devices[index // group.count]
            spec = InstanceSpec(f"{group.name}_{index}", group.kind, device, group.host_policy)
            yield InstanceOrder(spec, limit, group.passive, (alike, device, limit))


def working_instances(config: ModelConfig) -> list[InstanceSpec]:
    """The instances that get work."""
    return [order.spec for order in instance_orders(config, ()) if not order.passive]


def first_instance(config: ModelConfig) -> InstanceSpec:
    """The first instance that gets work: the one to make where a model is checked by making one."""
    return next(iter(working_instances(config)), InstanceSpec(config.name))


def input_gpu(config: ModelConfig) -> int | None:
    """The GPU that all instances are on; None if they are on several, or elsewhere, or if others look at inputs before
    they do."""
    if config.response_cache:
        return None
    gpus = {spec.gpu for spec in working_instances(config)}
    return gpus.pop() if len(gpus) == 1 else None


def all_on_cpu(config: ModelConfig) -> bool:
    """Whether no instance is on a GPU, and none but them looks at inputs."""
    return not config.response_cache and all(spec.gpu is None for spec in working_instances(config))


def match(present: Sequence[InstanceOrder], wanted: Sequence[InstanceOrder]) -> tuple[set[int], list[InstanceOrder]]:
    """Use what is there (rules 2 and 3).

    Returns:
        Positions in `present` of those that stay, and the orders for which none is there.
    """
    kept: set[int] = set()
    open_orders = list(wanted)
    for by_name in (True, False):
        missing = []
        for order in open_orders:
            fitting = (
                position
                for position, other in enumerate(present)
                if other.likeness == order.likeness
                and (not by_name or other.spec.name == order.spec.name)
                and position not in kept
            )
            if (found := next(fitting, None)) is None:
                missing.append(order)
            else:
                kept.add(found)
        open_orders = missing
    return kept, open_orders


# What may change while a model stays loaded: its instance groups, its version policy
# (docs/reference/model-control.md#changes-in-place).


def differs_in_place(former: ModelConfig, new: ModelConfig) -> bool:
    """Whether a model can go from one configuration to the other without being loaded again; equal ones included.

    Both as they were read, before anything was completed. Ensembles always have to be loaded.
    """
    if former.has_ensemble_scheduling or new.has_ensemble_scheduling:
        return False
    return _rest(former) == _rest(new)


def adopt(complete: ModelConfig, read: ModelConfig) -> ModelConfig:
    """A loaded model's configuration, with the instance groups and the version policy of one that was just read."""
    adopted = replace(_rest(complete), instance_group=read.instance_group, version_policy=read.version_policy)
    if adopted.message is not None:
        adopted.message.instance_group.extend(read.message.instance_group)
        if read.message.HasField("version_policy"):
            adopted.message.version_policy.CopyFrom(read.message.version_policy)
    return adopted


def _rest(config: ModelConfig) -> ModelConfig:
    message = None
    if config.message is not None:
        message = copy_message(config.message)
        for field in ("instance_group", "version_policy"):
            message.ClearField(field)
    return replace(config, instance_group=(), version_policy=VersionPolicy(), message=message)
