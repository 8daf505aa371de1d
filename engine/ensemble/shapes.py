"""How shapes change between models that batch and models that do not (docs/reference/ensembles.md#execution)."""

from __future__ import annotations

from ..config.model import Dims, ModelOutput
from ..errors import InternalError
from ..scheduling.batch import client_shape
from .agreement import matches


def adapted(shape: Dims, rows: int, dims: Dims, batching: bool) -> Dims:
    """A tensor's shape for its receiver: the same, unless only one side has a batch dimension.

    Args:
        shape: the tensor's, with its batch dimension if it has one.
        rows: batch size of the request that it comes from; 0 if that had no batch dimension.
        dims: what the taker is configured for, without a batch dimension.
        batching: the taker has a batch dimension.
    """
    if batching == (rows > 0):
        return shape
    fits = matches(dims, shape)
    if batching:
        return (1, *shape) if fits else shape
    return shape[1:] if rows == 1 and shape[:1] == (1,) and not fits else shape


def output_shape(shape: Dims, rows: int, output: ModelOutput, batching: bool) -> Dims:
    """A tensor's shape as an output of an ensemble, whose ``reshape`` is undone.

    Raises:
        InternalError: the output has a ``reshape`` that the tensor does not go with.
    """
    dims = output.inner_dims
    shape = adapted(shape, rows, dims, batching)
    if output.reshape is None:
        return shape
    if not batching:
        return client_shape(output, shape)
    if not shape:
        raise InternalError(f"output '{output.name}' has no shape, but the ensemble promises a batch dimension")
    return (shape[0], *client_shape(output, shape[1:]))
