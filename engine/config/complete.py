"""The load phase: merge what the backend found out, then fill in and check the rest
(docs/reference/model-configuration.md#where-it-comes-from,
docs/reference/model-configuration.md#completion-by-backends)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..gpu.discovery import NO_GPUS, Gpus
from .files import validate_files
from .instance_groups import normalize_instance_groups, validate_instance_groups
from .json_text import read_json
from .model import ModelConfig, ModelInput, ModelOutput, copy_message, model_config
from .platforms import normalize
from .validate import validate

if TYPE_CHECKING:
    from ..backends.interface import Completion


def prepare_for_load(config: ModelConfig, completion: Completion | None, gpus: Gpus = NO_GPUS) -> ModelConfig:
    """Everything between the poll phase and the backend's load.

    Args:
        config: what `finish_config` returned.
        completion: the backend's answer about the model file; None if it was not asked or has nothing to add.

    Returns:
        A complete, valid configuration.

    Raises:
        InvalidArgumentError: instance groups or the completed configuration are invalid.
        InternalError: an instance group is of a kind that does not exist.
    """
    prepared = complete(place_instances(config, gpus), completion)
    validate(prepared)
    warn_of_unused(prepared.message)
    return prepared


def place_instances(config: ModelConfig, gpus: Gpus = NO_GPUS) -> ModelConfig:
    """The configuration with its instance groups filled in, and checked, as are the names of its files.

    Raises:
        InvalidArgumentError, InternalError: see `validate_files` and `validate_instance_groups`.
    """
    message = copy_message(config.message)
    validate_files(message)
    normalize_instance_groups(message, gpus)
    validate_instance_groups(message, gpus)
    return model_config(message)


def complete(config: ModelConfig, completion: Completion | None) -> ModelConfig:
    """The configuration with a backend's answer merged in, normalised again; nothing is checked.

    Inputs and outputs are taken only where the configuration lists none, dynamic batching only where it chooses no
    scheduler.
    """
    message = copy_message(config.message)
    if completion is not None and completion.rewritten:
        _take_over(message, read_json(completion.rewritten))
    elif completion is not None:
        message.max_batch_size = completion.max_batch_size
        if not message.input:
            for tensor in completion.input:
                _add_input(message, tensor)
        if not message.output:
            for tensor in completion.output:
                _add_output(message, tensor)
        if completion.dynamic_batching and message.WhichOneof("scheduling_choice") is None:
            message.dynamic_batching.SetInParent()
        if completion.decoupled is not None:
            message.model_transaction_policy.decoupled = completion.decoupled
    normalize(message)
    return model_config(message)


def _take_over(message: Any, rewritten: Any) -> None:
    """What a model may decide about its configuration, wherever the configuration stood before."""
    message.max_batch_size = rewritten.max_batch_size
    for tensors, decided in ((message.input, rewritten.input), (message.output, rewritten.output)):
        del tensors[:]
        tensors.extend(decided)
    if message.WhichOneof("scheduling_choice") is None and rewritten.HasField("dynamic_batching"):
        message.dynamic_batching.CopyFrom(rewritten.dynamic_batching)
    if rewritten.HasField("model_transaction_policy"):
        message.model_transaction_policy.CopyFrom(rewritten.model_transaction_policy)


def _add_input(message: Any, tensor: ModelInput) -> None:
    added = message.input.add(
        is_shape_tensor=tensor.is_shape_tensor,
        allow_ragged_batch=tensor.allow_ragged_batch,
        optional=tensor.optional,
    )
    _describe(added, tensor)


def _add_output(message: Any, tensor: ModelOutput) -> None:
    added = message.output.add(label_filename=tensor.label_filename, is_shape_tensor=tensor.is_shape_tensor)
    _describe(added, tensor)


def _describe(added: Any, tensor: ModelInput | ModelOutput) -> None:
    added.name = tensor.name
    added.data_type = tensor.datatype.number
    added.dims.extend(tensor.dims)
    if tensor.reshape is not None:
        added.reshape.SetInParent()
        added.reshape.shape.extend(tensor.reshape)


# -- Settings that are read, checked and shown, but that this version does not carry out; each is said once a load


logger = logging.getLogger("trireme.config")


def warn_of_unused(message: Any) -> None:
    """Log which settings of a model's configuration have no effect."""
    for setting in unused_settings(message):
        logger.warning("model '%s': '%s' has no effect in this version", message.name, setting)


def unused_settings(message: Any) -> list[str]:
    """Names of the settings that have no effect."""
    groups = message.instance_group
    asked = {
        "instance_group.passive": any(group.passive for group in groups),
        "instance_group.host_policy": any(group.host_policy for group in groups),
    }
    return [setting for setting, given in asked.items() if given]
