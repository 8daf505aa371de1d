"""The typed view of ``sequence_batching`` (docs/reference/sequences.md)."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..datatypes import BOOL, BY_NUMBER, FP32, INT32, DataType
from .model import Dims, ModelConfig, enum_name, mirrored
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
    oldest = message.HasField("oldest")
    return SequenceBatching(
        strategy=mirrored(OldestStrategy, message.oldest) if oldest else mirrored(DirectStrategy, message.direct),
        max_sequence_idle_us=message.max_sequence_idle_microseconds or DEFAULT_SEQUENCE_IDLE_US,
        controls=tuple(
            _control(tensor.name, control) for tensor in message.control_input for control in tensor.control
        ),
        states=tuple(
            mirrored(ImplicitState, state, initial=tuple(map(_initial_state, state.initial_state)))
            for state in message.state
        ),
        iterative=message.iterative_sequence,
    )


def _control(name: str, control: Any) -> SequenceControl:
    kind = ControlKind(control.kind)
    if kind is ControlKind.CORRID:
        return SequenceControl(name, kind, BY_NUMBER[control.data_type])
    for field, datatype in _VALUE_LISTS.items():
        if values := getattr(control, field):
            return SequenceControl(name, kind, datatype, values[0], values[1])
    raise AssertionError(f"validation lets no control '{name}' without values pass")


def _initial_state(initial: Any) -> InitialState:
    zeros = initial.WhichOneof("state_data") == "zero_data"
    return mirrored(InitialState, initial, data_file=None if zeros else initial.data_file)


# -- Checks of ``sequence_batching`` (docs/reference/model-configuration.md#settings)


_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")

MAX_SLOTS = 65_536
"""Of an instance: sequences that it may have at a time. All of them are made, free, when the instance is."""

_VALUE_LISTS = {"int32_false_true": INT32, "fp32_false_true": FP32, "bool_false_true": BOOL}
_ALL_LISTS = "'int32_false_true', 'fp32_false_true' {} 'bool_false_true'"


def sequence_problems(message: Any) -> Iterator[str]:
    """What is wrong with the controls, then with the strategy, in order."""
    if message.response_cache.enable:
        yield (
            f"Response Cache does not currently support model {message.name} with sequence batching scheduler. "
            "Please disable the response cache."
        )
    yield from _control_problems(message.name, message.sequence_batching)
    yield from _strategy_problems(message)


def _control_problems(model: str, batching: Any) -> Iterator[str]:
    seen: set[str] = set()
    for name in (tensor.name for tensor in batching.control_input):
        if not name:
            yield f"sequence batching control tensor must have a name for {model}"
        if name in seen:
            yield f"sequence batching control tensor '{name}' is specified for multiple control kinds for {model}"
        seen.add(name)
    controls = [control for tensor in batching.control_input for control in tensor.control]
    for kind in (ControlKind.START, ControlKind.END, ControlKind.READY, ControlKind.CORRID):
        who = f"CONTROL_SEQUENCE_{kind.name}"
        for index, control in enumerate(control for control in controls if control.kind == kind.value):
            if index > 0:
                yield f"sequence batching specifies multiple {who} tensors for {model}"
            if kind is ControlKind.CORRID:
                yield from _correlation_problems(model, control, who)
            else:
                yield from _boolean_problems(control, f"{who} for {model}")


def _boolean_problems(control: Any, who: str) -> Iterator[str]:
    given = [name for name in _VALUE_LISTS if getattr(control, name)]
    if not given:
        yield f"sequence batching must specify either {_ALL_LISTS.format('or')} for {who}"
    elif len(given) > 1:
        yield f"sequence batching specifies more than one from {_ALL_LISTS.format('and')} for {who}"
    elif len(getattr(control, given[0])) != 2:
        yield f"sequence batching control '{given[0]}' must have exactly 2 entries for {who}"


def _correlation_problems(model: str, control: Any, who: str) -> Iterator[str]:
    if any(getattr(control, name) for name in _VALUE_LISTS):
        yield f"sequence batching must not specify either {_ALL_LISTS.format('or')} for {who} for {model}"
    if enum_name(control, "data_type") not in _CORRELATION_TYPES:
        allowed = f"{', '.join(_CORRELATION_TYPES[:-1])} and {_CORRELATION_TYPES[-1]}"
        yield f"unexpected data type for control {who} for {model}. Allowed data types are {allowed}"


def _strategy_problems(message: Any) -> Iterator[str]:
    batching, model = message.sequence_batching, message.name
    candidates = batching.oldest.max_candidate_sequences
    slots = candidates if candidates > 0 else message.max_batch_size
    if slots > MAX_SLOTS:
        yield (
            f"sequence batching of model {model} asks for {slots} sequences at a time on each instance, more than the "
            f"{MAX_SLOTS} that there can be"
        )
    for size in batching.oldest.preferred_batch_size:
        if size <= 0:
            yield f"sequence batching preferred batch size must be positive for {model}"
        if size > message.max_batch_size:
            yield f"sequence batching preferred batch size must be <= max batch size for {model}"
    utilization = batching.direct.minimum_slot_utilization
    if utilization < 0.0 or utilization > 1.0:
        yield f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {model}"
