"""Reading members of request objects, with errors that name the member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...engine.errors import InternalError
from ...engine.shared_memory import Regions, RegionSlice
from . import json_reader

T = TypeVar("T")


def converted(convert: Callable[[Any], T], value: Any, name: str, verb: str = "parse") -> T:
    """`value` as `convert` reads it.

    Raises:
        InternalError: it cannot; the text starts with ``Unable to <verb> '<name>': ``.
    """
    try:
        return convert(value)
    except InternalError as error:
        raise InternalError(f"Unable to {verb} '{name}': {error.message}") from None


def read_member(convert: Callable[[Any], T], value: Any, name: str) -> T:
    """The member `name` of the object `value` as `convert` reads it.

    Raises:
        InternalError: there is none, or it has another type; the text starts with ``Unable to parse '<name>': ``.
    """
    try:
        return convert(json_reader.member(value, name))
    except InternalError as error:
        raise InternalError(f"Unable to parse '{name}': {error.message}") from None


def members_of(value: Any) -> dict[str, Any]:
    """The members of `value`; none, if it is no object: looking for a member that may be absent never fails."""
    return value if type(value) is dict else {}


def find_slice(parameters: dict[str, Any], regions: Regions) -> RegionSlice | None:
    """Where in shared memory a tensor is to be, by its parameters; None if they name no region
    (docs/reference/shared-memory.md#tensors-in-regions).

    Raises:
        InternalError: one of them has the wrong type, with or without a region.
        NotFoundError: there is no such region.
        InvalidArgumentError: the region has no such part.
    """
    region = None
    if "shared_memory_region" in parameters:
        region = read_member(json_reader.as_string, parameters, "shared_memory_region")
    place = {"shared_memory_offset": 0, "shared_memory_byte_size": 0}
    for name in place:
        if name in parameters:
            place[name] = read_member(json_reader.as_unsigned, parameters, name)
    return None if region is None else regions.slice(region, *place.values())
