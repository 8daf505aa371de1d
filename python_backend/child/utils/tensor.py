"""`Tensor`: a name and a numpy array, or data of a DLPack producer (docs/reference/python-backend.md#tensors)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from . import dlpack
from .errors import TritonModelException, text


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
        if not number_of(array) or not array.dtype.isnative:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        self._bf16 = False

    @classmethod
    def _view(cls, name: str, array: np.ndarray, bf16: bool = False) -> Tensor:
        """A tensor of an array that is known to be right: nothing is checked or copied. It is in C order; BYTES as an
        object array of bytes, BF16 as uint16."""
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

    def to_dlpack(self) -> Any:
        """A DLPack capsule on the same memory, which it keeps alive.

        Raises:
            TritonModelException: BYTES.
        """
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None, **options: Any) -> Any:
        """The same, for ``from_dlpack`` of another library, whose options mean nothing on the CPU."""
        if numpy_to_triton_type(self._array.dtype) == BYTES:
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


# The element types: numpy's, the configuration's names and the numbers of Triton's enum
# (docs/reference/python-backend.md#module-members).


BYTES, BF16 = 13, 14

_NUMPY: tuple[Any, ...] = (
    *(np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64),
    *(np.float16, np.float32, np.float64, np.object_),
)
"""In the order of the numbers, from 1. BF16 is missing, because numpy has no such type."""
_WHOLE = [f"{kind}{bits}" for kind in ("UINT", "INT") for bits in (8, 16, 32, 64)]
_NAMES = ["BOOL", *_WHOLE, "FP16", "FP32", "FP64", "STRING"]

TRITON_STRING_TO_NUMPY: dict[str, Any] = {f"TYPE_{name}": kind for name, kind in zip(_NAMES, _NUMPY)}
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool
"""Configuration name to numpy type."""

_NUMPY_BY_NUMBER: dict[int, Any] = dict(enumerate(_NUMPY, start=1))
DTYPES = {**{number: np.dtype(kind) for number, kind in enumerate(_NUMPY, start=1)}, BF16: np.dtype(np.uint16)}
del DTYPES[BYTES]  # memory that came must never be taken for objects
"""What arrays are made of whose contents came, by the numbers; BF16 as its bits."""
_NUMBER_BY_NUMPY = {numpy_type: number for number, numpy_type in _NUMPY_BY_NUMBER.items()}
_NUMBER_BY_NUMPY[np.bytes_] = BYTES


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of an element type's number; None if there is none."""
    return _NUMPY_BY_NUMBER.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number of a numpy type (or dtype); None if Triton has no such type."""
    return _NUMBER_BY_NUMPY.get(data_type.type if isinstance(data_type, np.dtype) else data_type)


def number_of(array: np.ndarray) -> int:
    """The number of an array's element type; 0 if Triton has no such type."""
    return _NUMBER_BY_NUMPY.get(array.dtype.type, 0)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of ``TYPE_FP32`` and the like. KeyError for no such name, or BF16."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


# BYTES elements in one piece: each a little-endian uint32 length and that many bytes
# (docs/reference/python-backend.md#module-members).


_LENGTH = struct.Struct("<I")


def serialize_byte_tensor(input_tensor: np.ndarray) -> bytes | tuple[()] | None:
    """The elements in C order; ``()`` if there are none, and None for an array of other things than bytes or objects.

    An element that is no bytes is written as its text, in UTF-8.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.type not in (np.object_, np.bytes_):
        return None
    return packed(input_tensor, lambda element: str(element).encode())


def packed(array: np.ndarray, encode: Callable[[object], bytes]) -> bytes:
    """The elements in C order, as on the wire; those that are no bytes are encoded."""
    parts: list[bytes] = []
    for element in array.ravel().tolist():
        data = element if isinstance(element, bytes) else encode(element)
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: bytes | memoryview) -> np.ndarray:
    """The elements as a one-dimensional array of bytes objects.

    Raises:
        struct.error: the data ends within an element.
    """
    elements: list[bytes] = []
    view = memoryview(encoded_tensor)
    at = 0
    while at < len(view):
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size + length
        if at > len(view):
            raise struct.error(f"an element of {length} bytes ends {at - len(view)} bytes behind the end of the data")
        elements.append(bytes(view[at - length : at]))
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array
