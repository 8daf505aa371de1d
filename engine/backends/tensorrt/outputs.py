"""Outputs whose shape is unknown before they have been computed: TensorRT asks for memory as it goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...config.model import Dims
from ...errors import InternalError, TriremeError
from ...gpu.cupy_device import CupyDevice
from ...gpu.device import DeviceArray

_BYTES = np.dtype(np.uint8)


class GrowingOutput:
    """One such output of one execution context.

    TensorRT calls its allocator between the call that enqueues a batch and the return of that call, and has told the
    shape by then.

    Attributes:
        allocator: the ``IOutputAllocator``: one for as long as the context lives, which keeps all that it ever got.
    """

    def __init__(self, trt: Any, device: CupyDevice) -> None:
        self._device = device
        self._arrays: list[DeviceArray] = []
        self._shape: Dims | None = None
        self._error: TriremeError | None = None
        self.allocator = _make_allocator(trt, self)

    def allocate(self, size: int) -> int | None:
        """The address of so many bytes; None if there are none left."""
        try:
            array = self._device.empty((max(size, 1),), _BYTES)
        except TriremeError as error:  # TensorRT cannot hand it on
            self._error = error
            return None
        self._arrays.append(array)
        return self._device.address(array)

    def told(self, shape: Dims) -> None:
        """The shape is known."""
        self._shape = shape

    def take(self, name: str, dtype: np.dtype, held: list[object]) -> DeviceArray:
        """The output that a batch has made.

        Args:
            held: gets all memory that the batch was given.

        Raises:
            InternalError: TensorRT told no shape.
        """
        arrays, shape = self._arrays, self._shape
        self.give_up(held)
        if shape is None or not arrays:
            raise InternalError(f"TensorRT told no shape of the output '{name}'")
        return self._device.view(self._device.address(arrays[-1]), shape, dtype, arrays[-1])

    def give_up(self, held: list[object]) -> TriremeError | None:
        """The batch has failed; gives why there was no memory, if that is it."""
        error = self._error
        held.extend(self._arrays)
        self._arrays, self._shape, self._error = [], None, None
        return error


def _make_allocator(trt: Any, output: GrowingOutput) -> Any:
    class Allocator(trt.IOutputAllocator):
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)  # not super(): the class is one of C++

        def reallocate_output(self, tensor_name: str, memory: Any, size: int, alignment: int) -> int | None:
            return output.allocate(size)

        def reallocate_output_async(
            self, tensor_name: str, memory: Any, size: int, alignment: int, stream: int
        ) -> int | None:
            return output.allocate(size)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            output.told(tuple(shape))

    return Allocator()
