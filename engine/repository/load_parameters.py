"""What a load request may contain (docs/reference/model-control.md#load-parameters): a configuration, and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import InvalidArgumentError
from ..tensor import Buffer

FILE_PREFIX = "file:"

_CONFIG = "config"


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """The parameters of a load request, read.

    Attributes:
        config_json: replaces the model's configuration.
        files: contents by parameter name (``file:<path>``); if there are any, they are the whole model.
    """

    config_json: str
    files: Mapping[str, Buffer] = field(default_factory=dict, repr=False)


def read_load_parameters(parameters: Mapping[str, str | Buffer]) -> LoadParameters | None:
    """None if there are no parameters.

    Raises:
        InvalidArgumentError: one is unknown or of the wrong type, or there are files and no configuration.
    """
    if not parameters:
        return None
    files: dict[str, Buffer] = {}
    for key, value in parameters.items():
        if key.startswith(FILE_PREFIX):
            if isinstance(value, str):
                raise InvalidArgumentError(f"File parameter '{key}' must have bytes type for its value")
            files[key] = value
        elif key != _CONFIG:
            kind = "string" if isinstance(value, str) else "bytes"
            raise InvalidArgumentError(f"Unrecognized load parameter '{key}' with type '{kind}'")
    config = parameters.get(_CONFIG)
    if config is None:
        raise InvalidArgumentError("Load parameter 'config' must be specified for model file override")
    if not isinstance(config, str):
        raise InvalidArgumentError("Config parameter 'config' must have string type for its value")
    return LoadParameters(config, files)
