"""What the server needs from a GPU: streams, events, memory. Frameworks and the simulator implement it.

Everything that is put into a stream is done by the device in order, later, while the caller goes on. What one stream
has done becomes known to another one by an event, and to the server by a function that the stream calls.

Rules:
 1. Nothing here waits for the device, but for `DeviceEvent.elapsed_ns`, `DeviceStream.drain`, `Device.capture` and what
    allocates when the pool is exhausted.
 2. An array that is used by a stream lives until the stream has done with it: the code that enqueues holds it until
    then.
 3. Host memory that is copied from or to is pinned. Where it is not, the copy is right, but who enqueues it waits for
    it: the only exception to rule 1, for when pinned memory has run out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from ..errors import FailureReason, InternalError, UnavailableError
from ..memory.tensors import DevicePieces, PlacedOutput

DeviceArray = Any
"""A tensor in the device's memory, of the framework's own kind: a torch tensor, a cupy array, ..."""


class OutOfDeviceMemoryError(UnavailableError):
    """The device has no memory left for a batch; the batch fails, and its instance stays in use."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=FailureReason.BACKEND)


class SickDeviceError(InternalError):
    """The device has failed in a way that stays: what is in flight there is lost, and so is the instance."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=FailureReason.BACKEND)


class DeviceEvent(Protocol):
    """A point in a stream."""

    def reached(self) -> bool:
        """Whether the stream has come to it.

        Raises:
            SickDeviceError: it never will.
        """
        ...

    def elapsed_ns(self, later: DeviceEvent) -> int:
        """Nanoseconds of the device's time from here to a `later` event; both must have been reached."""
        ...


class DeviceStream(Protocol):
    """A queue of work on one device. All methods but `handle` enqueue, and raise `SickDeviceError` if the device has
    failed.

    Attributes:
        handle: what CUDA calls it (``cudaStream_t``), for libraries that enqueue by themselves.
    """

    handle: int

    def record(self) -> DeviceEvent:
        """An event behind all that has been enqueued."""
        ...

    def wait(self, event: DeviceEvent) -> None:
        """Let what is enqueued from now on wait for an event of another stream."""
        ...

    def upload(self, host: np.ndarray) -> DeviceArray:
        """Copy a pinned array to the device.

        Raises:
            OutOfDeviceMemoryError: there is no room for it.
        """
        ...

    def assemble(self, pieces: DevicePieces) -> DeviceArray:
        """Copy what is in the device's memory into an array of its own.

        Raises:
            OutOfDeviceMemoryError: there is no room for it.
            InternalError: a piece cannot be copied.
        """
        ...

    def download(self, array: DeviceArray) -> np.ndarray:
        """Copy an array to pinned host memory, which holds it when the stream has come so far; dtype and shape are the
        array's.

        Raises:
            OutOfDeviceMemoryError: there is no pinned memory for it.
        """
        ...

    def place(self, array: DeviceArray, output: PlacedOutput) -> None:
        """Copy an array, from its start, to where clients want it in the device's memory.

        Raises:
            InternalError: a part of it cannot be copied; others may have been enqueued.
        """
        ...

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Copy an array of the device into another one of the same shape and dtype."""
        ...

    def call(self, function: Callable[[], None]) -> None:
        """Call a function, on a thread of the driver's, when all that has been enqueued is done. It must be short and
        must not use the device. On a sick device it is never called.

        Raises:
            UnavailableError, InternalError: it will not be called, though the device is well.
        """
        ...

    def drain(self) -> None:
        """Wait until all that has been enqueued is done; for what is to be put right, never for a batch that goes well.

        Raises:
            SickDeviceError: it never will be, and nothing of it is used any more.
        """
        ...


class Graph(Protocol):
    """Work that was captured once, to be enqueued as a whole (a CUDA graph)."""

    def launch(self, stream: DeviceStream) -> None: ...


class Device(Protocol):
    index: int

    def stream(self, priority: int = 0) -> DeviceStream:
        """A new stream.

        Args:
            priority: 0, or -1 to come before others, as far as the device has such levels.
        """
        ...

    def pinned(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Pinned host memory, from a pool that it goes back to when nothing refers to it any more.

        Where the pool is full it is ordinary memory, which can be used in the same way (rule 3).

        Raises:
            OutOfDeviceMemoryError: there is no memory at all.
        """
        ...

    def relieved(self, array: np.ndarray) -> np.ndarray:
        """What to answer with: a pinned array, or a copy of it where pinned memory is scarce. Nothing is enqueued."""
        ...

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> DeviceArray:
        """An array on the device whose contents are arbitrary; see rule 2.

        Raises:
            OutOfDeviceMemoryError: there is no room for it.
        """
        ...

    def address(self, array: DeviceArray) -> int:
        """Where a contiguous array is in the device's memory, for libraries that compute by themselves; 0 may stand for
        an empty one."""
        ...

    def active(self) -> AbstractContextManager[None]:
        """Make it the calling thread's current device for a while, for libraries that ask CUDA which one that is."""
        ...

    def capture(self, stream: DeviceStream, work: Callable[[], None]) -> Graph:
        """Capture what `work` enqueues on a stream; it is not done.

        Raises:
            InternalError: it does something that cannot be captured; the text says what.
        """
        ...
