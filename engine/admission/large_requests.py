"""Requests whose check takes long: it is made on a thread."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class RegionReaders:
    """Which inputs in shared memory the instances of a model read themselves, so that they are not copied before.

    Attributes:
        gpu: those in this GPU's memory.
        large: those in the machine's memory, if the request is large.
    """

    gpu: int | None = None
    large: bool = False

    def take(self, tensor: RegionTensor, request: InferenceRequest) -> bool:
        """Whether they read this input of a large request."""
        if tensor.place.gpu is not None:
            return tensor.place.gpu == self.gpu
        return self.large and request.trace is None and tensor.datatype is not BYTES


def read_regions_now(
    inputs: dict[str, Tensor], request: InferenceRequest, readers: RegionReaders, *, large: bool = True
) -> dict[str, Tensor]:
    """The inputs of a request, with their data read, except for what the model's instances read; of that it is known
    that it can be read.

    Args:
        large: the request is.

    Raises:
        InvalidArgumentError, UnavailableError, InternalError: a region cannot be read.
    """
    if not large and readers.large:
        readers = replace(readers, large=False)
    read: dict[str, Tensor] = {}
    for name, tensor in inputs.items():
        if isinstance(tensor, RegionTensor):
            if readers.take(tensor, request):
                tensor.place.check_readable()
            else:
                tensor = tensor.loaded()
        read[name] = tensor
    return read


def reads_little(request: InferenceRequest, validator: RequestValidator, readers: RegionReaders) -> bool:
    """Whether a large request is so only by inputs that its model's instances read."""
    if not readers.large or validator.takes_strings or validator.takes_shapes:
        return False
    return all(not isinstance(tensor, RegionTensor) or readers.take(tensor, request) for tensor in request.inputs)


def _has_many_strings(tensor: Tensor) -> bool:
    if tensor.datatype is not BYTES or tensor.has_array or tensor.nbytes <= FEW_STRINGS * 4:
        return False
    return isinstance(tensor, RegionTensor) or count_elements(tensor.buffer, FEW_STRINGS)[0] == FEW_STRINGS
