"""What an ONNX graph says about its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...config.model import Dims
from ...datatypes import BY_ONNX, DataType
from ...errors import InternalError, UnsupportedError

_OTHER_KINDS = {
    "seq": "ONNX_TYPE_SEQUENCE",
    "map": "ONNX_TYPE_MAP",
    "sparse_tensor": "ONNX_TYPE_SPARSETENSOR",
    "optional": "ONNX_TYPE_OPTIONAL",
}


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One input or output.

    Attributes:
        element: ONNX element type as printed (``tensor(float)``).
        dims: -1 for a dimension of any size; empty for a scalar (and where the graph does not tell).
    """

    name: str
    element: str
    dims: Dims

    @property
    def onnx_type(self) -> str:
        """The element type in ONNX's spelling (``FLOAT``)."""
        return self.element.removeprefix("tensor(")[:-1].upper()

    @property
    def config_type(self) -> str:
        """The element type in a model configuration's spelling, also of types that configurations do not have."""
        datatype = BY_ONNX.get(self.element)
        return datatype.config_name if datatype else f"TYPE_{self.onnx_type}"

    def datatype(self, role: str, model_name: str) -> DataType:
        """The element type.

        Args:
            role: ``input`` or ``output``.

        Raises:
            InternalError: there is no such type in Trireme.
        """
        datatype = BY_ONNX.get(self.element)
        if datatype is None:
            raise InternalError(
                f"unsupported datatype {self.config_type} for {role} '{self.name}' for model '{model_name}'"
            )
        return datatype


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a graph, by name, in its order.

    Attributes:
        inputs: those that every run needs.
        initializers: inputs that have a value of their own unless a run brings another one.
    """

    inputs: Mapping[str, GraphTensor]
    initializers: Mapping[str, GraphTensor]
    outputs: Mapping[str, GraphTensor]

    @classmethod
    def of(cls, session: Any) -> Signature:
        """The signature of an ``onnxruntime.InferenceSession``.

        Raises:
            UnsupportedError: an input or output is no tensor.
        """
        return cls(
            inputs=_tensors(session.get_inputs()),
            initializers=_tensors(session.get_overridable_initializers()),
            outputs=_tensors(session.get_outputs()),
        )

    def find_input(self, name: str) -> GraphTensor | None:
        return self.inputs.get(name) or self.initializers.get(name)


def _tensors(arguments: Any) -> dict[str, GraphTensor]:
    tensors: dict[str, GraphTensor] = {}
    for argument in arguments:
        kind = argument.type.partition("(")[0]
        if kind != "tensor":
            raise UnsupportedError(
                f"Unsupported ONNX Type '{_OTHER_KINDS.get(kind, kind)}' for I/O '{argument.name}', expected "
                "'ONNX_TYPE_TENSOR'."
            )
        dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape)
        tensors[argument.name] = GraphTensor(argument.name, argument.type, dims)
    return tensors
