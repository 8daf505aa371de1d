"""The ``outputs`` of an infer request: which ones the client wants, and in which form
(docs/reference/http-inference.md#outputs)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...engine.errors import InvalidArgumentError
from ...engine.shared_memory import Regions, RegionSlice
from . import json_reader
from .json_access import converted, find_slice, members_of, read_member

_UINT32_MASK = 2**32 - 1


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How an output is to be returned.

    Attributes:
        binary: as bytes behind the JSON text, else as JSON.
        class_count: how many top classes to return in place of the tensor; 0 for the tensor itself.
        place: where in shared memory to put it, instead of into the answer.
    """

    binary: bool = False
    class_count: int = 0
    place: RegionSlice | None = None


AS_JSON = OutputForm()
AS_BINARY = OutputForm(binary=True)


def read_outputs(outputs: list[Any], regions: Regions) -> dict[str, OutputForm]:
    """The forms of the outputs asked for, by name; of an output listed twice, the first.

    Args:
        outputs: the JSON member ``outputs``.
        regions: shared memory.

    Raises:
        InternalError: a member is missing or has the wrong type.
        InvalidArgumentError: shared memory together with another form, or a region has no such part.
        NotFoundError: an output is to go to a region that is not registered.
    """
    forms: dict[str, OutputForm] = {}
    for value in outputs:
        name = read_member(json_reader.as_string, value, "name")
        form = _read_form(members_of(value.get("parameters")), regions)
        forms.setdefault(name, form)
    return forms


def _read_form(parameters: dict[str, Any], regions: Regions) -> OutputForm:
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
    place = find_slice(parameters, regions)
    if place is not None:
        return OutputForm(place=place)
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
