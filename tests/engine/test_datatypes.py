"""The table of element types is Triton's (docs/reference/model-configuration.md#data-types)."""

from __future__ import annotations

import numpy as np
import pytest

from trireme.engine import datatypes
from trireme.engine.datatypes import BY_CONFIG_NAME, BY_NAME, BY_NUMBER, BY_ONNX, DATATYPES, INVALID


@pytest.mark.parametrize(
    ("number", "name", "config_name", "size", "numpy_name", "onnx"),
    [
        (1, "BOOL", "TYPE_BOOL", 1, "bool", "tensor(bool)"),
        (2, "UINT8", "TYPE_UINT8", 1, "uint8", "tensor(uint8)"),
        (3, "UINT16", "TYPE_UINT16", 2, "uint16", "tensor(uint16)"),
        (4, "UINT32", "TYPE_UINT32", 4, "uint32", "tensor(uint32)"),
        (5, "UINT64", "TYPE_UINT64", 8, "uint64", "tensor(uint64)"),
        (6, "INT8", "TYPE_INT8", 1, "int8", "tensor(int8)"),
        (7, "INT16", "TYPE_INT16", 2, "int16", "tensor(int16)"),
        (8, "INT32", "TYPE_INT32", 4, "int32", "tensor(int32)"),
        (9, "INT64", "TYPE_INT64", 8, "int64", "tensor(int64)"),
        (10, "FP16", "TYPE_FP16", 2, "float16", "tensor(float16)"),
        (11, "FP32", "TYPE_FP32", 4, "float32", "tensor(float)"),
        (12, "FP64", "TYPE_FP64", 8, "float64", "tensor(double)"),
        (13, "BYTES", "TYPE_STRING", 0, "object", "tensor(string)"),
        (14, "BF16", "TYPE_BF16", 2, "uint16", "tensor(bfloat16)"),
    ],
)
def test_each_type_is_found_by_every_name(
    number: int, name: str, config_name: str, size: int, numpy_name: str, onnx: str
) -> None:
    datatype = getattr(datatypes, name)
    assert BY_NUMBER[number] is BY_NAME[name] is BY_CONFIG_NAME[config_name] is BY_ONNX[onnx] is datatype
    assert (datatype.size, datatype.storage) == (size, np.dtype(numpy_name))
    assert repr(datatype) == name


def test_there_are_no_others() -> None:
    assert [datatype.number for datatype in DATATYPES] == list(range(1, 15))
    assert len(BY_NAME) == len(BY_CONFIG_NAME) == len(BY_NUMBER) == len(BY_ONNX) == 14


def test_the_invalid_type_has_a_name_but_cannot_be_looked_up() -> None:
    assert INVALID.name == "<invalid>"
    assert INVALID not in DATATYPES
    assert INVALID.name not in BY_NAME
