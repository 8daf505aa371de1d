"""One instance: gather, choose a profile, launch; when the batch has landed, scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...config.model import Dims, ModelConfig
from ...config.sequence import ImplicitState
from ...errors import InternalError
from ...execution import ExecutionBatch
from ...gpu.cupy_device import CupyDevice
from ...gpu.pipeline import Flight, Pipeline
from ...job import Job
from ...scheduling.batch import BatchLayout
from ...scheduling.sequence.state import keep_arrays
from ..interface import InstanceSpec, StreamInstance
from .context import CapturedGraphs, EngineContext, Run
from .library import Library, Settings
from .signature import EngineTensors, Profile, choose


@dataclass(frozen=True, slots=True)
class Launched:
    jobs: Sequence[Job]
    run: Run
    flight: Flight


class TensorRtInstance(StreamInstance):
    """An instance; see `StreamInstance` for who calls what.

    Args:
        engine: the ``ICudaEngine``, which other instances on the device use as well.

    Raises:
        TriremeError: TensorRT cannot make the contexts.
    """

    def __init__(
        self,
        library: Library,
        config: ModelConfig,
        spec: InstanceSpec,
        device: CupyDevice,
        engine: Any,
        tensors: EngineTensors,
        profiles: Sequence[Profile],
        settings: Settings,
        layout: BatchLayout,
        states: Sequence[ImplicitState],
    ) -> None:
        self._name = spec.name
        self._batching = config.max_batch_size > 0
        self._max_rows = max(config.max_batch_size, 1)
        self._device = device
        self._tensors = tensors
        self._profiles = profiles
        self._layout = layout
        self._scalars = frozenset(name for name, tensor in tensors.signature.inputs.items() if not tensor.dims)
        self._outputs = [output.name for output in config.output]
        self._shape_outputs = frozenset(output.name for output in config.output if output.is_shape_tensor)
        self._states = states
        with device.active():
            self._pipeline = Pipeline(device, settings.stream_priority)
            self._contexts = {
                profile.index: EngineContext(
                    library,
                    engine,
                    tensors,
                    profile,
                    device,
                    self._pipeline.compute,
                    settings.strategy,
                    spec.name,
                )
                for profile in profiles
            }
            self._graphs = {
                index: CapturedGraphs(config, tensors, context, device, self._pipeline.compute, spec.name)
                for index, context in self._contexts.items()
                if settings.graphs
            }

    def launch(self, batch: ExecutionBatch, on_landed: Callable[[], None]) -> Launched:
        if batch.rows > self._max_rows:
            raise InternalError(f"batch size {batch.rows} for '{self._name}', max allowed is {self._max_rows}")
        jobs, gathered = self._layout.gather(batch.jobs, self._device.pinned)
        arrays = {name: array.reshape(()) if name in self._scalars else array for name, array in gathered.items()}
        host_inputs = {name: self._with_rows(arrays.pop(name), batch.rows) for name in self._tensors.values[0]}
        shapes = {name: array.shape for name, array in arrays.items()}
        profile = choose(
            self._profiles, shapes, {name: _numbers(array) for name, array in host_inputs.items()}, self._name
        )
        run = Run(tuple(arrays), host_inputs)
        compute = partial(self._contexts[profile.index].enqueue, run)
        pinned = list(arrays.values())
        graphs = self._graphs.get(profile.index)
        captured = graphs.find(batch.rows, shapes) if graphs else None
        if graphs and captured:
            compute = partial(graphs.launch, captured, run)
            pinned = [self._filled_up(array, captured.shape.shape(name)) for name, array in arrays.items()]
        with self._device.active():
            return Launched(jobs, run, self._pipeline.launch(pinned, compute, on_landed))

    def collect(self, batch: ExecutionBatch, launched: Launched) -> None:
        results = launched.run.results(launched.flight.collect(batch))
        for name in self._shape_outputs:
            results[name] = self._shape_rows(name, results[name], batch.rows)
        shares = self._layout.split(launched.jobs, [results[name] for name in self._outputs])
        if self._states:
            kept = [(state, results[state.output_name]) for state in self._states]
            keep_arrays(launched.jobs, kept, self._batching)
        self._layout.answer(shares)

    def healthy(self, launched: Launched) -> None:
        launched.flight.reached()

    def close(self) -> None:
        with self._device.active():
            for context in self._contexts.values():
                context.close()
            self._graphs.clear()
            self._contexts.clear()

    def _filled_up(self, array: np.ndarray, shape: Dims) -> np.ndarray:
        """A pinned array as a graph wants it."""
        if array.shape == shape:
            return array
        filled = self._device.pinned(shape, array.dtype)
        filled[...] = 0
        filled[tuple(map(slice, array.shape))] = array
        return filled

    def _with_rows(self, values: np.ndarray, rows: int) -> np.ndarray:
        """A shape tensor as the engine wants it: that of a batch has the number of rows in front."""
        if not self._batching:
            return values
        complete = self._device.pinned((1 + values.size,), values.dtype)
        complete[0] = rows
        complete[1:] = values
        return complete

    def _shape_rows(self, name: str, values: np.ndarray, rows: int) -> np.ndarray:
        """The content of a shape tensor that came out, for each row of a batch: without the rows in front."""
        if not self._batching or values.ndim == 0:
            return values
        if values[0] != rows:
            raise InternalError(
                f"failed to retrieve the output shape values from binding '{name}' of '{self._name}': the first is "
                f"{values[0]}, and the batch has {rows} rows"
            )
        return np.broadcast_to(values[1:], (rows, values.size - 1))


def _numbers(array: np.ndarray) -> tuple[int, ...]:
    return tuple(array.reshape(-1).tolist())
