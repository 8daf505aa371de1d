"""Instance groups: what is left open is filled in, then checked against the devices
(docs/reference/model-configuration.md#instance-groups)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import InternalError, InvalidArgumentError
from ..gpu.discovery import NO_GPUS, Gpus
from .build import enum_name
from .model import ModelConfig
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
    if is_ensemble(message):
        return
    if not message.instance_group:
        raise InvalidArgumentError(f"must specify one or more 'instance group's for {message.name}")
    for group in message.instance_group:
        _validate_placement(message.name, group, gpus)
        _validate_profiles(message, group)
    count = sum(group.count * max(1, len(group.gpus)) for group in message.instance_group)
    if count > MAX_INSTANCES:
        raise InvalidArgumentError(
            f"the instance groups of model {message.name} ask for {count} instances, more than the {MAX_INSTANCES} "
            "that there can be"
        )


def _validate_placement(model: str, group: Any, gpus: Gpus) -> None:
    kind = enum_name(group, "kind")
    who = f"instance group {group.name} of model {model}"
    if kind in ("KIND_CPU", "KIND_MODEL"):
        if group.gpus:
            raise InvalidArgumentError(f"{who} has kind {kind} but specifies one or more GPUs")
    elif kind == "KIND_GPU":
        if not group.gpus:
            raise InvalidArgumentError(
                f"{who} has kind KIND_GPU but {'specifies no GPUs' if gpus.found else 'no GPUs are available'}"
            )
        for gpu in group.gpus:
            if gpu not in gpus.indices:
                raise InvalidArgumentError(
                    f"{who} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
                    f"CUDA compute compatibility of {gpus.min_compute_capability:.6f} are: "
                    f"{', '.join(map(str, gpus.indices))}"
                )
    else:
        raise InternalError(f"{who} has unexpected kind {kind}")


def _validate_profiles(message: Any, group: Any) -> None:
    who = f"instance group {group.name} of model {message.name} and platform {message.platform}"
    for profile in group.profile:
        if message.platform != "tensorrt_plan":
            raise InvalidArgumentError(f"{who}specifies profile field which is only supported for TensorRT models")
        if not (profile.isascii() and profile.isdigit()):
            raise InvalidArgumentError(
                f"{who} specifies invalid profile {profile}. The field should contain the string representation of "
                "a non-negative integer."
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
        RateLimit(
            tuple(ResourceDemand(item.name, item.count, getattr(item, "global")) for item in limit.resources),
            limit.priority,
        )
        for limit in limits
    )
