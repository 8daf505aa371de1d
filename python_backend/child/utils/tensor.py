"""`Tensor`: a name and a numpy array, or data of a DLPack producer (docs/reference/python-backend.md#tensors)."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from . import dlpack
from .errors import TritonModelException, text
from .types import BF16, BYTES, numpy_to_triton_type


class Tensor:
    """A named array.

    Args:
        name: not empty.
        array: copied if it does not lie in C order; otherwise kept, not copied. Elements that are bytes or str make a
            BYTES tensor.

    Raises:
        TritonModelException: an empty name, or elements of a kind that Triton has not got.
    """

    __slots__ = ("_array", "_bf16", "_name")

    def __init__(self, name: str, array: np.ndarray) -> None:
        if name.__class__ is not str:
            name = text("Tensor: name", name)
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor: the data of '{name}' must be a numpy array, found type {type(array)}")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if numpy_to_triton_type(array.dtype) is None or not array.dtype.isnative:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        self._bf16 = False

    @classmethod
    def _view(cls, name: str, array: np.ndarray, bf16: bool = False) -> Tensor:
        """A tensor of an array that is known to be right: nothing is checked or copied.

        Args:
            array: in C order; BYTES as an object array of bytes; BF16 as uint16.
            bf16: the elements are BF16.
        """
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._array = array
        tensor._bf16 = bf16
        return tensor

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def as_numpy(self) -> np.ndarray:
        """The array; an input's is a view that is valid during execute only.

        Raises:
            TritonModelException: numpy has no BF16.
        """
        if self._bf16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        return self._array

    def triton_dtype(self) -> NoReturn:
        """Not for use from Python: Triton does not expose the enum."""
        raise TypeError("Unable to convert function return value to a Python type! (TRITONSERVER_DataType)")

    def is_cpu(self) -> bool:
        return True

    @property
    def _number(self) -> int:
        """The element type's number in Triton's enum."""
        return BF16 if self._bf16 else numpy_to_triton_type(self._array.dtype) or 0

    def to_dlpack(self) -> Any:
        """A DLPack capsule on the same memory, which it keeps alive.

        Raises:
            TritonModelException: BYTES.
        """
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None, **options: Any) -> Any:
        """The same, for ``from_dlpack`` of another library, whose options mean nothing on the CPU."""
        if self._number == BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        if options.get("copy"):
            return dlpack.capsule(self._array.copy(), self._bf16)
        return dlpack.capsule(self._array, self._bf16, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor on the memory of a DLPack capsule, or of an object that makes one.

        Raises:
            TritonModelException: neither of them; not on the CPU; not in C order; a type that Triton has not got.
        """
        name = text("Tensor.from_dlpack: name", name)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        array, bf16 = dlpack.array(tensor)
        return Tensor._view(name, array, bf16)

    def __repr__(self) -> str:
        return f"<Tensor {self._name} {self._array.dtype}{self.shape()}>"
