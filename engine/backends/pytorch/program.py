"""What a model file becomes on a device: something that takes named arrays and gives outputs in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
