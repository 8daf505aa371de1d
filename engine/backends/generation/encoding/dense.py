"""Dense layers of sentence-transformers: what a text's vector goes through after its pooling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import InternalError, InvalidArgumentError, UnsupportedError
from ....plugins import import_package
from ...hugging_face import CONFIG, first_line, read_object

_WEIGHTS = "model.safetensors"
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
"""Of torch, by name."""


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A layer, as its files describe it.

    Attributes:
        takes, gives: the width of a vector before and behind it.
        biased: it adds something.
        activation: of `_ACTIVATIONS`.
    """

    directory: Path
    takes: int
    gives: int
    biased: bool
    activation: str


def read_dense(directory: Path) -> DenseLayer:
    """What a layer's directory says.

    Raises:
        TriremeError: it is one that is not known, or its file cannot be read.
    """
    about = read_object(directory / CONFIG)
    takes, gives = about.get("in_features"), about.get("out_features")
    if type(takes) is not int or type(gives) is not int or takes < 1 or gives < 1:
        raise InvalidArgumentError(f"'{directory / CONFIG}' has no in_features and out_features; expected both")
    activation = str(about.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise UnsupportedError(
            f"unable to serve '{directory / CONFIG}': its activation_function is {activation}; expected one of "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return DenseLayer(directory, takes, gives, bool(about.get("bias", True)), activation)


def load_dense(torch: Any, layer: DenseLayer, device: Any) -> Callable[[Any], Any]:
    """The layer itself: from float32 [texts, takes] to [texts, gives].

    Raises:
        InternalError: its weights cannot be read, or are not what its file says.
    """
    path = layer.directory / _WEIGHTS
    library = import_package("safetensors.torch", "the backend 'generation' needs", "generate")
    broken = import_package("safetensors", "the backend 'generation' needs", "generate").SafetensorError
    try:
        weights = library.load_file(str(path))
    except (OSError, broken) as error:
        raise InternalError(f"unable to read '{path}': {first_line(error)}") from error
    linear = torch.nn.Linear(layer.takes, layer.gives, bias=layer.biased)
    try:
        linear.load_state_dict({name.removeprefix("linear."): value.float() for name, value in weights.items()})
    except RuntimeError as error:
        raise InternalError(f"unable to use '{path}': {' '.join(str(error).split())}") from error
    return torch.nn.Sequential(linear, getattr(torch.nn, layer.activation)()).to(device).eval()
