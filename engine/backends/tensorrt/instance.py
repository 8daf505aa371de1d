"""One instance: choose a profile, and let the context of that compute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...config.model import Dims, ModelConfig
from ...errors import InternalError
from ...gpu.cupy_device import CupyDevice
from ...gpu.pipeline import Compute, Pipeline
from ..framework import DeviceBatch, ModelTensors, PipelineInstance
from .context import CapturedGraphs, EngineContext
from .library import Library, Settings
from .signature import EngineTensors, Profile, choose


class TensorRtInstance(PipelineInstance):
    """An instance.

    Args:
        engine: the ``ICudaEngine``, which other instances on the device use as well.

    Raises:
        TriremeError: TensorRT cannot make the contexts.
    """

    shares_inputs = shares_outputs = False

    def __init__(
        self,
        library: Library,
        config: ModelConfig,
        name: str,
        tensors: ModelTensors,
        device: CupyDevice,
        engine: Any,
        engine_tensors: EngineTensors,
        profiles: Sequence[Profile],
        settings: Settings,
    ) -> None:
        with device.active():
            super().__init__(name, tensors, Pipeline(device, settings.stream_priority))
            stream = self._pipeline.compute
            self._device = device
            self._values = engine_tensors.values[0]
            self._profiles = profiles
            self._shape_outputs = frozenset(output.name for output in config.output if output.is_shape_tensor)
            self._contexts = {
                profile.index: EngineContext(
                    library, engine, engine_tensors, profile, device, stream, settings.strategy, name
                )
                for profile in profiles
            }
            self._graphs = {
                index: CapturedGraphs(config, engine_tensors, context, device, stream, name)
                for index, context in self._contexts.items()
                if settings.graphs
            }

    def close(self) -> None:
        with self._device.active():
            for context in self._contexts.values():
                context.close()
            self._graphs.clear()
            self._contexts.clear()

    def _prepare(self, run: DeviceBatch, inputs: dict[str, Any]) -> Compute:
        run.host_inputs = {name: self._with_rows(inputs.pop(name), run.rows) for name in self._values}
        shapes = {name: array.shape for name, array in inputs.items()}
        values = {name: tuple(array.reshape(-1).tolist()) for name, array in run.host_inputs.items()}
        profile = choose(self._profiles, shapes, values, self._name)
        graphs = self._graphs.get(profile.index)
        captured = graphs.find(run.rows, inputs) if graphs else None
        if graphs is None or captured is None:
            return partial(self._contexts[profile.index].enqueue, run)
        for name, array in inputs.items():
            inputs[name] = self._filled_up(array, captured.shape(name))
        return partial(graphs.launch, captured, run)

    def _finish(self, run: DeviceBatch, arrays: dict[str, Any]) -> None:
        for name in self._shape_outputs:
            arrays[name] = self._shape_rows(name, arrays[name], run.rows)

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
        if not self._tensors.batching:
            return values
        complete = self._device.pinned((1 + values.size,), values.dtype)
        complete[0] = rows
        complete[1:] = values
        return complete

    def _shape_rows(self, name: str, values: np.ndarray, rows: int) -> np.ndarray:
        """The content of a shape tensor that came out, for each row of a batch: without the rows in front."""
        if not self._tensors.batching or values.ndim == 0:
            return values
        if values[0] != rows:
            raise InternalError(
                f"failed to retrieve the output shape values from binding '{name}' of '{self._name}': the first is "
                f"{values[0]}, and the batch has {rows} rows"
            )
        return np.broadcast_to(values[1:], (rows, values.size - 1))
