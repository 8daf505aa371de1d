"""The one table of tensor element types (docs/reference/model-configuration.md#data-types)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class DataType:
    """One element type; there is exactly one object a type, so compare with ``is``.

    Attributes:
        name: protocol name, as in requests and metadata (``FP32``, ``BYTES``).
        config_name: name in a model configuration (``TYPE_FP32``, ``TYPE_STRING``).
        number: value in the ``inference.DataType`` enum.
        size: bytes of one element; 0 for BYTES, whose elements vary.
        storage: numpy dtype of an array that holds such elements: ``object`` (of ``bytes``) for BYTES, ``uint16`` for
            BF16, which numpy lacks.
        onnx: name of the ONNX element type as ONNX Runtime prints it (``tensor(float)``).
    """

    name: str
    config_name: str
    number: int
    size: int
    storage: np.dtype
    onnx: str

    def __repr__(self) -> str:
        return self.name


def _datatype(name: str, number: int, storage: str, onnx: str, config_name: str = "") -> DataType:
    dtype = np.dtype(storage)
    size = 0 if dtype.hasobject else dtype.itemsize
    return DataType(name, config_name or f"TYPE_{name}", number, size, dtype, f"tensor({onnx})")


BOOL = _datatype("BOOL", 1, "?", "bool")
UINT8 = _datatype("UINT8", 2, "u1", "uint8")
UINT16 = _datatype("UINT16", 3, "<u2", "uint16")
UINT32 = _datatype("UINT32", 4, "<u4", "uint32")
UINT64 = _datatype("UINT64", 5, "<u8", "uint64")
INT8 = _datatype("INT8", 6, "i1", "int8")
INT16 = _datatype("INT16", 7, "<i2", "int16")
INT32 = _datatype("INT32", 8, "<i4", "int32")
INT64 = _datatype("INT64", 9, "<i8", "int64")
FP16 = _datatype("FP16", 10, "<f2", "float16")
FP32 = _datatype("FP32", 11, "<f4", "float")
FP64 = _datatype("FP64", 12, "<f8", "double")
BYTES = _datatype("BYTES", 13, "O", "string", "TYPE_STRING")
BF16 = _datatype("BF16", 14, "<u2", "bfloat16")
INVALID = DataType("<invalid>", "TYPE_INVALID", 0, 0, np.dtype("u1"), "")
"""What a request's unknown datatype becomes, so that validation can name it; in none of the tables below."""

DATATYPES = (BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES, BF16)
BY_NAME = {datatype.name: datatype for datatype in DATATYPES}
BY_CONFIG_NAME = {datatype.config_name: datatype for datatype in DATATYPES}
BY_NUMBER = {datatype.number: datatype for datatype in DATATYPES}
BY_ONNX = {datatype.onnx: datatype for datatype in DATATYPES}
