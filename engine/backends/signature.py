"""What a model's file says about its inputs and outputs, whatever the framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..config.model import Dims, ModelConfig
from ..config.sequence import SequenceBatching
from ..datatypes import DataType
from ..errors import InternalError


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One input or output.

    Attributes:
        element: the element type in the framework's spelling, upper case (``FLOAT``).
        known: what Trireme calls it; None if it has no such type, or the framework may not have it.
        dims: -1 for a dimension of any size; empty for a scalar.
        any_rank: the graph does not say how many dimensions there are; `dims` is empty.
    """

    name: str
    element: str
    known: DataType | None
    dims: Dims
    any_rank: bool = False

    @property
    def is_scalar(self) -> bool:
        return not self.dims and not self.any_rank

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


def fed_inputs(config: ModelConfig, sequences: SequenceBatching) -> tuple[str, ...]:
    """Names of all that a model is given: inputs of requests, batch inputs, controls and states of sequences."""
    names = [tensor.name for tensor in config.input]
    names += [name for spec in config.batch_input for name in spec.target_names]
    names += [control.name for control in sequences.controls]
    names += [state.input_name for state in sequences.states]
    return tuple(dict.fromkeys(names))
