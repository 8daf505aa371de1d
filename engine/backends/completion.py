"""What a model's signature adds to an incomplete configuration
(docs/reference/model-configuration.md#completion-by-backends)."""

from __future__ import annotations

import logging
from typing import Any

from ..config.model import ModelConfig, ModelInput, ModelOutput
from ..config.sequence import SequenceBatching, sequence_batching
from ..errors import InvalidArgumentError
from .interface import Completion
from .signature import GraphTensor, Signature

_log = logging.getLogger(__name__)


def needs_completion(config: ModelConfig) -> bool:
    """Whether a configuration leaves inputs or outputs open; says so in the log if not."""
    if (config.input or config.batch_input) and config.output:
        _log.info(
            "skipping model configuration auto-complete for '%s': inputs and outputs already specified", config.name
        )
        return False
    return True


def complete(config: ModelConfig, signature: Signature, default_max_batch_size: int) -> Completion:
    """Fill in what is open: inputs, outputs, the batch size, and with it a dynamic batcher.

    Args:
        default_max_batch_size: for models that can batch, and whose configuration does not say how much.

    Raises:
        InvalidArgumentError: the configuration wants batches, and the model cannot.
    """
    max_batch_size = _max_batch_size(config, signature, default_max_batch_size)
    of_server = _server_tensors(config)
    inputs: tuple[ModelInput, ...] = ()
    outputs: tuple[ModelOutput, ...] = ()
    if not (config.input or config.batch_input):
        inputs = tuple(
            ModelInput(**_completed(tensor, "input", config.name, max_batch_size))
            for tensor in signature.inputs.values()
            if tensor.name not in of_server
        )
    if not config.output:
        outputs = tuple(
            ModelOutput(**_completed(tensor, "output", config.name, max_batch_size))
            for tensor in signature.outputs.values()
            if tensor.name not in of_server
        )
    return Completion(max_batch_size, inputs, outputs, dynamic_batching=max_batch_size > 1)


def _max_batch_size(config: ModelConfig, signature: Signature, default_max_batch_size: int) -> int:
    tensors = (*signature.inputs.values(), *signature.outputs.values())
    if any(tensor.dims[:1] != (-1,) for tensor in tensors):
        if config.max_batch_size != 0:
            raise InvalidArgumentError(
                f"autofill failed for model '{config.name}': model does not support batching while non-zero "
                "max_batch_size is specified"
            )
        return 0
    if config.max_batch_size != 0:
        return config.max_batch_size
    _log.warning(
        "autofilled max_batch_size to %d for model '%s' since batching is supporrted but no max_batch_size is "
        "specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch "
        "size",
        default_max_batch_size,
        config.name,
    )
    return default_max_batch_size


def _server_tensors(config: ModelConfig) -> frozenset[str]:
    """Names of tensors that are between the server and the model: clients neither send nor get them."""
    sequences = sequence_batching(config) or SequenceBatching()
    states = [name for state in sequences.states for name in (state.input_name, state.output_name)]
    return frozenset([*states, *(control.name for control in sequences.controls)])


def _completed(tensor: GraphTensor, role: str, model_name: str, max_batch_size: int) -> dict[str, Any]:
    """Fields of a `ModelInput` or `ModelOutput` for a tensor of the graph."""
    dims = tensor.dims[1:] if max_batch_size > 0 else tensor.dims
    fields: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype(role, model_name), "dims": dims or (1,)}
    if not dims and max_batch_size > 0:
        fields["reshape"] = ()
    return fields
