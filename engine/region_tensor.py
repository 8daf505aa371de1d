"""Tensors whose data is in shared memory: read late, and once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .datatypes import DataType
from .shared_memory import RegionSlice
from .tensor import Buffer, Tensor


@dataclass(frozen=True, slots=True)
class DevicePieces:
    """An input of a batch that is in a GPU's memory already, piece by piece: to be copied there, and not read."""

    shape: tuple[int, ...]
    dtype: np.dtype
    pieces: tuple[RegionSlice, ...]


class _Source:
    """Data that is shared by a tensor and what it was renamed or reshaped to."""

    __slots__ = ("data", "place")

    def __init__(self, place: RegionSlice) -> None:
        self.place = place
        self.data: memoryview | None = None

    def read(self) -> memoryview:
        if self.data is None:
            self.data = self.place.view()
        return self.data


class RegionTensor(Tensor):
    """A tensor that is still in shared memory.

    What a client announces is cheap: its datatype, shape and size are checked before a byte is copied. Whoever asks for
    its data has it read, which may take long and raises what `RegionSlice.view` does; so it is exchanged for a plain
    tensor (`loaded`) before the request is queued.

    Args:
        place: where it is.
    """

    __slots__ = ("_source",)

    def __init__(self, name: str, datatype: DataType, shape: tuple[int, ...], place: RegionSlice | _Source) -> None:
        super().__init__(name, datatype, shape)
        self._source = place if isinstance(place, _Source) else _Source(place)

    @property
    def place(self) -> RegionSlice:
        """Where it is."""
        return self._source.place

    @property
    def buffer(self) -> Buffer:
        self._buffer = self._source.read()
        return self._buffer

    @property
    def array(self) -> np.ndarray:
        self._buffer = self._source.read()
        return super().array

    @property
    def nbytes(self) -> int:
        return self._source.place.byte_size

    def renamed(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return RegionTensor(name, self.datatype, shape, self._source)

    def check_size(self) -> None:
        """Refuse what is more than an input may have, before room is made for it.

        Raises:
            InvalidArgumentError: it is.
        """
        self._source.place.check_size()

    def loaded(self) -> Tensor:
        """The same tensor with its data, read.

        Raises:
            InvalidArgumentError, UnavailableError, InternalError: see `RegionSlice.view`.
        """
        return Tensor(self.name, self.datatype, self.shape, self._source.read())
