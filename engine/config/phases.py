"""The two phases in which a configuration comes to be: the poll phase, from a model directory to a normalised
configuration, and the load phase, which merges what the backend found out, fills in and checks the rest
(docs/reference/model-configuration.md#where-it-comes-from,
docs/reference/model-configuration.md#completion-by-backends)."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format
from google.protobuf.text_format import ParseError

from ..errors import InternalError, InvalidArgumentError
from ..gpu.discovery import NO_GPUS, Gpus
from .files import read_text, validate_files
from .instance_groups import normalize_instance_groups, validate_instance_groups
from .json_text import read_json
from .model import ModelConfig, ModelConfigMessage, ModelInput, ModelOutput, copy_message, model_config
from .platforms import complete_backend, normalize
from .validate import validate, validate_settings, validate_tensors

if TYPE_CHECKING:
    from ..backends.interface import Completion

_log = logging.getLogger("trireme.config")


def read_message(model_directory: Path, *, config_name: str, override_json: str | None, auto_complete: bool) -> Any:
    """Steps 1 and 2: a `ModelConfigMessage`, as it was written.

    Args:
        config_name: ``--model-config-name``: prefer ``configs/<name>.pbtxt``, if it exists.
        override_json: the ``config`` parameter of a load request; replaces the file.
        auto_complete: False demands a complete configuration: a file, with valid inputs and outputs.

    Raises:
        InternalError: the file cannot be read, or is no text form of a configuration; where it is wrong is logged.
        InvalidArgumentError: the override cannot be parsed.
    """
    if override_json is not None:
        return read_json(override_json)
    path = config_path(model_directory, config_name)
    if auto_complete and not os.path.exists(path):
        return ModelConfigMessage()
    text = read_text(path)
    try:
        return text_format.Parse(text, ModelConfigMessage())
    except ParseError as error:
        _log.error("Error parsing text-format inference.ModelConfig: %s (%s)", parse_error_text(error), path)
        raise InternalError(f"failed to read text proto from {path}") from error


def config_path(model_directory: Path, config_name: str) -> Path:
    """The file with the configuration, which need not be there: ``configs/<name>.pbtxt``, if that exists."""
    custom = model_directory / "configs" / f"{config_name}.pbtxt"
    return custom if config_name and os.path.exists(custom) else model_directory / "config.pbtxt"


def finish_config(message: Any, model_directory: Path, name: str, *, auto_complete: bool) -> ModelConfig:
    """Steps 4 to 8: fill in what is left open, and check; `message` is changed in place.

    Args:
        model_directory: where the model's files are, which need not be called as the model is.
        name: what the model must be called.

    Raises:
        InvalidArgumentError: the configuration is invalid.
    """
    message.name = message.name or name
    complete_backend(message, model_directory)
    normalize(message)
    validate_settings(message)
    if message.name != name:
        raise InvalidArgumentError(
            f"unexpected directory name '{name}' for model '{message.name}', directory name must equal model name"
        )
    if not auto_complete:
        validate_tensors(message)
    return model_config(message)


# -- The load phase


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
        for tensors, found in ((message.input, completion.input), (message.output, completion.output)):
            if not tensors:
                for tensor in found:
                    _add(tensors, tensor)
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


_SAME = ("is_shape_tensor", "allow_ragged_batch", "optional", "label_filename")
"""Fields that inputs or outputs have in common with the message."""


def _add(tensors: Any, tensor: ModelInput | ModelOutput) -> None:
    same = {name: getattr(tensor, name) for name in _SAME if hasattr(tensor, name)}
    added = tensors.add(name=tensor.name, data_type=tensor.datatype.number, dims=tensor.dims, **same)
    if tensor.reshape is not None:
        added.reshape.SetInParent()
        added.reshape.shape.extend(tensor.reshape)


# What is wrong with a configuration's text, in the words of protobuf's C++ parser, which tools look for.
#
# Python's parser finds the same mistakes at the same places, but puts them differently. Integers are translated; other
# mistakes are told in Python's words, without the line that they quote.


_PLACE = re.compile(r"\A\d+:\d+ : (?:'.*': (?=[A-Z]))?", re.DOTALL)
_NO_INTEGER = re.compile(r"Couldn't parse integer: (.*)", re.DOTALL)
_OUT_OF_RANGE = re.compile(r"Value out of range: (-?)(\d+)")
_INT32_MAX = 2**31 - 1


def parse_error_text(error: ParseError) -> str:
    """``<line>:<column>: <what>``."""
    what = _PLACE.sub("", str(error))
    if found := _NO_INTEGER.fullmatch(what):
        what = f"Expected integer, got: {found[1]}"
    elif found := _OUT_OF_RANGE.fullmatch(what):
        what = _out_of_range(bool(found[1]), found[2])
    line, column = error.GetLine(), error.GetColumn()
    return what if line is None else f"{line}:{column}: {what}"


def _out_of_range(negative: bool, digits: str) -> str:
    """A small negative number is refused by unsigned fields alone, in which the sign is what is not expected."""
    if negative and int(digits[:11]) <= _INT32_MAX:
        return "Expected integer, got: -"
    return f"Integer out of range ({digits})"
