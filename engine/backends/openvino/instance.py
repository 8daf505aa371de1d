"""One infer request: gather, run, scatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...errors import InternalError
from ...execution import ExecutionBatch, Phase
from ...scheduling.batch import BatchLayout
from ..interface import InstanceSpec, ModelInstance
from .library import ERRORS, openvino_error


class OpenVinoInstance(ModelInstance):
    """An instance; `execute` and `close` on one thread at a time.

    Args:
        compiled: the ``CompiledModel``, which instances share.
        fixed_batch: rows that the model takes, no more and no fewer; 0 for any number.
        pad: fill batches up to `fixed_batch`.
    """

    def __init__(
        self,
        compiled: Any,
        config: ModelConfig,
        spec: InstanceSpec,
        layout: BatchLayout,
        fixed_batch: int,
        pad: bool,
        scalars: frozenset[str],
    ) -> None:
        self._name = spec.name
        self._max_rows = max(config.max_batch_size, 1)
        self._layout = layout
        self._outputs = [output.name for output in config.output]
        self._fixed_batch = fixed_batch
        self._pad = pad
        self._scalars = scalars
        self._request: Any = compiled.create_infer_request()

    def execute(self, batch: ExecutionBatch) -> None:
        if batch.rows > self._max_rows:
            raise InternalError(f"batch size {batch.rows} for '{self._name}', max allowed is {self._max_rows}")
        jobs, arrays = self._layout.gather(batch.jobs)
        if not jobs:
            return
        if self._fixed_batch and batch.rows != self._fixed_batch:
            arrays = self._padded(arrays, batch.rows)
        inputs = {
            name: array.reshape(()) if name in self._scalars else np.ascontiguousarray(array)
            for name, array in arrays.items()
        }
        batch.mark(Phase.INFER_START)
        try:
            results = self._request.infer(inputs, share_inputs=True)
        except ERRORS as error:
            raise openvino_error(error) from None
        batch.mark(Phase.OUTPUT_START)
        self._layout.scatter(jobs, [_at_least_1d(results[name]) for name in self._outputs])

    def _padded(self, arrays: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """Fill up with rows of zeros, whose results are dropped."""
        if not self._pad:
            raise InternalError(
                f"expected requests with batch size '{self._fixed_batch}', got '{rows}'... this error can be avoided "
                "by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
            )
        missing = self._fixed_batch - rows
        return {
            name: np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
            for name, array in arrays.items()
        }

    def close(self) -> None:
        self._request = None


def _at_least_1d(array: np.ndarray) -> np.ndarray:
    """What graphs call a scalar, configurations call [1]."""
    return array.reshape(1) if array.ndim == 0 else array
