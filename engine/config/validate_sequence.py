"""Checks of ``sequence_batching`` (docs/reference/model-configuration.md#settings)."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgumentError

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
