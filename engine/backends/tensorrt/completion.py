"""What an engine adds to an incomplete configuration (docs/reference/model-configuration.md#completion-by-backends)."""

from __future__ import annotations

import logging
from typing import Any

from ...config.model import Dims, ModelConfig, ModelInput, ModelOutput
from ...errors import InternalError
from ..interface import Completion
from ..signature import GraphTensor
from .signature import EngineTensors

_log = logging.getLogger(__name__)


def complete_from_engine(config: ModelConfig, tensors: EngineTensors) -> Completion:
    """The largest batch that the profiles allow, inputs and outputs where none are given, and a dynamic batcher.

    Whether the first dimension is the batch is seen from the ranks of those inputs and outputs that are given. Where
    none are, it is.

    Raises:
        InternalError: the configuration wants larger batches, or contradicts itself or the engine.
    """
    largest = _largest_batch(config, tensors)
    batches = _wants_batches(config, tensors)
    if batches and largest == 0:
        raise InternalError(
            f"autofill failed for model '{config.name}': model tensor shape configuration hints for dynamic batching "
            "but the underlying engine doesn't support batching."
        )
    if batches is False:
        _log.warning("The specified dimensions in model config for %s hints that batching is unavailable", config.name)
        largest = 0
    if config.max_batch_size > largest:
        raise InternalError(
            f"autofill failed for model '{config.name}': configuration specified max-batch {config.max_batch_size} but "
            f"TensorRT engine only supports max-batch {largest}"
        )
    max_batch_size = config.max_batch_size or largest
    generated = frozenset(name for spec in config.batch_input for name in spec.target_names)
    inputs: tuple[ModelInput, ...] = ()
    outputs: tuple[ModelOutput, ...] = ()
    if not config.input:
        inputs = tuple(
            ModelInput(**_completed(tensor, "input", config.name, tensors, max_batch_size))
            for tensor in tensors.signature.inputs.values()
            if tensor.name not in generated
        )
    if not config.output:
        outputs = tuple(
            ModelOutput(**_completed(tensor, "output", config.name, tensors, max_batch_size))
            for tensor in tensors.signature.outputs.values()
        )
    return Completion(max_batch_size, inputs, outputs, dynamic_batching=largest > 1)


def _largest_batch(config: ModelConfig, tensors: EngineTensors) -> int:
    """The largest batch of the profiles in use: what all inputs of one allow. 0 if an input has no dimension for it."""
    names = {name for group in config.instance_group for name in group.profile} or {"0"}
    most = 0
    for name in sorted(names):
        index = int(name)
        if index >= len(tensors.shapes):
            raise InternalError(
                f"unable to autofill for '{config.name}', configuration specified invalid profile {name} . Number of "
                f"profiles supported by TensorRT engine: {len(tensors.shapes)}"
            )
        values = tensors.values[index]
        first = [
            (values[tensor].maximum if tensor in values else shape.maximum)[:1]
            for tensor, shape in tensors.shapes[index].items()
        ]
        most = max(most, min((dims[0] if dims else 0 for dims in first), default=0))
    return most


def _wants_batches(config: ModelConfig, tensors: EngineTensors) -> bool | None:
    """Whether what the configuration gives of inputs and outputs has a dimension less than the engine; None if it gives
    nothing."""
    if any(tensor.allow_ragged_batch for tensor in config.input):
        return True
    known = {**tensors.signature.inputs, **tensors.signature.outputs}
    hints: list[bool] = []
    for tensor in (*config.input, *config.output):
        if tensor.name not in known:
            continue  # the checks say so later
        mine = known[tensor.name].dims
        dims = tensor.dims if tensor.reshape is None else tensor.reshape
        if tensor.name in tensors.shape_tensors:
            hints.append(mine[:1] == (dims[0] + 1,) if dims else False)
        elif tensor.dims:
            hints.append(len(mine) == len(dims) + 1)
    if len(set(hints)) > 1:
        raise InternalError(
            f"unable to autofill for '{config.name}', model tensor configurations are contradicting each other in "
            "terms of whether batching is supported"
        )
    return hints[0] if hints else None


def _completed(
    tensor: GraphTensor, role: str, model: str, tensors: EngineTensors, max_batch_size: int
) -> dict[str, Any]:
    """Fields of a `ModelInput` or `ModelOutput` for a tensor of the engine."""
    fields: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype(role, model)}
    dims: Dims = tensor.dims
    if tensor.name in tensors.shape_tensors:
        fields["is_shape_tensor"] = True
        dims = tuple(dim - 1 for dim in dims) if max_batch_size > 0 else dims
        fields["dims"] = dims or (1,)
        return fields
    dims = dims[1:] if max_batch_size > 0 else dims
    fields["dims"] = dims or (1,)
    if not dims and max_batch_size > 0:
        fields["reshape"] = ()
    return fields
