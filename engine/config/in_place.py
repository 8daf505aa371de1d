"""What may change while a model stays loaded: its instance groups, its version policy
(docs/reference/model-control.md#changes-in-place)."""

from __future__ import annotations

from dataclasses import replace

from .model import ModelConfig, VersionPolicy
from .schema import copy_message

_FIELDS = ("instance_group", "version_policy")


def differs_in_place(former: ModelConfig, new: ModelConfig) -> bool:
    """Whether a model can go from one configuration to the other without being loaded again; equal ones included.

    Both as they were read, before anything was completed. Ensembles always have to be loaded.
    """
    if former.has_ensemble_scheduling or new.has_ensemble_scheduling:
        return False
    return _rest(former) == _rest(new)


def adopt(complete: ModelConfig, read: ModelConfig) -> ModelConfig:
    """A loaded model's configuration, with the instance groups and the version policy of one that was just read."""
    message = None
    if complete.message is not None:
        message = copy_message(complete.message)
        for field in _FIELDS:
            message.ClearField(field)
        message.instance_group.extend(read.message.instance_group)
        if read.message.HasField("version_policy"):
            message.version_policy.CopyFrom(read.message.version_policy)
    return replace(complete, instance_group=read.instance_group, version_policy=read.version_policy, message=message)


def _rest(config: ModelConfig) -> ModelConfig:
    message = None
    if config.message is not None:
        message = copy_message(config.message)
        for field in _FIELDS:
            message.ClearField(field)
    return replace(config, instance_group=(), version_policy=VersionPolicy(), message=message)
