"""A batch's way over a device: copied in, computed, copied out, each on a stream of its own, so that batches overlap.

Rules:
 1. Inputs are copied on the first stream, computed with on the second, outputs copied on the third. A stream waits for
    the one before it by an event, never the server.
 2. Batches pass every stream in the order in which they were launched.
 3. Whatever the device uses for a batch is held until the batch has landed, or, if launching it failed halfway, until
    the device has passed what was enqueued (a wreck): memory that goes back early may be another batch's by then.
 4. A batch lands when the third stream has passed everything of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from ..execution import ExecutionBatch, Phase
from .device import Device, DeviceArray, Event, OutOfDeviceMemoryError, Stream

Compute = Callable[[Stream, Sequence[DeviceArray]], Sequence[DeviceArray]]
"""Enqueues a batch's computation on a stream, and gives the arrays that will hold its results."""


MOST_WRECKS = 8


class Flight:
    """A batch that was launched.

    Attributes:
        outputs: pinned arrays, one for each result; they hold it once the batch has landed.
    """

    __slots__ = ("_held", "_marks", "outputs")

    def __init__(self, outputs: list[np.ndarray], marks: Sequence[Event], held: object) -> None:
        self.outputs = outputs
        self._marks = marks
        self._held = held

    def reached(self) -> bool:
        """Whether it has landed.

        Raises:
            SickDeviceError: it never will.
        """
        return self._marks[-1].reached()

    def mark(self, batch: ExecutionBatch) -> None:
        """Take the batch's time marks, when it has landed: the phases as long as the device says, up to now."""
        _, begun, computed, landed = self._marks
        now_ns = batch.now_ns()
        batch.marks[Phase.OUTPUT_START] = output_ns = now_ns - computed.elapsed_ns(landed)
        batch.marks[Phase.INFER_START] = output_ns - begun.elapsed_ns(computed)

    def release(self) -> None:
        """The batch has landed: what only the device needed goes back."""
        self._held = None


class Pipeline:
    """The streams of one instance. Used on the instance's thread.

    Args:
        priority: see `Device.stream`.
    """

    def __init__(self, device: Device, priority: int = 0) -> None:
        self.device = device
        self._copies_in = device.stream(priority)
        self.compute = device.stream(priority)
        self._copies_out = device.stream(priority)
        self._wrecks: list[tuple[Event, object]] = []

    def launch(self, inputs: Sequence[np.ndarray], compute: Compute, on_landed: Callable[[], None]) -> Flight:
        """Enqueue a batch.

        Args:
            inputs: pinned (`Device.pinned`).
            on_landed: called from a thread of the driver's.

        Raises:
            OutOfDeviceMemoryError, SickDeviceError: see `Stream`.
            Exception: what `compute` raises.
        """
        self._clear_wrecks()
        held: list[object] = [inputs]
        with ExitStack() as failed:
            failed.callback(self._wreck, held)
            started = self._copies_in.record()
            arrays = []
            for array in inputs:
                arrays.append(self._copies_in.upload(array))
                held.append(arrays[-1])
            self.compute.wait(self._copies_in.record())
            begun = self.compute.record()
            results = compute(self.compute, arrays)
            held.append(results)
            computed = self.compute.record()
            self._copies_out.wait(computed)
            outputs = []
            for result in results:
                outputs.append(self._copies_out.download(result))
                held.append(outputs[-1])
            landed = self._copies_out.record()
            self._copies_out.call(on_landed)
            failed.pop_all()
        return Flight(outputs, (started, begun, computed, landed), held)

    def _wreck(self, held: object) -> None:
        """Rule 3, for what was enqueued of a batch."""
        self.compute.wait(self._copies_in.record())
        self._copies_out.wait(self.compute.record())
        self._wrecks.append((self._copies_out.record(), held))

    def _clear_wrecks(self) -> None:
        while self._wrecks and self._wrecks[0][0].reached():
            del self._wrecks[0]
        if len(self._wrecks) >= MOST_WRECKS:
            raise OutOfDeviceMemoryError(f"the device still holds the memory of {MOST_WRECKS} batches that failed")

    def close(self) -> None:
        """Nothing more will be launched, and everything has landed."""
        self._wrecks.clear()
