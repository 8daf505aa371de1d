"""A batch's way over a device: copied in, computed, copied out, each on a stream of its own, so that batches overlap.

Rules:
 1. Inputs are copied on the first stream, computed with on the second, outputs copied on the third. A stream waits for
    the one before it by an event, never the server.
 2. Batches pass every stream in the order in which they were launched.
 3. Whatever the device uses for a batch is held until the batch has landed: memory that goes back early may be another
    batch's by then.
 4. A batch lands when the third stream has passed everything of it. One that failed while it was being launched lands
    as well, with what was enqueued of it, and tells then what went wrong: so no more memory is held than that of the
    batches in flight.
 5. What clients want in the device's memory is copied there by the third stream, in place of a copy to the host. Where
    the driver refuses that, the host gets it, and what is wrong with the place concerns its client alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InternalError
from ..job import ExecutionBatch, Phase
from ..memory.tensors import DevicePieces, PlacedOutput
from .device import Device, DeviceArray, DeviceEvent, DeviceStream, SickDeviceError

logger = logging.getLogger(__name__)

Input = np.ndarray | DevicePieces
"""A pinned array (`Device.pinned`), or what a client shares in the device's memory."""
Compute = Callable[[DeviceStream, Sequence[DeviceArray]], Sequence[DeviceArray]]
"""Enqueues a batch's computation on a stream, and gives the arrays that will hold its results. No later batch may write
to these (a captured graph's are copied first, on the stream): they are copied out while the next batch is computed."""
Output = np.ndarray | PlacedOutput
"""An array on the host, or what has gone to its clients."""
PlaceOutputs = Callable[[Sequence[DeviceArray]], Sequence[PlacedOutput | None]]
"""Tells of each of a batch's results where in the device's memory its clients want it; None for what the host gets."""


@dataclass(slots=True, eq=False)
class Flight:
    """A batch on its way; `computed` is None if it failed while it was being launched, with `error`."""

    _device: Device
    _outputs: list[Output]
    _computed: tuple[DeviceEvent, DeviceEvent] | None
    _landed: DeviceEvent
    _held: object
    _error: BaseException | None

    def reached(self) -> bool:
        """Whether it has landed.

        Raises:
            SickDeviceError: it never will.
        """
        return self._landed.reached()

    def collect(self, batch: ExecutionBatch) -> list[Any]:
        """What the batch has come to, once, when it has landed. Takes the batch's time marks: the phases as long as the
        device says, up to now. What only the device needed goes back.

        Returns:
            An `Output` for each result. Arrays are there for as long as they are referred to; pinned, unless that is
            scarce.

        Raises:
            OutOfDeviceMemoryError: there was not enough memory for the batch.
            SickDeviceError: the device has failed meanwhile.
            Exception: what its computation raised.
        """
        if self._computed is None:
            self._held = self._outputs = []
            error, self._error = self._error, None
            assert error is not None, "collected once"
            raise error.with_traceback(None)
        begun, computed = self._computed
        output_ns = batch.now_ns() - computed.elapsed_ns(self._landed)
        batch.marks[Phase.OUTPUT_START] = output_ns
        batch.marks[Phase.INFER_START] = output_ns - begun.elapsed_ns(computed)
        self._held = None
        outputs, self._outputs = self._outputs, []
        return [output if isinstance(output, PlacedOutput) else self._device.relieved(output) for output in outputs]


class GpuPipeline:
    """The streams of one instance. Used on the instance's thread."""

    def __init__(self, device: Device, priority: int = 0) -> None:
        self.device = device
        self._copies_in = device.stream(priority)
        self.compute = device.stream(priority)
        self._copies_out = device.stream(priority)

    def launch(
        self,
        inputs: Sequence[Input],
        compute: Compute,
        on_landed: Callable[[], None],
        place: PlaceOutputs | None = None,
    ) -> Flight:
        """Enqueue a batch.

        Args:
            on_landed: called from a thread of the driver's, also when the batch has failed (`Flight.collect`).
            place: see `PlaceOutputs`; None if the host gets all results.

        Raises:
            SickDeviceError: see `DeviceStream`.
            UnavailableError, InternalError: see `DeviceStream.call`; the device uses nothing of the batch any more.
        """
        held: list[object] = [inputs]
        outputs: list[Output] = []
        computed = error = None
        try:
            try:
                computed = self._enqueue(inputs, compute, place, held, outputs)
            except SickDeviceError:
                raise
            except (Exception, SystemExit) as failure:  # noqa: BLE001 - foreign code may raise anything; see rule 4
                error = failure  # whose traceback holds what it was working with: the device may be at it still
                self.compute.wait(self._copies_in.record())
                self._copies_out.wait(self.compute.record())
            landed = self._copies_out.record()
            self._copies_out.call(on_landed)
        except SickDeviceError:
            raise
        except BaseException:  # the landing will not be reported, so it is waited for (rule 3)
            for stream in (self._copies_in, self.compute, self._copies_out):
                stream.drain()
            raise
        return Flight(self.device, outputs, computed, landed, held, error)

    def _enqueue(
        self,
        inputs: Sequence[Input],
        compute: Compute,
        place: PlaceOutputs | None,
        held: list[object],
        outputs: list[Output],
    ) -> tuple[DeviceEvent, DeviceEvent]:
        """Rules 1 and 3; gives the events at which the computation begins and ends."""
        arrays = []
        for array in inputs:
            shared = isinstance(array, DevicePieces)
            arrays.append(self._copies_in.assemble(array) if shared else self._copies_in.upload(array))
            held.append(arrays[-1])
        self.compute.wait(self._copies_in.record())
        begun = self.compute.record()
        results = compute(self.compute, arrays)
        held.append(results)
        computed = self.compute.record()
        self._copies_out.wait(computed)
        placed = [None] * len(results) if place is None else place(results)
        held.append(placed)
        # Which keeps what there is of them.
        outputs.extend(self._copy_out(result, output) for result, output in zip(results, placed, strict=True))
        return begun, computed

    def _copy_out(self, result: DeviceArray, output: PlacedOutput | None) -> Output:
        """Rule 5."""
        if output is not None:
            try:
                self._copies_out.place(result, output)
            except SickDeviceError:
                raise
            except InternalError as error:
                logger.debug("an output goes through the host: %s", error)
            else:
                return output
        return self._copies_out.download(result)
