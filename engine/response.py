"""An inference response as the engine sees it, whichever protocol it goes out by."""

from __future__ import annotations

from dataclasses import dataclass, field

from .request import ParameterValue
from .tensor import Tensor


@dataclass(slots=True)
class InferenceResponse:
    """One answer of a model. Outputs stand in the order in which the model produced them, requested ones only."""

    model_name: str
    model_version: int
    id: str
    outputs: list[Tensor]
    parameters: dict[str, ParameterValue] = field(default_factory=dict)

    def output(self, name: str) -> Tensor:
        """The output called `name`.

        Raises:
            KeyError: the response has no such output.
        """
        for tensor in self.outputs:
            if tensor.name == name:
                return tensor
        raise KeyError(name)
