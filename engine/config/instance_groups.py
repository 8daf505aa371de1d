"""Instance groups: what is left open is filled in, then checked against the devices (model-config.md §5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InternalError, InvalidArgumentError
from .build import enum_name
from .normalize import is_ensemble

MIN_COMPUTE_CAPABILITY = 6.0
"""GPUs below this CUDA compute capability are not used (Triton's default)."""

_TWO_ON_CPU = frozenset({"tensorflow", "onnxruntime"})


def normalize_instance_groups(message: Any, gpus: Sequence[int] = ()) -> None:
    """Give every group a name, a kind, a count and, on GPUs, its devices; in place. An ensemble has none."""
    if is_ensemble(message):
        return
    if not message.instance_group:
        message.instance_group.add(name=message.name)
    kinds = message.instance_group[0]
    for index, group in enumerate(message.instance_group):
        if not group.name:
            group.name = f"{message.name}_{index}"
        if group.kind == kinds.KIND_AUTO:
            group.kind = kinds.KIND_GPU if gpus and set(group.gpus) <= set(gpus) else kinds.KIND_CPU
        if group.count < 1:
            group.count = 2 if group.kind == kinds.KIND_CPU and message.backend in _TWO_ON_CPU else 1
        if group.kind == kinds.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)


def validate_instance_groups(message: Any, gpus: Sequence[int] = ()) -> None:
    """Check normalised groups.

    Raises:
        InvalidArgumentError: a group cannot be placed, or uses fields that are not for its platform.
        InternalError: a kind that does not exist.
    """
    if is_ensemble(message):
        return
    if not message.instance_group:
        raise InvalidArgumentError(f"must specify one or more 'instance group's for {message.name}")
    for group in message.instance_group:
        _validate_placement(message.name, group, gpus)
        _validate_profiles(message, group)


def _validate_placement(model: str, group: Any, gpus: Sequence[int]) -> None:
    kind = enum_name(group, "kind")
    who = f"instance group {group.name} of model {model}"
    if kind in ("KIND_CPU", "KIND_MODEL"):
        if group.gpus:
            raise InvalidArgumentError(f"{who} has kind {kind} but specifies one or more GPUs")
    elif kind == "KIND_GPU":
        if not group.gpus:
            raise InvalidArgumentError(
                f"{who} has kind KIND_GPU but {'specifies no GPUs' if gpus else 'no GPUs are available'}"
            )
        for gpu in group.gpus:
            if gpu not in gpus:
                raise InvalidArgumentError(
                    f"{who} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
                    f"CUDA compute compatibility of {MIN_COMPUTE_CAPABILITY:.6f} are: {', '.join(map(str, gpus))}"
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
