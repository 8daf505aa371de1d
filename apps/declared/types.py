"""Types of tensors in annotations: ``FP32[8, 8]`` is an array of 8 by 8 numbers of 32 bits.

A dimension is a whole number of at least 1, or -1, None or ``...`` for one of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TensorType:
    """An element type with dimensions, the batch dimension excluded; -1 stands for any size."""

    element: ElementType
    dims: tuple[int, ...]

    def __repr__(self) -> str:
        return f"{self.element.name}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class ElementType:
    """A data type of Triton's.

    Attributes:
        name: as in requests and metadata.
        dtype: of the arrays that a function gets and gives. BYTES are objects (``bytes``; ``str`` may be given, too);
            for BF16, which numpy has not got, a function sees ``float32``.
    """

    name: str
    dtype: Any

    @property
    def config_name(self) -> str:
        """The name in a configuration."""
        return "TYPE_STRING" if self.name == "BYTES" else f"TYPE_{self.name}"

    def __getitem__(self, dims: Any) -> TensorType:
        """Raises TypeError: a dimension is none."""
        given = dims if isinstance(dims, tuple) else (dims,)
        if not given:
            raise TypeError(f"{self.name}[()] has no dimension: write {self.name}[1] for one element")
        return TensorType(self, tuple(self._dimension(each) for each in given))

    def _dimension(self, value: Any) -> int:
        if value is None or value is Ellipsis:
            return -1
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or (value < 1 and value != -1):
            raise TypeError(
                f"a dimension of {self.name}[…] is {value!r}: write a whole number of at least 1, or -1 for any size"
            )
        return int(value)

    def __repr__(self) -> str:
        return self.name


BOOL = ElementType("BOOL", np.dtype(np.bool_))
UINT8 = ElementType("UINT8", np.dtype(np.uint8))
UINT16 = ElementType("UINT16", np.dtype(np.uint16))
UINT32 = ElementType("UINT32", np.dtype(np.uint32))
UINT64 = ElementType("UINT64", np.dtype(np.uint64))
INT8 = ElementType("INT8", np.dtype(np.int8))
INT16 = ElementType("INT16", np.dtype(np.int16))
INT32 = ElementType("INT32", np.dtype(np.int32))
INT64 = ElementType("INT64", np.dtype(np.int64))
FP16 = ElementType("FP16", np.dtype(np.float16))
FP32 = ElementType("FP32", np.dtype(np.float32))
FP64 = ElementType("FP64", np.dtype(np.float64))
BF16 = ElementType("BF16", np.dtype(np.float32))
BYTES = ElementType("BYTES", np.dtype(object))

ELEMENT_TYPES = (BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BF16, BYTES)


def element_type_of(dtype: Any) -> ElementType:
    """The element type of arrays with this dtype; texts are BYTES. TypeError if Triton has no such type."""
    dtype = np.dtype(dtype)
    if dtype.kind in "OSU":
        return BYTES
    for each in ELEMENT_TYPES:
        if each.dtype == dtype:
            return each
    raise TypeError(f"arrays of {dtype} have no type in Triton")
