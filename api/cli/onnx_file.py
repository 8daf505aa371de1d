"""A small ONNX file, written without the package onnx: the softmax of a linear function.

protobuf's encoding is a list of fields, each with its number; those here are the ones that onnx.proto gives them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_IR_VERSION, _OPSET = 8, 17
_FLOAT = 1


def linear_classifier(source: str, target: str, weights: Sequence[Sequence[float]], bias: Sequence[float]) -> bytes:
    """The file's bytes: `target` = softmax(`source` · `weights` + `bias`), rows of any number.

    Args:
        weights: a row for each input value, a column for each class.
    """
    rows, columns = len(weights), len(bias)
    nodes = [
        _node("Gemm", [source, "weights", "bias"], ["logits"]),
        _node("Softmax", ["logits"], [target]),
    ]
    flat = [value for row in weights for value in row]
    graph = b"".join(
        [
            *(_bytes(1, each) for each in nodes),
            _text(2, "linear_classifier"),
            _bytes(5, _tensor("weights", [rows, columns], flat)),
            _bytes(5, _tensor("bias", [columns], bias)),
            _bytes(11, _value(source, rows)),
            _bytes(12, _value(target, columns)),
        ]
    )
    return _number(1, _IR_VERSION) + _text(2, "trireme") + _bytes(7, graph) + _bytes(8, _number(2, _OPSET))


def _node(operator: str, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    names = [*(_text(1, each) for each in inputs), *(_text(2, each) for each in outputs)]
    return b"".join([*names, _text(4, operator)])


def _tensor(name: str, dims: Sequence[int], values: Sequence[float]) -> bytes:
    raw = struct.pack(f"<{len(values)}f", *values)
    return b"".join([*(_number(1, each) for each in dims), _number(2, _FLOAT), _text(8, name), _bytes(9, raw)])


def _value(name: str, size: int) -> bytes:
    """A float tensor of any number of rows."""
    shape = _bytes(1, _text(2, "rows")) + _bytes(1, _number(1, size))
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, _FLOAT) + _bytes(2, shape)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _varint(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))
