"""DLPack, both ways: numpy arrays to capsules and capsules to numpy arrays, without copying.

A capsule holds a pointer to a C structure (``dlpack.h``) whose deleter gives the memory back; the code that takes the
tensor renames the capsule and calls the deleter later. numpy makes our capsules, and their types are corrected where
numpy has no such type (BF16) or some versions lack it (bool). Capsules are read here and not by numpy, which knows no
BF16 and, in older versions, no versioned capsules.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from .errors import TritonModelException

CPU = 1
"""kDLCPU"""

_READ_ONLY = 1
"""DLPACK_FLAG_BITMASK_READ_ONLY"""
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_KINDS = {_INT: "i", _UINT: "u", _FLOAT: "f", _BFLOAT: "u", _BOOL: "b"}
_BITS = {_INT: (8, 16, 32, 64), _UINT: (8, 16, 32, 64), _FLOAT: (16, 32, 64), _BFLOAT: (16,), _BOOL: (8,)}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor"""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned"""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


def _function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_get_name = _function("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
_set_name = _function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_get_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)

_NAME, _USED_NAME = b"dltensor", b"used_dltensor"
_VERSIONED_NAME, _USED_VERSIONED_NAME = b"dltensor_versioned", b"used_dltensor_versioned"
# A capsule does not copy its name: these bytes live as long as the module.


class _Memory:
    """Memory of someone else, as numpy sees it; gives it back when no array uses it any more."""

    def __init__(
        self, address: int, shape: tuple[int, ...], typestr: str, read_only: bool, owner: Any, managed: int = 0
    ) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, read_only),
            "shape": shape,
            "typestr": typestr,
        }
        self._owner = owner
        self._managed = managed

    def __del__(self) -> None:
        if self._managed and self._owner:
            self._owner(self._managed)


def capsule(array: np.ndarray, bf16: bool = False, owner: Any = None) -> Any:
    """A capsule on the memory of `array`, in C order and without objects, which it keeps alive: uint16 stands for BF16
    if `bf16`. In place of the array, `owner` is kept alive, which holds it: models count references to a `Tensor`."""
    code = _BFLOAT if bf16 else _BOOL if array.dtype == np.bool_ else None
    if code is not None or owner is not None or not array.flags.writeable:
        # DLPack has no way to say that memory is read-only before version 1: consumers are trusted not to write.
        typestr = array.dtype.str if code is None else f"<u{array.itemsize}"
        address = array.__array_interface__["data"][0]
        array = np.asarray(_Memory(address, array.shape, typestr, False, array if owner is None else owner))
    made = array.__dlpack__()
    if code is not None:
        _Managed.from_address(_get_pointer(made, _NAME)).tensor.dtype.code = code
    return made


def array(source: Any) -> tuple[np.ndarray, bool]:
    """The array in a capsule, or in an object that makes capsules; and whether its elements, uint16 then, are BF16.

    The memory lives as long as the array and its views.

    Raises:
        TritonModelException: `source` is neither; the tensor is not on the CPU, not in C order, or of a type that
            Triton has not got.
    """
    given = source if type(source).__name__ == "PyCapsule" else _export(source)
    name = _get_name(given)
    if name not in (_NAME, _VERSIONED_NAME):
        raise TritonModelException(
            f"The capsule is named '{(name or b'').decode()}'; expected a DLPack capsule that has not been used yet."
        )
    address = _get_pointer(given, name)
    versioned = name == _VERSIONED_NAME
    managed = (_ManagedVersioned if versioned else _Managed).from_address(address)
    if versioned and managed.major > 1:
        raise TritonModelException(f"DLPack version {managed.major}.{managed.minor} is not known; expected 1.")
    tensor = managed.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    typestr = _checked_type(tensor)
    _check_order(tensor, shape)
    read_only = versioned and bool(managed.flags & _READ_ONLY)
    bf16 = tensor.dtype.code == _BFLOAT
    _set_name(given, _USED_VERSIONED_NAME if versioned else _USED_NAME)
    start = (tensor.data or 0) + tensor.byte_offset
    memory = _Memory(start, shape, typestr, read_only, managed.deleter, address)
    return (np.asarray(memory) if math.prod(shape) else np.empty(shape, typestr)), bf16


def _export(source: Any) -> Any:
    if not (hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule"
            "         or have `__dlpack__` and `__dlpack_device__` attributes"
        )
    _check_device(source.__dlpack_device__()[0])
    try:
        return source.__dlpack__(max_version=(1, 0))
    except TypeError:  # it was written before there were versions
        return source.__dlpack__()


def _check_device(kind: int) -> None:
    if kind != CPU:
        raise TritonModelException(f"DLDevice type {int(kind)} is not support by Python backend.")


def _checked_type(tensor: _Tensor) -> str:
    _check_device(tensor.device.kind)
    code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    if lanes != 1 or bits not in _BITS.get(code, ()):
        raise TritonModelException(f"DLPack type with code {code}, {bits} bits and {lanes} lanes is not supported.")
    return f"{'|' if bits == 8 else '<'}{_KINDS[code]}{bits // 8}"


def _check_order(tensor: _Tensor, shape: tuple[int, ...]) -> None:
    strides: Any | None = tensor.strides
    if not strides or not math.prod(shape):
        return
    expected = 1
    for axis in reversed(range(tensor.ndim)):
        if shape[axis] != 1 and strides[axis] != expected:
            raise TritonModelException(
                "DLPack tensor is not contiguous. "
                "Only contiguous DLPack tensors that are stored in C-Order are supported."
            )
        expected *= shape[axis]
