"""Models whose instances own streams of a simulated GPU, with the server's own `GpuPipeline` and stream actor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..engine.backends.interface import StreamInstance
from ..engine.config.model import ModelConfig
from ..engine.gpu.device import DeviceStream
from ..engine.gpu.pipeline import Flight, GpuPipeline
from ..engine.job import ExecutionBatch
from .stream_device import LatencyProfile, SimulatedArray, SimulatedDevice, SimulatedStream

_BYTE = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class StreamWork:
    """What a batch does to a device, instead of `models.Work`: it is copied in, computed, and copied out.

    Attributes:
        credits: batches that an instance may have in flight.
        computing: called when a batch's computation is enqueued: how many seconds it takes beside what its latency
            says, if any. May raise what a backend would.
        computed: called when the device has computed a batch, before it copies its outputs.
    """

    device: SimulatedDevice
    latency: LatencyProfile
    credits: int = 2
    computing: Callable[[ExecutionBatch], float | None] = lambda _batch: None
    computed: Callable[[ExecutionBatch], None] | None = None


class SimulatedStreamInstance(StreamInstance):
    """Answers as its model says, when its device has landed the batch.

    Args:
        answer: of the model.
    """

    def __init__(
        self, config: ModelConfig, work: StreamWork, answer: Callable[[ModelConfig, ExecutionBatch], None]
    ) -> None:
        self.credits = work.credits
        self._config = config
        self._work = work
        self._answer = answer
        self._pipeline = GpuPipeline(work.device)

    def launch(self, batch: ExecutionBatch, on_landed: Callable[[], None]) -> Flight:
        device, latency = self._work.device, self._work.latency
        device.batch = device.gpu.batch_number(batch)

        def compute(stream: DeviceStream, arrays: Sequence[SimulatedArray]) -> list[SimulatedArray]:
            assert isinstance(stream, SimulatedStream)
            more_s = self._work.computing(batch) or 0.0
            result = device.empty((_output_bytes(self._config, batch.rows),), _BYTE)
            stream.kernel("k", latency.at(batch.rows) + more_s, latency.units, *arrays, result)
            if self._work.computed is not None:
                stream.call(partial(self._work.computed, batch))
            return [result]

        return self._pipeline.launch([device.pinned((batch.nbytes,), _BYTE)], compute, on_landed)

    def collect(self, batch: ExecutionBatch, launched: Flight) -> None:
        launched.collect(batch)
        self._answer(self._config, batch)

    def healthy(self, launched: Flight) -> None:
        launched.reached()


def _output_bytes(config: ModelConfig, rows: int) -> int:
    """Of fixed-size outputs; one of variable size counts as one element."""
    return sum(
        rows * math.prod(max(1, dim) for dim in output.dims) * np.dtype(output.datatype.storage).itemsize
        for output in config.output
    )
