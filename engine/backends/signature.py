"""What a model's file says about its inputs and outputs, whatever the framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..config.model import Dims
from ..datatypes import DataType
from ..errors import InternalError


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One input or output.

    Attributes:
        element: the element type in the framework's spelling, upper case (``FLOAT``).
        known: what Trireme calls it; None if it has no such type, or the framework may not have it.
        dims: -1 for a dimension of any size; empty for a scalar (and where the graph does not tell).
    """

    name: str
    element: str
    known: DataType | None
    dims: Dims

    @property
    def config_type(self) -> str:
        """The element type in a model configuration's spelling, also of types that configurations do not have."""
        return self.known.config_name if self.known else f"TYPE_{self.element}"

    def datatype(self, role: str, model_name: str) -> DataType:
        """The element type.

        Args:
            role: ``input`` or ``output``.

        Raises:
            InternalError: there is no such type in Trireme.
        """
        if self.known is None:
            raise InternalError(
                f"unsupported datatype {self.config_type} for {role} '{self.name}' for model '{model_name}'"
            )
        return self.known


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model, by name, in its order.

    Attributes:
        inputs: those that every run needs.
        initializers: inputs that have a value of their own unless a run brings another one.
    """

    inputs: Mapping[str, GraphTensor]
    outputs: Mapping[str, GraphTensor]
    initializers: Mapping[str, GraphTensor] = field(default_factory=dict)

    def find_input(self, name: str) -> GraphTensor | None:
        return self.inputs.get(name) or self.initializers.get(name)
