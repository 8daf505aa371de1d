"""Tensors whose data is in shared memory: read late, and once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..datatypes import DataType
from ..tensor import Buffer, Tensor
from .regions import Loan, Region, RegionSlice


@dataclass(frozen=True, slots=True)
class DevicePieces:
    """An input of a batch that is in a GPU's memory already, piece by piece: to be copied there, and not read."""

    shape: tuple[int, ...]
    dtype: np.dtype
    pieces: tuple[RegionSlice, ...]


@dataclass(slots=True, eq=False)
class _Source:
    """Data that is shared by a tensor and what it was renamed or reshaped to."""

    place: RegionSlice
    data: memoryview | None = None
    loan: Loan | None = None

    def read(self) -> memoryview:
        if self.data is None:
            self.data = self.place.view()
        return self.data

    def borrow(self) -> None:
        self.loan = self.place.lend()
        self.data = self.place.view() if self.loan is None else self.loan.array.data.toreadonly()

    def check(self) -> None:
        region = self.place.region
        if self.loan is None or not isinstance(region, Region):
            return
        try:
            self.loan.check()
        except OSError as error:
            raise region.no_memory(self.place.byte_size) from error


class RegionTensor(Tensor):
    """A tensor that is still in shared memory.

    What a client announces is cheap: its datatype, shape and size are checked before a byte is copied. Asking for its
    data reads it, which may take long and raises what `RegionSlice.view` does; so it is exchanged for a plain tensor
    (`loaded`) before the request is queued. Or the model's instance borrows it, on its own thread.
    """

    __slots__ = ("_source",)

    def __init__(self, name: str, datatype: DataType, shape: tuple[int, ...], place: RegionSlice | _Source) -> None:
        super().__init__(name, datatype, shape)
        self._source = place if isinstance(place, _Source) else _Source(place)

    @property
    def place(self) -> RegionSlice:
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

    def borrow(self) -> None:
        """Let its data, from now on, be what is in the region at the time, not copied if that can be; who uses it calls
        `check` afterwards.

        Raises:
            InvalidArgumentError, UnavailableError, InternalError: see `RegionSlice.view`.
        """
        self._array = None
        self._source.borrow()

    def check(self) -> None:
        """Look whether the data that was used since `borrow` was the region's.

        Raises:
            InvalidArgumentError: the segment was cut short.
            UnavailableError: some of it has no memory any more.
        """
        self._source.check()

    def read_into(self, target: np.ndarray) -> None:
        """Copy its data, unless it was read already straight from the region, to an array, uint8, of `nbytes`.

        Raises:
            InvalidArgumentError, UnavailableError, InternalError: see `RegionSlice.view`.
        """
        source = self._source
        if source.data is None:
            source.place.read_into(target)
        else:
            target[...] = np.frombuffer(source.data, np.uint8)

    def loaded(self) -> Tensor:
        """The same tensor with its data, read.

        Raises:
            InvalidArgumentError, UnavailableError, InternalError: see `RegionSlice.view`.
        """
        return Tensor(self.name, self.datatype, self.shape, self._source.read())

    def kept(self, most_bytes: int) -> Tensor | None:
        """The same tensor with data that its client cannot change: a copy that there is already, or one of no more
        than so many bytes of the machine's memory; else None. Raises as `loaded`."""
        source = self._source
        if source.data is not None and source.loan is None:
            return Tensor(self.name, self.datatype, self.shape, source.data)
        if self.nbytes > most_bytes or source.place.gpu is not None:
            return None
        return Tensor(self.name, self.datatype, self.shape, source.place.view())


@dataclass(frozen=True, slots=True)
class PlacedOutput:
    """An output of a batch that is where the clients want it: a GPU copies it there, in its own memory; or, in the
    machine's memory, the framework has written it there.

    Attributes:
        tensors: what each job gets of it, in batch order; each place is as long as its tensor.
    """

    tensors: tuple[RegionTensor, ...]

    def copy_from(self, stream: int, source: int) -> None:
        """Enqueue the copies, on a stream, from an address where the tensors lie one behind the other.

        Raises:
            InternalError: CUDA does not enqueue one.
        """
        for tensor in self.tensors:
            tensor.place.copy_from(stream, source)
            source += tensor.nbytes


def is_in_place(tensor: Tensor, place: RegionSlice) -> bool:
    """Whether an output is where its client wants it."""
    if not isinstance(tensor, RegionTensor):
        return False
    there = tensor.place
    return there.region is place.region and there.offset == place.offset and there.byte_size <= place.byte_size


def put_in_place(tensor: Tensor, place: RegionSlice) -> None:
    """Put an output where its client wants it, unless it is there.

    Raises:
        InternalError, InvalidArgumentError: see `RegionSlice.write`.
    """
    if not is_in_place(tensor, place):
        place.write(tensor.name, tensor.buffer)
