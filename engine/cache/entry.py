"""A response as bytes, and back.

An entry is ``TRC1``, the length of a head (uint32, little-endian), the head (JSON: name, datatype, shape and length in
bytes of each output), and the outputs one after the other. Making one copies the outputs, and what is made of one are
read-only views on bytes: an entry does not change, whatever is done with the response.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

from ..datatypes import BY_NAME, BYTES
from ..tensor import Tensor

_MAGIC = b"TRC1"
_PREFIX = struct.Struct("<4sI")


def pack_outputs(outputs: Sequence[Tensor]) -> bytes:
    """The entry of these outputs.

    Raises:
        ValueError, TypeError: an output is not what it says it is.
    """
    try:
        buffers = [tensor.buffer for tensor in outputs]
    except struct.error as error:
        raise ValueError(f"a string is too long: {error}") from error
    head = json.dumps(
        [
            (tensor.name, tensor.datatype.name, tensor.shape, len(buffer))
            for tensor, buffer in zip(outputs, buffers, strict=True)
        ]
    ).encode()
    return b"".join([_PREFIX.pack(_MAGIC, len(head)), head, *buffers])


def unpack_outputs(entry: bytes) -> list[Tensor]:
    """The outputs in an entry, as views on it.

    Raises:
        ValueError: it is no entry, or not all of one.
    """
    view = memoryview(entry)
    if len(view) < _PREFIX.size or view[:4] != _MAGIC:
        raise ValueError("it does not begin as an entry does")
    at = _PREFIX.size + _PREFIX.unpack_from(view)[1]
    tensors: list[Tensor] = []
    try:
        for name, datatype, shape, length in json.loads(bytes(view[_PREFIX.size : at])):
            tensors.append(Tensor(name, BY_NAME[datatype], tuple(shape), view[at : at + length]))
            _check_size(tensors[-1], length)
            at += length
    except (KeyError, TypeError) as error:
        raise ValueError(f"its head does not describe outputs: {error}") from error
    if at != len(view):
        raise ValueError(f"it has {len(view)} bytes, and its head speaks of {at}")
    return tensors


def _check_size(tensor: Tensor, length: int) -> None:
    """Whether so many bytes can have that shape. Strings are not counted."""
    fits = all(dim >= 0 for dim in tensor.shape) and length >= 0
    if not fits or (tensor.datatype is not BYTES and tensor.element_count * tensor.datatype.size != length):
        raise ValueError(f"{length} bytes are no {tensor!r}")
