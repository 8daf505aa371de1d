"""Which outputs take long to be put into an answer, and so are put there on a thread."""

from __future__ import annotations

from ..actors.offload import LARGE_BYTES
from ..engine.datatypes import BYTES
from ..engine.tensor import Tensor

MANY_ELEMENTS = 8_192
"""So many elements are written, sorted or packed one by one on the event loop, in some two milliseconds."""


def element_by_element(tensor: Tensor) -> bool:
    """Whether an output takes long that is written as JSON, or classified."""
    if tensor.datatype is not BYTES:
        return tensor.nbytes > MANY_ELEMENTS and tensor.element_count > MANY_ELEMENTS
    if tensor.element_count > MANY_ELEMENTS:
        return True
    nbytes = sum(map(len, tensor.array.flat)) if tensor.has_array else tensor.nbytes
    return nbytes > LARGE_BYTES


def as_bytes(tensor: Tensor, copied: bool) -> bool:
    """Whether an output takes long of which the bytes are wanted.

    Args:
        copied: they are copied, instead of being sent from where they lie.
    """
    if tensor.datatype is BYTES and tensor.has_array:
        return tensor.element_count > MANY_ELEMENTS
    return copied and tensor.nbytes > LARGE_BYTES
