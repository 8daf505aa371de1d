"""What requests to a simulated model may differ in, so that not all of them may share a batch
(docs/reference/scheduling.md#compatible-requests).

Such a model has inputs of variable size, or one more input: `EXTRA`.
"""

from __future__ import annotations

import enum
from dataclasses import replace

import numpy as np

from ..engine.config.model import BatchInput, BatchOutput, ModelConfig, ModelInput
from ..engine.datatypes import FP32, INT32
from ..engine.tensor import Tensor

EXTRA = "EXTRA"
"""The input that may be missing, or is a shape tensor."""

COUNTS = "COUNTS"
"""What a model with ragged inputs is told of each request's number of elements."""

WIDTH = 4
"""Elements of a row, where that is fixed."""


class Shapes(enum.Enum):
    """What requests differ in."""

    __hash__ = object.__hash__  # asked for at every batch, and nothing depends on its value

    FIXED = "nothing"
    VARIABLE = "size"
    RAGGED = "size, and they may share a batch all the same"
    OPTIONAL = "inputs"
    SHAPE_TENSOR = "content of a shape tensor"

    @property
    def is_sized(self) -> bool:
        """Whether rows may be of any size."""
        return self in (Shapes.VARIABLE, Shapes.RAGGED)


def with_shapes(config: ModelConfig, shapes: Shapes) -> ModelConfig:
    """The configuration of such a model. Ragged batches need a batch dimension."""
    if shapes.is_sized:
        ragged = shapes is Shapes.RAGGED
        inputs = tuple(replace(each, dims=(-1,), allow_ragged_batch=ragged) for each in config.input)
        outputs = tuple(replace(each, dims=(-1,)) for each in config.output)
        config = replace(config, input=inputs, output=outputs)
        if ragged:
            source, target = inputs[0].name, outputs[0].name
            counts = BatchInput("BATCH_ACCUMULATED_ELEMENT_COUNT", (COUNTS,), FP32, (source,))
            cut = BatchOutput("BATCH_SCATTER_WITH_INPUT_SHAPE", (target,), (source,))
            config = replace(config, batch_input=(counts,), batch_output=(cut,))
    elif shapes is Shapes.OPTIONAL:
        config = replace(config, input=(*config.input, ModelInput(EXTRA, FP32, (1,), optional=True)))
    elif shapes is Shapes.SHAPE_TENSOR:
        config = replace(config, input=(*config.input, ModelInput(EXTRA, INT32, (1,), is_shape_tensor=True)))
    return config


def extra_input(shapes: Shapes, extra: int, held: np.ndarray) -> Tensor | None:
    """The input `EXTRA` of a request, as its client sends it; None for none.

    Args:
        extra: what the request says there; 0 for nothing, where it may be missing.
        held: what its other inputs hold, FP32[rows, size], or FP32[size] without a batch dimension.
    """
    if shapes is Shapes.OPTIONAL and extra:
        array = held[..., :1].copy()
        return Tensor(EXTRA, FP32, array.shape, array=array)
    if shapes is Shapes.SHAPE_TENSOR:
        values = np.array([held.shape[0], extra] if held.ndim > 1 else [extra], np.int32)
        return Tensor(EXTRA, INT32, values.shape, array=values)
    return None


def extra_value(shapes: Shapes, extra: int, held: np.ndarray) -> np.ndarray | int:
    """What `EXTRA` adds to the answer to a request."""
    if shapes is Shapes.OPTIONAL:
        return held[..., :1] if extra else 0
    return extra if shapes is Shapes.SHAPE_TENSOR else 0
