"""Checks of the file names in a configuration: all of them stay in the model's directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from .files import path_within

WARMUP_FOLDER = "warmup"
"""Where in a model's directory the files of its warm-up samples are."""

STATE_FOLDER = "initial_state"
"""Where in a model's directory the files of initial states are."""

_ANY_VERSION = "1"


def validate_files(message: Any) -> None:
    """Check that no file name leads out of the model's directory. Label files are checked when they are read.

    Raises:
        InvalidArgumentError: one does.
    """
    for setting, folder, name in _file_names(message):
        if path_within(Path(), folder, name) is None:
            raise InvalidArgumentError(
                f"'{setting}' of model '{message.name}' must name a file in the model's directory, but is '{name}'"
            )


def _file_names(message: Any) -> Iterator[tuple[str, str, str]]:
    """Each as (setting, folder that it is relative to, name)."""
    yield "default_model_filename", _ANY_VERSION, message.default_model_filename
    for capability, name in message.cc_model_filenames.items():
        yield f"cc_model_filenames[{capability}]", _ANY_VERSION, name
    for sample in message.model_warmup:
        for tensor, given in sample.inputs.items():
            yield f"model_warmup input_data_file of input '{tensor}'", WARMUP_FOLDER, given.input_data_file
    for state in message.sequence_batching.state:
        for initial in state.initial_state:
            yield f"initial_state data_file of state '{state.input_name}'", STATE_FOLDER, initial.data_file
