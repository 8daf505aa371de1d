"""Models whose instances own streams of a simulated GPU, with the server's own `Pipeline` and stream actor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.backends.interface import StreamInstance
from ..engine.config.model import ModelConfig
from ..engine.execution import ExecutionBatch
from ..engine.gpu.device import Stream
from ..engine.gpu.pipeline import Flight, Pipeline
from .stream_device import LatencyProfile, SimulatedArray, SimulatedDevice, SimulatedStream

_BYTE = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class StreamWork:
    """What a batch does to a device, instead of `models.Work`: it is copied in, computed, and copied out.

    Attributes:
        credits: batches that an instance may have in flight.
        computing: called when a batch's computation is enqueued; may raise what a backend would.
    """

    device: SimulatedDevice
    latency: LatencyProfile
    credits: int = 2
    computing: Callable[[ExecutionBatch], None] = lambda _batch: None


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
        self._pipeline = Pipeline(work.device)

    def launch(self, batch: ExecutionBatch, on_landed: Callable[[], None]) -> Flight:
        device, latency = self._work.device, self._work.latency
        device.batch = device.gpu.batch_number(batch)

        def compute(stream: Stream, _arrays: Sequence[SimulatedArray]) -> list[SimulatedArray]:
            assert isinstance(stream, SimulatedStream)
            self._work.computing(batch)
            stream.kernel("k", latency.at(batch.rows), latency.units)
            return [device.empty((_output_bytes(self._config, batch.rows),), _BYTE)]

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
