"""Which operators a model uses, read from its file; and whether its time depends on more than how much data it gets.

ONNX Runtime does not tell what is in a graph, and the onnx package is not needed for anything else here. So the few
fields that matter are picked out of the file's protobuf encoding (onnx.proto): graphs, nodes, their operator types and
domains, and the graphs within nodes. Weights are passed over without being read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MODEL_GRAPH, _MODEL_FUNCTIONS = 7, 25
_GRAPH_NODE = 1
_FUNCTION_NODE = 7
_NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 6, 11
_MOST_DEPTH = 32
_MOST_BYTES = 1 << 28

STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})

VALUE_DEPENDENT = frozenset(
    {
        # control flow
        *("If", "Loop", "Scan", "SequenceMap"),
        # an input says how large the output is to be
        *(
            "AffineGrid",
            "BlackmanWindow",
            "CenterCropPad",
            "Col2Im",
            "ConstantOfShape",
            "DFT",
            "Expand",
            "HammingWindow",
        ),
        *("HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot", "Pad", "Range", "Resize", "STFT", "Tile", "Upsample"),
    }
)
"""Standard operators whose work depends on the values of their inputs, and not only on their shapes."""

SHAPE_FOLLOWING = frozenset(
    {
        *("Abs", "Add", "AveragePool", "BatchNormalization", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Concat"),
        *("Constant", "Conv", "ConvTranspose", "Cos", "DepthToSpace", "Div", "Dropout", "Einsum", "Elu", "Equal"),
        *("Erf", "Exp", "Flatten", "Floor", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater"),
        *("GroupNormalization", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization"),
        *("LayerNormalization", "LeakyRelu", "Less", "Log", "LogSoftmax", "LpNormalization", "MatMul", "Max"),
        *("MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceSum", "Relu", "Reshape", "Round", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Softmax"),
        *("Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh"),
        *("ThresholdedRelu", "Transpose", "Unsqueeze", "Where"),
    }
)
"""Standard operators that read and write memory at places that follow from shapes alone, whatever floating-point
numbers are there, and change meanwhile. Not so those that sort, search, or take numbers for positions."""

Operator = tuple[str, str]
"""Domain and operator type."""


def depends_on_values(path: Path) -> bool:
    """Whether the model's time may depend on what its inputs hold, and not only on their shapes.

    True also when the file cannot be read that way, and when it uses operators that are not ONNX's own.
    """
    try:
        operators = operators_in(path)
    except (OSError, ValueError):
        return True
    return any(domain not in STANDARD_DOMAINS or operator in VALUE_DEPENDENT for domain, operator in operators)


def follows_shapes(path: Path) -> bool:
    """Whether all operators of a model are `SHAPE_FOLLOWING`. False also when the file cannot be read that way."""
    try:
        operators = operators_in(path)
    except (OSError, ValueError):
        return False
    return all(domain in ("", "ai.onnx") and operator in SHAPE_FOLLOWING for domain, operator in operators)


def operators_in(path: Path) -> frozenset[Operator]:
    """All operators of a model file, those in sub-graphs and model-local functions included.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not an ONNX file in protobuf encoding, or so large that its batches are not short anyway.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is too large to look through")
    found: set[Operator] = set()
    for number, value in _messages(memoryview(path.read_bytes())):
        if number == _MODEL_GRAPH:
            _collect(value, _GRAPH_NODE, found, 0)
        elif number == _MODEL_FUNCTIONS:
            _collect(value, _FUNCTION_NODE, found, 0)
    if not found:
        raise ValueError(f"no operators in {path}")
    return frozenset(found)


def _collect(graph: memoryview, node_field: int, found: set[Operator], depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise ValueError("graphs nested too deeply")
    for number, node in _messages(graph):
        if number == node_field:
            _collect_node(node, found, depth)


def _collect_node(node: memoryview, found: set[Operator], depth: int) -> None:
    operator = domain = ""
    for number, value in _messages(node):
        if number == _NODE_OPERATOR:
            operator = str(value, "utf-8")
        elif number == _NODE_DOMAIN:
            domain = str(value, "utf-8")
        elif number == _NODE_ATTRIBUTE:
            for kind, inner in _messages(value):
                if kind in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
                    _collect(inner, _GRAPH_NODE, found, depth + 1)
    found.add((domain, operator))


def _messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields of a protobuf message: number and content. Others are passed over. Raises
    `ValueError`: it is no protobuf message."""
    at = 0
    end = len(data)
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 2:
            length, at = _varint(data, at)
            if length > end - at:
                raise ValueError("a field longer than its message")
            yield tag >> 3, data[at : at + length]
            at += length
        elif kind == 0:
            _, at = _varint(data, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of wire type {kind}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number without end")
