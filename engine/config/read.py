"""The poll phase: from a model directory to a normalised configuration
(docs/reference/model-configuration.md#where-it-comes-from)."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.text_format import ParseError

from ..errors import InternalError, InvalidArgumentError
from .files import read_text
from .json_text import read_json
from .model import ModelConfig, ModelConfigMessage, model_config
from .platforms import complete_backend, normalize
from .validate import validate_settings, validate_tensors

_log = logging.getLogger(__name__)


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
    path = _choose_file(model_directory, config_name)
    return ModelConfigMessage() if auto_complete and not os.path.exists(path) else read_text_proto(path)


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


def read_text_proto(path: Path) -> Any:
    """A `ModelConfigMessage` from a file in protobuf's text form.

    Raises:
        InternalError: it cannot be read or parsed; line and column are logged.
    """
    text = read_text(path)
    try:
        return text_format.Parse(text, ModelConfigMessage())
    except text_format.ParseError as error:
        _log.error("Error parsing text-format inference.ModelConfig: %s (%s)", parse_error_text(error), path)
        raise InternalError(f"failed to read text proto from {path}") from error


def _choose_file(model_directory: Path, config_name: str) -> Path:
    if config_name:
        custom = model_directory / "configs" / f"{config_name}.pbtxt"
        if os.path.exists(custom):
            return custom
    return model_directory / "config.pbtxt"


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
