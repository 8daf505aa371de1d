"""Warm-up samples: requests that every instance executes before its model is ready
(docs/reference/model-configuration.md#warm-up).

Rules:
 1. A sample of batch size N is N requests of one row each, executed as one batch; with N = 0 it is skipped. It runs
    `count` times, at least once.
 2. Its inputs are checked, and reshaped, as those of any request. Inputs that the configuration does not list are
    handed to the backend as they are: controls of sequences, for one.
 3. Controls and states that a sample leaves out are those of a sequence that starts.
 4. Random data are random bytes, of which all inputs of a sample have the first ones; they are the same at every load.
    Random strings are empty.
 5. On GPUs libraries search for the fastest way, or compile, for each batch size that they meet, which would delay
    requests. So an instance there executes batches of zeros of every size first (`settling_samples`). No client waits
    for these: one that fails is logged, and has no other effect. There are none where the configuration has samples of
    its own or says ``WARM_UP_BATCH_SIZES: false``, for sequences, and for inputs whose shapes it leaves open.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from ..backends.parameters import parse_bool
from ..config.files import WARMUP_FOLDER, path_within, read_bytes
from ..config.model import UNSPECIFIED, ModelConfig, ModelInput
from ..config.sequence import sequence_batching
from ..datatypes import BY_NUMBER, BYTES, DataType
from ..errors import InvalidArgumentError, request_prefix
from ..job import Job
from ..request import InferenceRequest
from ..scheduling.sequence.controls import Controls
from ..scheduling.sequence.state import StateLayout
from ..scheduling.sequence.strategies import NoReply
from ..tensor import Tensor
from ..tensor_limits import bounded_product
from ..validation import RequestValidator, batched_shape_tensors, with_batch_size

logger = logging.getLogger("trireme.warmup")

_PREFIX = request_prefix("")
_SEED = 0
_SETTLING = "WARM_UP_BATCH_SIZES"
_ALL_SIZES = 64


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One sample, ready to be executed.

    Attributes:
        requests: how many of them make a batch.
        inputs: of each request, by name, as the backend sees them.
    """

    name: str
    requests: int
    runs: int
    request: InferenceRequest
    inputs: Mapping[str, Tensor]
    states: StateLayout | None = None
    settling: bool = False

    def jobs(self, version: int) -> list[Job]:
        """The requests of one batch, to the version of the model that is warmed up."""
        jobs = [
            Job(self.request, self.inputs, 1, self.request.model_name, version, NoReply()) for _ in range(self.requests)
        ]
        for job in jobs:
            if self.states is not None:
                job.state = self.states.start()
                job.inputs = {**job.state.inputs, **self.inputs}
            job.nbytes = sum(tensor.nbytes for tensor in job.inputs.values())
        return jobs


def warmup_samples(
    config: ModelConfig, model_directory: Path, states: StateLayout | None = None
) -> tuple[WarmupSample, ...]:
    """The samples that a (complete, valid) configuration asks for. Reads files.

    Raises:
        InvalidArgumentError: a sample does not fit the model.
        InternalError: a file cannot be read.
    """
    if config.message is None:
        return ()
    wanted = [sample for sample in config.message.model_warmup if sample.batch_size]
    return tuple(_sample(sample, config, model_directory, states) for sample in wanted)


def settling_samples(config: ModelConfig, runs: int) -> tuple[WarmupSample, ...]:
    """Rule 5; the largest first, so that the others find memory.

    Args:
        config: complete and valid.

    Raises:
        InvalidArgumentError: the parameter ``WARM_UP_BATCH_SIZES`` is not boolean.
    """
    wanted = parse_bool(config.parameters.get(_SETTLING, "true"))
    on_gpu = any(group.kind == "KIND_GPU" for group in config.instance_group)
    has_samples = config.message is not None and bool(config.message.model_warmup)
    if not (wanted and on_gpu and runs) or config.has_sequence_batching or has_samples:
        return ()
    if any(each.allow_ragged_batch or each.is_shape_tensor for each in config.input):
        return ()
    if any(each.datatype is BYTES or -1 in each.dims for each in config.input):
        return ()
    batching = config.max_batch_size > 0
    given = [_zeros(tensor, batching) for tensor in config.input]
    request = InferenceRequest(config.name, inputs=given)
    inputs, _ = RequestValidator(config).check(request)
    return tuple(
        WarmupSample(f"batches of {size}", size, runs, request, inputs, settling=True)
        for size in _sizes(config.max_batch_size)
    )


def _zeros(tensor: ModelInput, batching: bool) -> Tensor:
    data = bytes(bounded_product(tensor.dims) * tensor.datatype.size)
    return Tensor(tensor.name, tensor.datatype, (1, *tensor.dims) if batching else tensor.dims, data)


def _sizes(most: int) -> list[int]:
    """Every size up to `_ALL_SIZES`; beyond, powers of two and the largest."""
    powers = [1 << power for power in range(_ALL_SIZES.bit_length(), most.bit_length())]
    return sorted({max(most, 1), *range(1, min(most, _ALL_SIZES) + 1), *powers}, reverse=True)


def _sample(sample: Any, config: ModelConfig, model_directory: Path, states: StateLayout | None) -> WarmupSample:
    logger.debug("Generating warmup sample data for '%s'", sample.name)
    given: list[Tensor] = []
    shape_tensors = batched_shape_tensors(config)
    for name in sorted(sample.inputs):
        _check_input(name, sample.inputs[name], config)
        tensor = _tensor(name, sample.inputs[name], config.max_batch_size > 0, model_directory)
        given.append(with_batch_size(tensor, 1) if name in shape_tensors else tensor)
    known = [tensor for tensor in given if config.find_input(tensor.name) is not None]
    others = {tensor.name: tensor for tensor in given if config.find_input(tensor.name) is None}
    request = InferenceRequest(config.name, inputs=known, sequence_start=config.has_sequence_batching)
    inputs, _ = RequestValidator(config).check(request)
    if (sequences := sequence_batching(config)) is not None:  # rule 3
        controls = Controls(sequences.controls, config.max_batch_size > 0)
        inputs = {**controls.inputs(0, start=True, end=False), **inputs}
    inputs.update(others)
    return WarmupSample(sample.name, sample.batch_size, max(1, sample.count), request, inputs, states)


def _check_input(name: str, given: Any, config: ModelConfig) -> None:
    if any(dim < 0 for dim in given.dims):
        raise InvalidArgumentError(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )
    if given.WhichOneof("input_data_type") is None:
        raise InvalidArgumentError(f"{_PREFIX}warmup setting expects input '{name}' to have input_data_type set")
    if given.data_type not in BY_NUMBER:
        declared = config.find_input(name)
        expected = "a data type" if declared is None else f"'{declared.datatype.name}'"
        raise InvalidArgumentError(
            f"{_PREFIX}inference input '{name}' data-type is '<invalid>', but model '{config.name}' expects {expected}"
        )


def _tensor(name: str, given: Any, batching: bool, model_directory: Path) -> Tensor:
    datatype = BY_NUMBER.get(given.data_type, UNSPECIFIED)
    dims = tuple(given.dims)
    count = bounded_product(dims)
    if given.WhichOneof("input_data_type") == "input_data_file":
        data = _file_data(model_directory, given.input_data_file, datatype, count)
    elif given.WhichOneof("input_data_type") == "random_data" and datatype is not BYTES:
        data = Random(_SEED).randbytes(count * datatype.size)
    else:
        data = bytes(count * (4 if datatype is BYTES else datatype.size))
    return Tensor(name, datatype, (1, *dims) if batching else dims, data)


def _file_data(model_directory: Path, name: str, datatype: DataType, count: int) -> bytes:
    """The file's beginning, as long as the tensor is; all of it for BYTES."""
    path = path_within(model_directory, WARMUP_FOLDER, name)
    if path is None:
        raise InvalidArgumentError(f"{_PREFIX}warmup file '{name}' is outside the model's directory")
    data = read_bytes(path)
    if datatype is BYTES:
        return data
    needed = count * datatype.size
    if len(data) < needed:
        raise InvalidArgumentError(
            f"{_PREFIX}warmup setting expects {needed} bytes, but the data provided from {name}only has {len(data)} "
            "bytes"
        )
    return data[:needed]
