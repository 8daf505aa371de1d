"""The typed view of ``sequence_batching`` (docs/reference/sequences.md)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from ..datatypes import BOOL, BY_NUMBER, FP32, INT32, DataType
from ..errors import InvalidArgumentError
from .build import mirrored
from .model import UNSPECIFIED, Dims, ModelConfig
from .platforms import DEFAULT_SEQUENCE_IDLE_US


class ControlKind(enum.Enum):
    """What a control input tells the model. The values are the proto's."""

    START = 0
    READY = 1
    END = 2
    CORRID = 3


@dataclass(frozen=True, slots=True)
class SequenceControl:
    """An input that the server fills in. `false` and `true` are its values; CORRID, which holds the id, has neither."""

    name: str
    kind: ControlKind
    datatype: DataType
    false: float = 0
    true: float = 0


@dataclass(frozen=True, slots=True)
class InitialState:
    """`data_file` names a file in the model's ``initial_state`` folder; None for zeros, "" if neither was asked for."""

    name: str
    datatype: DataType
    dims: Dims
    data_file: str | None


@dataclass(frozen=True, slots=True)
class ImplicitState:
    """An output of one request of a sequence that is an input of the next. `dims` are without the batch dimension."""

    input_name: str
    output_name: str
    datatype: DataType
    dims: Dims
    initial: tuple[InitialState, ...] = ()
    same_buffer: bool = False
    growable: bool = False


@dataclass(frozen=True, slots=True)
class DirectStrategy:
    """A sequence keeps one row of its instance's batches."""

    max_queue_delay_us: int = 0
    minimum_slot_utilization: float = 0.0


@dataclass(frozen=True, slots=True)
class OldestStrategy:
    """Requests of candidate sequences are batched as they come, one a sequence. 0 candidates: as many as rows."""

    max_candidate_sequences: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """``sequence_batching``, normalised. No strategy at all is the direct one."""

    strategy: DirectStrategy | OldestStrategy = DirectStrategy()
    max_sequence_idle_us: int = DEFAULT_SEQUENCE_IDLE_US
    controls: tuple[SequenceControl, ...] = ()
    states: tuple[ImplicitState, ...] = ()
    iterative: bool = False


def sequence_batching(config: ModelConfig) -> SequenceBatching | None:
    """What a (complete, valid) configuration says about sequences; None if nothing."""
    if not config.has_sequence_batching:
        return None
    message = config.message.sequence_batching
    return SequenceBatching(
        strategy=_strategy(message),
        max_sequence_idle_us=message.max_sequence_idle_microseconds or DEFAULT_SEQUENCE_IDLE_US,
        controls=tuple(
            _control(tensor.name, control) for tensor in message.control_input for control in tensor.control
        ),
        states=tuple(_state(state) for state in message.state),
        iterative=message.iterative_sequence,
    )


def _strategy(message: Any) -> DirectStrategy | OldestStrategy:
    if message.HasField("oldest"):
        sizes = tuple(message.oldest.preferred_batch_size)
        delay_us = message.oldest.max_queue_delay_microseconds
        return mirrored(OldestStrategy, message.oldest, preferred_batch_sizes=sizes, max_queue_delay_us=delay_us)
    return mirrored(DirectStrategy, message.direct, max_queue_delay_us=message.direct.max_queue_delay_microseconds)


def _control(name: str, control: Any) -> SequenceControl:
    kind = ControlKind(control.kind)
    if kind is ControlKind.CORRID:
        return SequenceControl(name, kind, BY_NUMBER[control.data_type])
    for values, datatype in (
        (control.int32_false_true, INT32),
        (control.fp32_false_true, FP32),
        (control.bool_false_true, BOOL),
    ):
        if values:
            return SequenceControl(name, kind, datatype, values[0], values[1])
    raise AssertionError(f"validation lets no control '{name}' without values pass")


def _state(state: Any) -> ImplicitState:
    return mirrored(
        ImplicitState,
        state,
        datatype=BY_NUMBER.get(state.data_type, UNSPECIFIED),
        initial=tuple(_initial_state(initial) for initial in state.initial_state),
        same_buffer=state.use_same_buffer_for_input_output,
        growable=state.use_growable_memory,
    )


def _initial_state(initial: Any) -> InitialState:
    data_file = None if initial.WhichOneof("state_data") == "zero_data" else initial.data_file
    datatype = BY_NUMBER.get(initial.data_type, UNSPECIFIED)
    return mirrored(InitialState, initial, datatype=datatype, data_file=data_file)


# -- Checks of ``sequence_batching`` (docs/reference/model-configuration.md#settings)


BOOLEAN_CONTROLS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY")
CORRELATION_CONTROL = "CONTROL_SEQUENCE_CORRID"
CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")

MAX_SLOTS = 65_536
"""Of an instance: sequences that it may have at a time. All of them are made, free, when the instance is."""

_VALUE_LISTS = ("int32_false_true", "fp32_false_true", "bool_false_true")
_ALL_LISTS = "'int32_false_true', 'fp32_false_true' {} 'bool_false_true'"


def validate_sequence_batching(message: Any) -> None:
    """Check the controls, then the strategy.

    Raises:
        InvalidArgumentError: the first thing that is wrong.
    """
    batching = message.sequence_batching
    if message.response_cache.enable:
        raise InvalidArgumentError(
            f"Response Cache does not currently support model {message.name} with sequence batching scheduler. "
            "Please disable the response cache."
        )
    _validate_control_names(message.name, batching)
    for kind in (*BOOLEAN_CONTROLS, CORRELATION_CONTROL):
        controls = [
            control
            for tensor in batching.control_input
            for control in tensor.control
            if control.kind == control.Kind.Value(kind)
        ]
        for index, control in enumerate(controls):
            if index > 0:
                raise InvalidArgumentError(f"sequence batching specifies multiple {kind} tensors for {message.name}")
            if kind == CORRELATION_CONTROL:
                _validate_correlation_control(message.name, control)
            else:
                _validate_boolean_control(message.name, control, kind)
    _validate_strategy(message)


def _validate_control_names(model: str, batching: Any) -> None:
    seen: set[str] = set()
    for tensor in batching.control_input:
        if not tensor.name:
            raise InvalidArgumentError(f"sequence batching control tensor must have a name for {model}")
        if tensor.name in seen:
            raise InvalidArgumentError(
                f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for {model}"
            )
        seen.add(tensor.name)


def _validate_boolean_control(model: str, control: Any, kind: str) -> None:
    given = [name for name in _VALUE_LISTS if len(getattr(control, name))]
    if not given:
        raise InvalidArgumentError(
            f"sequence batching must specify either {_ALL_LISTS.format('or')} for {kind} for {model}"
        )
    if len(given) > 1:
        raise InvalidArgumentError(
            f"sequence batching specifies more than one from {_ALL_LISTS.format('and')} for {kind} for {model}"
        )
    if len(getattr(control, given[0])) != 2:
        raise InvalidArgumentError(
            f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} for {model}"
        )


def _validate_correlation_control(model: str, control: Any) -> None:
    if any(len(getattr(control, name)) for name in _VALUE_LISTS):
        raise InvalidArgumentError(
            f"sequence batching must not specify either {_ALL_LISTS.format('or')} for {CORRELATION_CONTROL} for {model}"
        )
    types = control.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name
    if control.data_type not in [types[name].number for name in CORRELATION_TYPES]:
        raise InvalidArgumentError(
            f"unexpected data type for control {CORRELATION_CONTROL} for {model}. Allowed data types are "
            f"{', '.join(CORRELATION_TYPES[:-1])} and {CORRELATION_TYPES[-1]}"
        )


def _validate_strategy(message: Any) -> None:
    batching = message.sequence_batching
    candidates = batching.oldest.max_candidate_sequences
    slots = candidates if candidates > 0 else message.max_batch_size
    if slots > MAX_SLOTS:
        raise InvalidArgumentError(
            f"sequence batching of model {message.name} asks for {slots} sequences at a time on each instance, more "
            f"than the {MAX_SLOTS} that there can be"
        )
    for size in batching.oldest.preferred_batch_size:
        if size <= 0:
            raise InvalidArgumentError(f"sequence batching preferred batch size must be positive for {message.name}")
        if size > message.max_batch_size:
            raise InvalidArgumentError(
                f"sequence batching preferred batch size must be <= max batch size for {message.name}"
            )
    utilization = batching.direct.minimum_slot_utilization
    if utilization < 0.0 or utilization > 1.0:
        raise InvalidArgumentError(
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {message.name}"
        )
