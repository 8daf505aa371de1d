"""The ``outputs`` of an infer request: which ones the client wants, and in which form (http.md §4.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...engine.errors import InvalidArgumentError
from . import json_reader
from .json_access import converted, members_of, read_member, refuse_shared_memory

_UINT32_MASK = 2**32 - 1


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How an output is to be returned.

    Attributes:
        binary: as bytes behind the JSON text, else as JSON.
        class_count: how many top classes to return in place of the tensor; 0 for the tensor itself.
    """

    binary: bool = False
    class_count: int = 0


AS_JSON = OutputForm()
AS_BINARY = OutputForm(binary=True)


def read_outputs(outputs: list[Any]) -> dict[str, OutputForm]:
    """The forms of the outputs asked for, by name; of an output listed twice, the first.

    Args:
        outputs: the JSON member ``outputs``.

    Raises:
        InternalError: a member is missing or has the wrong type.
        InvalidArgumentError: shared memory together with another form.
        NotFoundError: an output is to go to shared memory.
    """
    forms: dict[str, OutputForm] = {}
    for value in outputs:
        name = read_member(json_reader.as_string, value, "name")
        form = _read_form(members_of(value.get("parameters")))
        forms.setdefault(name, form)
    return forms


def _read_form(parameters: dict[str, Any]) -> OutputForm:
    if not parameters:
        return AS_JSON
    if "shared_memory_region" in parameters:
        _refuse_other_forms(parameters)
    class_count = 0
    if "classification" in parameters:
        # Triton keeps 32 bits of the count.
        class_count = _UINT32_MASK & converted(
            json_reader.as_unsigned, parameters["classification"], "classification", "set"
        )
    refuse_shared_memory(parameters)
    binary = False
    if "binary_data" in parameters:
        binary = converted(json_reader.as_bool, parameters["binary_data"], "binary_data")
    if class_count:
        return OutputForm(binary, class_count)
    return AS_BINARY if binary else AS_JSON


def _refuse_other_forms(parameters: dict[str, Any]) -> None:
    """An output in shared memory has no other form."""
    if "classification" in parameters:
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'classification'")
    if "binary_data" in parameters and converted(json_reader.as_bool, parameters["binary_data"], "binary_data", "set"):
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'binary_data'")
