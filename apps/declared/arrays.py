"""Between the arrays that a function gets and gives, and the tensors of a request and its answer."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .declaration import OutputSpec
from .types import BF16, BOOL, BYTES, TensorType

__trireme_hides_frames__ = True


class ResultError(ValueError):
    """What a function has returned is not what its annotation says."""


def named_outputs(result: Any, outputs: Sequence[OutputSpec]) -> Mapping[str, Any]:
    """What a function has returned, by the outputs' names.

    Raises:
        ResultError: an output is missing, or there is one too many.
    """
    names = [each.name for each in outputs]
    if not isinstance(result, Mapping):
        if len(names) != 1:
            raise ResultError(f"the function returned {type(result).__name__}, expected a dictionary with {names}")
        return {names[0]: result}
    if set(result) != set(names):
        raise ResultError(f"the function returned outputs {list(result)}, expected {names}")
    return result


def checked_output(value: Any, output: OutputSpec, rows: int | None) -> np.ndarray:
    """One output, with the dtype of its type; ``float32`` for BF16, objects for BYTES.

    Args:
        rows: the first dimension that it must have; None if it has no rows.

    Raises:
        ResultError: another dtype or shape than declared.
    """
    array = _as_array(value, output)
    kind = output.type
    found, dims = array.shape, kind.dims if rows is None else (rows, *kind.dims)
    if len(found) != len(dims) or any(dim not in (-1, size) for dim, size in zip(dims, found)):
        expected = ", ".join("any" if dim == -1 else str(dim) for dim in dims)
        of_rows = "" if rows is None else f" ({rows} rows of {kind})"
        raise ResultError(f"output '{output.name}' has shape {list(found)}, expected [{expected}]{of_rows}")
    return array


def _as_array(value: Any, output: OutputSpec) -> np.ndarray:
    kind = output.type
    if hasattr(value, "detach"):  # a PyTorch tensor, on whichever device
        value = value.detach().cpu()
        value = value.float() if kind.element is BF16 else value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ResultError(f"output '{output.name}' is no array: {error}") from None
    if kind.element is BYTES:
        if array.dtype.kind not in "OSU":
            raise ResultError(f"output '{output.name}' is {array.dtype}, expected texts or bytes for {kind}")
        return array.astype(object)
    wanted = kind.element.dtype
    if array.dtype == wanted:
        return array
    if array.dtype.kind == "O" or not _may_become(array, wanted, kind):
        raise ResultError(f"output '{output.name}' is {array.dtype}, expected {wanted} for {kind}")
    return array.astype(wanted)


def _may_become(array: np.ndarray, wanted: np.dtype, kind: TensorType) -> bool:
    """Floats become other floats, and whole numbers other whole numbers if they fit."""
    if kind.element is BOOL:
        return False
    if array.dtype.kind in "iu" and wanted.kind in "iu":
        limits = np.iinfo(wanted)
        return not array.size or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)
    return np.can_cast(array.dtype, wanted, "same_kind")


# BF16, which numpy has not got: its bits are read and written as whole numbers, by way of DLPack capsules whose type is
# changed in place.

_TYPE_OFFSET = 20  # of `dtype.code` in DLTensor: after data, device, ndim
_UINT, _BFLOAT = 1, 4


def floats_of_bf16(capsule: Any) -> np.ndarray:
    """The numbers of a DLPack capsule of BF16, as ``float32``."""
    _set_type(capsule, _UINT)
    return floats_of_bits(np.from_dlpack(_OnCpu(capsule)))


def bf16_of_floats(array: np.ndarray) -> Any:
    """A DLPack capsule of BF16, to be taken by `Tensor.from_dlpack`. See `bf16_bits`."""
    capsule = bf16_bits(array).__dlpack__()
    _set_type(capsule, _BFLOAT)
    # Who takes it frees the memory. Triton gives what it has taken a name that numpy's destructor does not know, which
    # then calls itself without end.
    forget = ctypes.pythonapi.PyCapsule_SetDestructor
    forget.restype, forget.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_void_p]
    forget(capsule, None)
    return capsule


def floats_of_bits(bits: np.ndarray) -> np.ndarray:
    """Numbers of ``float32``, of the bits of BF16 as ``uint16``."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_bits(array: np.ndarray) -> np.ndarray:
    """The bits of BF16 as ``uint16``: numbers of ``float32``, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype(np.uint16).reshape(np.shape(array))


def _set_type(capsule: Any, code: int) -> None:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + _TYPE_OFFSET).value = code


class _OnCpu:
    """What `numpy.from_dlpack` asks."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0
