"""What the implicit states of a model begin with, read and checked at load
(docs/reference/sequences.md#implicit-state).

Rules:
 1. Without ``initial_state`` a state begins as zeros (empty strings) of its declared size, where a variable dimension
    is 1. Triton leaves such memory as it is; nothing of it is worth keeping, and it could be other clients' data.
 2. ``zero_data`` is the same with the dimensions that ``initial_state`` gives, whatever the value of the flag.
 3. ``data_file`` is a file in the folder ``initial_state`` of the model, of which the first bytes count, as many as the
    tensor has. Of strings, in the wire form, the whole file.
 4. A file of strings that does not hold what the state needs is logged, and every request that starts a sequence is
    refused. The model is loaded all the same, as in Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...config.files import STATE_FOLDER, path_within, read_bytes
from ...config.model import Dims
from ...config.sequence import ImplicitState, InitialState
from ...datatypes import BYTES
from ...errors import InvalidArgumentError
from ...tensor import Tensor, count_elements
from ...tensor_limits import bounded_product
from .state import StateLayout, zeros

logger = logging.getLogger("trireme.sequence")


def state_layout(
    states: tuple[ImplicitState, ...], batching: bool, model_directory: Path, on_gpu: bool = False
) -> StateLayout | None:
    """The states of a model; None if it has none. Reads files: not for the event loop.

    Args:
        batching: whether the model's tensors have a batch dimension.
        model_directory: the folder of the model, above its versions.
        on_gpu: whether all instances are KIND_GPU.

    Raises:
        InvalidArgumentError: a state, or its file, is not as it should be.
        InternalError: a file cannot be read.
    """
    if not states:
        return None
    initial: dict[str, Tensor] = {}
    for state in states:
        if state.input_name in initial:
            raise InvalidArgumentError(f"State input name '{state.input_name}' specified more than once.")
        initial[state.input_name] = _initial(state, batching, model_directory)
        _log_growable(state, on_gpu)
    unusable = next(_unusable(states, initial), "")
    return StateLayout(states, initial, unusable)


def _unusable(states: tuple[ImplicitState, ...], initial: Mapping[str, Tensor]) -> Iterator[str]:
    """What is wrong with initial states of strings, each logged (rule 4)."""
    for state in states:
        tensor = initial[state.input_name]
        if tensor.datatype is BYTES and not tensor.has_array and (fault := _fault(tensor)):
            logger.error("initial_state file '%s': %s", state.initial[0].data_file, fault)
            yield fault


def _fault(tensor: Tensor) -> str:
    """The error text for such a tensor, as Triton's; empty if nothing is wrong."""
    name, expected = tensor.name, tensor.element_count
    count, missing = count_elements(tensor.buffer, expected + 1)
    if count > expected:
        return f"unexpected number of string elements {count} for inference input '{name}', expecting {expected}"
    if missing is not None:
        what = "length indicator" if missing.needed is None else "data"
        needed = "4 bytes" if missing.needed is None else f"string of length {missing.needed}"
        return (
            f"incomplete string {what} for inference input '{name}', expecting {needed} but only {missing.available} "
            "bytes available"
        )
    return "" if count == expected else f"expected {expected} strings for inference input '{name}', got {count}"


def _log_growable(state: ImplicitState, on_gpu: bool) -> None:
    """What Triton finds wrong with growable memory when a sequence starts. Here every state can grow, so it serves."""
    if state.growable and not state.same_buffer:
        logger.error(
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name '%s'.",
            state.input_name,
        )
    elif state.growable and not on_gpu:
        logger.error(
            "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the "
            "instance type to KIND_GPU or set 'use_growable_memory' to false for state input '%s'.",
            state.input_name,
        )


def _initial(state: ImplicitState, batching: bool, model_directory: Path) -> Tensor:
    name = state.input_name
    given = state.initial
    if len(given) > 1:
        raise InvalidArgumentError(
            f"initial_state field for state input '{name}' must contain exactly one or zero element. Found "
            f"'{len(given)}' elements."
        )
    batch = (1,) if batching else ()
    if not given:
        return zeros(name, state.datatype, (*batch, *(1 if dim == -1 else dim for dim in state.dims)))
    dims = _checked_dims(state, given[0])
    if given[0].data_file is None:
        return zeros(name, state.datatype, (*batch, *dims))
    return _from_file(state, (*batch, *dims), given[0].data_file, model_directory)


def _checked_dims(state: ImplicitState, initial: InitialState) -> Dims:
    name = state.input_name
    if initial.datatype is not state.datatype:
        raise InvalidArgumentError(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        )
    if not initial.name:
        raise InvalidArgumentError(f"Field 'name' must be set when using initial_state for state input '{name}'.")
    if len(initial.dims) != len(state.dims):
        raise InvalidArgumentError(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'. {len(initial.dims)} != {len(state.dims)}"
        )
    for given, declared in zip(initial.dims, state.dims, strict=True):
        if given == -1:
            raise InvalidArgumentError(
                f"'initial_state' field for state input name '{name}' contains variable dimensions."
            )
        if declared not in (-1, given):
            raise InvalidArgumentError(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
                f"{given} != {declared}"
            )
    if initial.data_file == "":
        raise InvalidArgumentError(f"initial_state setting expects state'{name}' to have state_data set")
    return initial.dims


def _from_file(state: ImplicitState, shape: Dims, file: str, model_directory: Path) -> Tensor:
    path = path_within(model_directory, STATE_FOLDER, file)
    if path is None:
        raise InvalidArgumentError(
            f"initial_state file '{file}' of state '{state.input_name}' is outside the model's directory"
        )
    data = read_bytes(path)
    if state.datatype is not BYTES:
        expected = bounded_product(shape) * state.datatype.size
        if len(data) < expected:
            raise InvalidArgumentError(
                f"initial_state setting expects {expected} bytes, but the data provided from {file}only has "  # sic
                f"{len(data)} bytes."
            )
        data = data[:expected]
    return Tensor(state.input_name, state.datatype, shape, data)
