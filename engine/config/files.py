"""Files of a model directory: where the names in a configuration lead, and what is in them; its versions."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import InternalError, InvalidArgumentError, UnsupportedError
from .model import ModelConfig, VersionPolicy, refuse


def path_within(directory: Path, folder: str, name: str) -> Path | None:
    """Where a file name in a model's configuration leads; None if that is not below the model's directory.

    ``..`` is taken out before anything is opened, so a link cannot change where it leads to. A link itself is followed
    wherever it leads: only who may write to the repository can make one, and clients who send files cannot.

    Args:
        folder: which one of its folders the name is relative to; empty for the directory itself.
    """
    relative = os.path.normpath(os.path.join(folder, name))
    if os.path.isabs(relative) or relative.split(os.sep)[0] == os.pardir or "\0" in name:
        return None
    return directory / relative


def read_bytes(path: Path) -> bytes:
    """The contents of a file.

    Raises:
        InternalError: ``failed to open text file for read <path>: <reason>``.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None else str(error)
    except ValueError as error:  # a NUL in the path
        reason = str(error)
    raise InternalError(f"failed to open text file for read {path}: {reason}")


def read_text(path: Path) -> str:
    """The text of a file (errors as of `read_bytes`). What is not UTF-8 becomes U+FFFD, so that a comment in another
    encoding does no harm."""
    return read_bytes(path).decode(errors="replace")


# Label files: names for the indexes of an output, used by the classification extension
# (docs/reference/model-configuration.md#labels).


def read_labels(model_directory: Path, config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Labels by output name, one line a label, for the outputs that name a label file.

    Raises:
        InternalError: a file cannot be read.
        UnsupportedError: a file is outside the model directory.
    """
    labels = {}
    for output in config.output:
        if not output.label_filename:
            continue
        path = path_within(model_directory, "", output.label_filename)
        if path is None:
            shown = os.path.normpath(model_directory / output.label_filename)
            raise UnsupportedError(
                f"label file path '{shown}' for output '{output.name}' in model '{config.name}' is outside model "
                "directory"
            )
        lines = read_text(path).split("\n")
        labels[output.name] = tuple(lines[:-1] if lines[-1] == "" else lines)
    return labels


# -- Which versions of a model are served (docs/reference/model-control.md#versions)


_log = logging.getLogger(__name__)


def select_versions(policy: VersionPolicy, available: Sequence[int], model: str) -> tuple[int, ...]:
    """The versions to load, ascending, of those that have a directory.

    A version that the policy asks for by number but that has no directory is only logged.

    Raises:
        InvalidArgumentError: nothing is left.
    """
    existing = sorted(set(available))
    if policy.all_versions:
        chosen = existing
    elif policy.specific:
        chosen = [version for version in existing if version in policy.specific]
        for version in sorted(set(policy.specific) - set(existing)):
            _log.warning(
                "version %d is specified for model '%s', but the version directory is not present", version, model
            )
    else:
        chosen = existing[-policy.latest :] if policy.latest else []
    if not chosen:
        raise InvalidArgumentError(
            f"at least one version must be available under the version policy of model '{model}'"
        )
    return tuple(chosen)


# -- Checks of the file names in a configuration: all of them stay in the model's directory


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
    refuse(file_problems(message))


def file_problems(message: Any) -> Iterator[str]:
    """All that `validate_files` would refuse, in order."""
    return (
        f"'{setting}' of model '{message.name}' must name a file in the model's directory, but is '{name}'"
        for setting, folder, name in _file_names(message)
        if path_within(Path(), folder, name) is None
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
