"""Models in the layout of Hugging Face: their files, their tensors and settings, and what their attention may have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..config.model import ModelConfig
from ..datatypes import DataType
from ..errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from ..plugins import import_package
from .parameters import parse_int

CONFIG = "config.json"
_DTYPES = ("auto", "float32", "bfloat16", "float16")

_UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""What some networks add to attention, and is not computed here."""


def read_object(path: Path) -> Mapping[str, Any]:
    """A file with a JSON object. UnavailableError if it is not there, InvalidArgumentError if it is something else."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"unable to read '{path}': expected a JSON object")
    return found


def read_json(path: Path) -> Any:
    """What a JSON file has. Raises as `read_object` does."""
    if not path.is_file():
        raise UnavailableError(f"unable to find '{path}'; expected a model in Hugging Face's layout")
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise InvalidArgumentError(f"unable to read '{path}': {error}") from None


Tensors = Mapping[str, tuple[DataType, tuple[int, ...]]]
"""By name, element type and dimensions."""


def check_tensors(config: ModelConfig, inputs: Tensors, outputs: Tensors) -> None:
    """InvalidArgumentError if a configuration names a tensor that is not there, or is of another type."""
    for kind, tensors, known in (("input", config.input, inputs), ("output", config.output, outputs)):
        for tensor in tensors:
            if known.get(tensor.name, (None,))[0] is not tensor.datatype:
                expected = ", ".join(f"{name} ({datatype.name})" for name, (datatype, _) in known.items())
                raise InvalidArgumentError(
                    f"unable to load model '{config.name}': {kind} '{tensor.name}' of type {tensor.datatype.name}; "
                    f"expected some of {expected}"
                )


def integer_setting(config: ModelConfig, name: str, usual: int) -> int:
    """A parameter of a model: 1 or more, or 0 if it may be off, as it is then by itself or by a usual value of 1.

    Raises:
        InvalidArgumentError: it is something else.
    """
    text = config.parameters.get(name)
    if text is None:
        return usual
    value = parse_int(text)
    least = 1 if usual > 1 else 0
    if value < least:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}': parameter '{name}' is {text}; expected {least} or more"
        )
    return value


def dtype_setting(config: ModelConfig) -> str:
    """The parameter ``dtype``: torch's name of the type that a network is computed in; ``auto`` for that of its files.

    Raises:
        InvalidArgumentError: it is something else.
    """
    name = config.parameters.get("dtype", _DTYPES[0]).strip()
    if name not in _DTYPES:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}': parameter 'dtype' is {name}; expected one of {', '.join(_DTYPES)}"
        )
    return name


def check_attention(arguments: Mapping[str, Any]) -> None:
    """Look at what transformers hands to an attention of ours.

    Raises:
        UnsupportedError: the network has something in its attention that is not computed.
    """
    unknown = [name for name in _UNSUPPORTED if arguments.get(name) is not None]
    if unknown:
        raise UnsupportedError(f"the network's attention has '{unknown[0]}', which the backend 'generation' lacks")


def no_mask(**_arguments: Any) -> None:
    """What transformers calls for the mask of a batch: there is none, as each step knows which token sees which."""


def first_line(error: Exception) -> str:
    """Of the text of an error of transformers or torch."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def import_transformers(user: str, extra: str) -> Any:
    """The package, which says nothing by itself any more: what matters in its reports is an error of ours.

    Raises:
        UnavailableError: it is missing.
    """
    transformers = import_package("transformers", user, extra)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return transformers


def check_weights(directory: Path, missing: Iterable[str]) -> None:
    """Look at the names of weights that a network's files lack: they would be random numbers.

    Raises:
        InternalError: there are some.
    """
    lacking = sorted(missing)
    if lacking:
        raise InternalError(
            f"unable to load the network in '{directory}': {len(lacking)} of its weights are missing, such as "
            f"'{lacking[0]}'; expected all that {CONFIG} asks for"
        )
