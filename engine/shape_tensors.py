"""Shape tensors in requests to models that batch (TensorRT's only; model_configuration of Triton, "Shape Tensors").

A shape tensor has no batch dimension: a batch adds a value to it, in front, which is the number of rows. So does a
request: what the configuration calls [2] comes as [3], the first being the request's batch size. Requests that share a
batch have the rest in common, and that is all that is kept of them; the backend puts the batch's number in front.
"""

from __future__ import annotations

import numpy as np

from .config.model import ModelConfig, ModelInput
from .errors import InvalidArgumentError, request_prefix
from .tensor import Tensor


def batched_shape_tensors(config: ModelConfig) -> dict[str, ModelInput]:
    """The inputs that this is about, by name."""
    if config.max_batch_size == 0:
        return {}
    return {tensor.name: tensor for tensor in config.input if tensor.is_shape_tensor and len(tensor.dims) == 1}


def with_batch_size(tensor: Tensor, rows: int) -> Tensor:
    """A shape tensor as a request of so many rows brings it, from its values alone."""
    values = np.concatenate([np.array([rows], tensor.datatype.storage), tensor.array.reshape(-1)])
    return Tensor(tensor.name, tensor.datatype, values.shape, array=values)


def shape_values(config: ModelInput, tensor: Tensor, rows: int, request_id: str, model: str) -> Tensor:
    """What is kept of a shape tensor, with the configured shape.

    Raises:
        InvalidArgumentError: it is not what the configuration and the batch size ask for.
    """
    prefix = request_prefix(request_id)
    if tensor.datatype is not config.datatype:
        raise InvalidArgumentError(
            f"{prefix}inference input '{tensor.name}' data-type is '{tensor.datatype.name}', but model '{model}' "
            f"expects '{config.datatype.name}'"
        )
    count = config.dims[0] + 1
    if tensor.shape != (count,):
        got = ",".join(map(str, tensor.shape))
        raise InvalidArgumentError(
            f"{prefix}unexpected shape for input '{tensor.name}' for model '{model}'. Expected [{count}], got [{got}]. "
            "NOTE: A shape tensor of a model with a non-zero max_batch_size has the batch size in front of the values "
            "that the model config describes, and no batch dimension."
        )
    if tensor.nbytes != count * config.datatype.size:
        raise InvalidArgumentError(
            f"{prefix}input byte size mismatch for input '{tensor.name}' for model '{model}'. Expected "
            f"{count * config.datatype.size}, got {tensor.nbytes}"
        )
    values = tensor.array
    if values[0] != rows:
        raise InvalidArgumentError(
            f"{prefix}shape tensor '{tensor.name}' for model '{model}' must begin with the batch size {rows}, got "
            f"{values[0]}"
        )
    return Tensor(tensor.name, tensor.datatype, config.dims, array=values[1:])
