"""Instance groups: what is left open is filled in, then checked against the devices
(docs/reference/model-configuration.md#instance-groups)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import InternalError
from ..gpu.discovery import NO_GPUS, Gpus
from .model import ModelConfig, enum_name, mirrored, refuse
from .platforms import is_ensemble

MAX_INSTANCES = 1_024
"""Of one version of a model. Each has a thread or a process of its own."""

_TWO_ON_CPU = frozenset({"tensorflow", "onnxruntime"})


def leaves_kind_open(message: Any) -> bool:
    """Whether a group, or the model that has none, asks neither for a kind of device nor for certain GPUs."""
    groups = message.instance_group
    return not groups or any(group.kind == group.KIND_AUTO and not group.gpus for group in groups)


def normalize_instance_groups(message: Any, gpus: Gpus = NO_GPUS) -> None:
    """Give every group a name, a kind, a count and, on GPUs, its devices; in place. An ensemble has none.

    A group that may be anywhere goes to the GPUs if there are any, all that it lists may be used, and, where it lists
    none, the backend uses GPUs at all.
    """
    if is_ensemble(message):
        return
    if not message.instance_group:
        message.instance_group.add(name=message.name)
    kinds = message.instance_group[0]
    for index, group in enumerate(message.instance_group):
        if not group.name:
            group.name = f"{message.name}_{index}"
        if group.kind == kinds.KIND_AUTO:
            wanted = set(group.gpus) <= set(gpus.indices) if group.gpus else gpus.automatic
            group.kind = kinds.KIND_GPU if gpus.found and wanted else kinds.KIND_CPU
        if group.count < 1:
            group.count = 2 if group.kind == kinds.KIND_CPU and message.backend in _TWO_ON_CPU else 1
        if group.kind == kinds.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus.indices)


def validate_instance_groups(message: Any, gpus: Gpus = NO_GPUS) -> None:
    """Check normalised groups.

    Raises:
        InvalidArgumentError: a group cannot be placed, or uses fields that are not for its platform; or there are more
            instances than can be.
        InternalError: a kind that does not exist.
    """
    if not is_ensemble(message):
        refuse(group_problems(message, gpus))


def group_problems(message: Any, gpus: Gpus = NO_GPUS) -> Iterator[str]:
    """All that `validate_instance_groups` would refuse, in order; a kind that does not exist is raised."""
    model = message.name
    if not message.instance_group:
        yield f"must specify one or more 'instance group's for {model}"
    for group in message.instance_group:
        who = f"instance group {group.name} of model {model}"
        yield from _placement_problems(who, group, gpus)
        who += f" and platform {message.platform}"
        for profile in group.profile:
            if message.platform != "tensorrt_plan":
                yield f"{who}specifies profile field which is only supported for TensorRT models"
            if not (profile.isascii() and profile.isdigit()):
                yield (
                    f"{who} specifies invalid profile {profile}. The field should contain the string representation of "
                    "a non-negative integer."
                )
    if message.instance_group and all(group.passive for group in message.instance_group):
        yield f"all instance groups of model {model} are passive, so that none would execute its requests"
    count = sum(group.count * max(1, len(group.gpus)) for group in message.instance_group)
    if count > MAX_INSTANCES:
        yield (
            f"the instance groups of model {model} ask for {count} instances, more than the {MAX_INSTANCES} "
            "that there can be"
        )


def _placement_problems(who: str, group: Any, gpus: Gpus) -> Iterator[str]:
    kind = enum_name(group, "kind")
    if kind not in ("KIND_CPU", "KIND_MODEL", "KIND_GPU"):
        raise InternalError(f"{who} has unexpected kind {kind}")
    if kind != "KIND_GPU":
        if group.gpus:
            yield f"{who} has kind {kind} but specifies one or more GPUs"
        return
    if not group.gpus:
        yield f"{who} has kind KIND_GPU but {'specifies no GPUs' if gpus.found else 'no GPUs are available'}"
    for gpu in group.gpus:
        if gpu not in gpus.indices:
            yield (
                f"{who} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required CUDA "
                f"compute compatibility of {gpus.min_compute_capability:.6f} are: {', '.join(map(str, gpus.indices))}"
            )


# -- ``instance_group.rate_limiter`` as plain values (docs/reference/scheduling.md#rate-limiter)


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """So many units of a resource, held while executing; of the one pool there is, or of the instance's device's."""

    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What an instance needs in order to execute, and its priority: 1 is the highest, and 0 means 1."""

    resources: tuple[ResourceDemand, ...] = ()
    priority: int = 0


UNLIMITED = RateLimit()
"""Needs nothing."""


def rate_limits(config: ModelConfig) -> tuple[RateLimit, ...]:
    """The limits of the instances, one for each of the configuration's instance groups."""
    limits = (group.rate_limiter for group in config.message.instance_group)
    return tuple(
        mirrored(RateLimit, limit, resources=tuple(mirrored(ResourceDemand, item) for item in limit.resources))
        for limit in limits
    )
