"""What a model file becomes on a device: something that takes named arrays and gives outputs in order."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InternalError, UnavailableError

Values = Mapping[str, Any]
"""By the name that the configuration gives it: a torch tensor, or a list of `str`."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """What the configuration calls a model's tensors, each in the order in which the backend treats them.

    Attributes:
        inputs: of the configuration, then control inputs, batch inputs and states.
        outputs: of the configuration, then states that are not among those.
        stateful: the model has implicit state.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stateful: bool = False


class Program(ABC):
    """A module on its device. Used by one thread at a time, unless instances share it."""

    device: Any

    @abstractmethod
    def run(self, inputs: Values) -> Sequence[Any]:
        """Execute the model.

        Returns:
            The outputs, in the order of `TensorNames.outputs`.
        """


# -- The torch package: imported when a model needs it, never before; and its errors in plain words


def import_torch() -> Any:
    """The package.

    Raises:
        UnavailableError: it is not installed, or broken.
    """
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise UnavailableError(
            f"the backend 'pytorch' needs the package torch: pip install trireme[torch] ({error})"
        ) from error


def error_types(torch: Any) -> tuple[type[Exception], ...]:
    """What torch raises when it loads or runs a model: its own errors, and what the model's code may raise."""
    return (torch.jit.Error, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def load_error(model_name: str, error: Exception) -> InternalError:
    """A model file that torch cannot load."""
    return InternalError(f"failed to load model '{model_name}': {str(error).strip()}")


def execute_error(error: Exception) -> InternalError:
    """A model that raised."""
    return InternalError(f"PyTorch execute failure: {str(error).strip() or type(error).__name__}")
