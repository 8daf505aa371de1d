"""What an ONNX graph says about its inputs and outputs."""

from __future__ import annotations

from typing import Any

from ...datatypes import BY_ONNX
from ...errors import UnsupportedError
from ..signature import GraphTensor, Signature

_OTHER_KINDS = {
    "seq": "ONNX_TYPE_SEQUENCE",
    "map": "ONNX_TYPE_MAP",
    "sparse_tensor": "ONNX_TYPE_SPARSETENSOR",
    "optional": "ONNX_TYPE_OPTIONAL",
}


def signature_of(session: Any) -> Signature:
    """The signature of an ``onnxruntime.InferenceSession``.

    Raises:
        UnsupportedError: an input or output is no tensor.
    """
    return Signature(
        inputs=_tensors(session.get_inputs()),
        outputs=_tensors(session.get_outputs()),
        initializers=_tensors(session.get_overridable_initializers()),
    )


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
        element = argument.type.removeprefix("tensor(")[:-1].upper()
        tensors[argument.name] = GraphTensor(argument.name, element, BY_ONNX.get(argument.type), dims)
    return tensors
