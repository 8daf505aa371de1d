"""A network on a GPU.

Rules:
 1. All its work is on one stream, so that each step finds what the ones before have written.
 2. Steps of one token of each text, without adapters, are computed in fixed shapes (`decode_graphs`). Steps with
    prompts, with adapters, and the first one of all, are computed as on a CPU whose network is not followed.
 3. Weights, the memory of keys and values, and graphs do not count as what batches take of the GPU's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...generation.iterations import Step
from ...gpu.device import SickDeviceError
from ...gpu.torch_device import TorchDevice
from .network import Network


class GpuNetwork(Network):
    """See `Network`.

    Args:
        gpu: the device.
        name: of the instance, for the log.
        most_running: texts that may be in a step.
        graphs: whether its steps are captured as CUDA graphs.

    Raises:
        OutOfDeviceMemoryError, SickDeviceError: see `TorchDevice.errors`.
    """

    _scratch = 1

    def __init__(
        self,
        directory: Path,
        blocks: int,
        size: int,
        held: int = 0,
        adapters: Mapping[str, Path] | None = None,
        dtype: str = "auto",
        *,
        gpu: TorchDevice,
        name: str,
        most_running: int,
        graphs: bool = True,
    ) -> None:
        self._gpu = gpu
        self._name = name
        self._most_running = most_running
        self._graphs = graphs
        self._stream = gpu.stream()
        with gpu.errors():
            super().__init__(directory, blocks, size, held, str(gpu.place), adapters, dtype)
        gpu.loaded(self._stream)

    def keep(self, blocks: int, size: int, held: int) -> None:
        super().keep(blocks, size, held)
        self._decoding: Any = None  # it has the memory before

    def close(self) -> None:
        """Give its memory back to the driver, as other frameworks could not have it otherwise."""
        del self._model, self._memory, self._decoding, self._adapters
        with suppress(SickDeviceError, RuntimeError):
            self._gpu.give_back()

    @property
    def decoding(self) -> Any:
        """What computes steps of one token of each text; None before the first one."""
        return self._decoding

    def _carried_out(self, step: Step) -> np.ndarray:
        with self._gpu.errors(), self._stream.active():
            if not self._memory.layers:
                made: list[np.ndarray] = []
                self._gpu.load(lambda: self._first(step, made))
                return made[0]
            if not any(piece.generation.adapter for piece in step.pieces):
                decoding = self._decoding = self._decoding or self._fixed()
                shape = decoding.shape_of(step)
                if shape is not None:
                    self._memory.move(step.moves)
                    self._adapters.begin(step.pieces, None)
                    return decoding.run(step, shape)
            return super()._carried_out(step)

    def _first(self, step: Step, made: list[np.ndarray]) -> object:
        """Carry out the first step; the memory that it has made (rule 3)."""
        made.append(super()._carried_out(step))
        return self._memory

    def _fixed(self) -> Any:
        module = import_module(".decode_graphs", __package__)
        most = module.DecodeShape(self._most_running, -(-self.context // self._memory.size))
        captures = self._graphs and self._compiled.steps_alike(self._model)
        arguments = self._name, self._model, self._memory, self._gpu, self._stream, most, self.vocabulary
        return module.DecodeGraphs(*arguments, captures=captures)
