"""Requests whose check takes long: it is made on a thread."""

from __future__ import annotations

from ..datatypes import BYTES
from ..memory.tensors import RegionTensor
from ..request import InferenceRequest
from ..tensor import Tensor, count_elements
from ..validation import RequestValidator

LARGE_BYTES = 256 * 1024
"""Work on more than this leaves the event loop."""

FEW_STRINGS = 4_096
"""So many elements of type BYTES are counted on the event loop, in half a millisecond."""


def is_large(request: InferenceRequest, validator: RequestValidator) -> bool:
    """Whether strings are to be counted, or shared memory is to be copied, for longer than the event loop has time.

    Args:
        validator: of the request's model.
    """
    copied = 0
    if validator.takes_strings:
        if request.raw_input is not None:
            return len(request.raw_input) > LARGE_BYTES
        if any(_has_many_strings(tensor) for tensor in request.inputs):
            return True
    if request.in_regions:
        copied = sum(tensor.nbytes for tensor in request.inputs if isinstance(tensor, RegionTensor))
    return copied > LARGE_BYTES


def check_takes_long(request: InferenceRequest, validator: RequestValidator) -> bool:
    """Whether a large request is to be checked on a thread: its data is looked at. Otherwise it is only to be copied,
    and a change of threads is spared."""
    return (
        validator.takes_strings
        or validator.takes_shapes
        or any(isinstance(tensor, RegionTensor) and tensor.datatype is BYTES for tensor in request.inputs)
    )


def strings_in_regions(request: InferenceRequest) -> int:
    """Bytes of inputs that cannot be checked without reading them from shared memory.

    Raises:
        InvalidArgumentError: one is more than an input may have.
    """
    nbytes = 0
    for tensor in request.inputs:
        if isinstance(tensor, RegionTensor) and tensor.datatype is BYTES:
            tensor.place.check_size()
            nbytes += tensor.nbytes
    return nbytes


def read_regions_now(inputs: dict[str, Tensor], gpu: int | None = None) -> dict[str, Tensor]:
    """The inputs, with their data read.

    Args:
        gpu: what is in this GPU's memory stays there.

    Raises:
        InvalidArgumentError, UnavailableError, InternalError: a region cannot be read.
    """
    return {
        name: tensor.loaded()
        if isinstance(tensor, RegionTensor) and (gpu is None or tensor.place.gpu != gpu)
        else tensor
        for name, tensor in inputs.items()
    }


def _has_many_strings(tensor: Tensor) -> bool:
    if tensor.datatype is not BYTES or tensor.has_array or tensor.nbytes <= FEW_STRINGS * 4:
        return False
    return isinstance(tensor, RegionTensor) or count_elements(tensor.buffer, FEW_STRINGS)[0] == FEW_STRINGS
