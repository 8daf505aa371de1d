"""Label files: names for the indexes of an output, used by the classification extension
(docs/reference/model-configuration.md#labels)."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UnsupportedError
from .files import path_within, read_text
from .model import ModelConfig


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
