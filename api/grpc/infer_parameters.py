"""Request parameters: those that mean something to the server, and those that are handed to the model
(docs/reference/grpc.md#request-parameters); and the version strings of requests (docs/reference/grpc.md#versions)."""

from __future__ import annotations

import re

from ...engine.errors import InvalidArgumentError
from ...engine.memory.regions import Regions, RegionSlice
from ...engine.request import LATEST, InferenceRequest
from ..request_parameters import RESERVED_PREFIX
from .infer_messages import ParameterChoice, Parameters, UnsignedInt

_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]+)")
_INT64_MAX = 2**63 - 1
_DIGITS = 19


def parse_version(text: str) -> int:
    """The version that a client asks for; `LATEST` if the text is empty. What follows the number is ignored.

    Raises:
        InvalidArgumentError: it is no number of 64 bits, or a negative one.
    """
    if not text:
        return LATEST
    number = _INTEGER.match(text)
    version = _INT64_MAX + 2
    if number is not None and len(number[2]) <= _DIGITS:
        version = int(number[1] + number[2])
    if not -_INT64_MAX - 1 <= version <= _INT64_MAX:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"  # sic: Triton
        )
    return version


EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"

_UINT64_MASK = 2**64 - 1
REGION = "shared_memory_region"
_OFFSET = "shared_memory_offset"
_BYTE_SIZE = "shared_memory_byte_size"


def read_parameters(parameters: Parameters, request: InferenceRequest) -> bool:
    """Put the parameters of a request into `request`. Like Triton, take 64 bits of a negative number as unsigned.

    Returns:
        Whether an empty final response is wanted.

    Raises:
        InvalidArgumentError: a value of a type that its name does not allow, or a reserved name.
    """
    empty_final_response = False
    for name, value in parameters.items():
        if name == "sequence_id":
            request.correlation_id = _correlation_id(value)
        elif name == "sequence_start":
            request.sequence_start = _flag(name, value)
        elif name == "sequence_end":
            request.sequence_end = _flag(name, value)
        elif name == "priority":
            request.priority = _priority(value)
        elif name == "timeout":
            if type(value) is not int:
                raise _bad_type(name, "int64_param.")
            request.timeout_us = value & _UINT64_MASK
        elif name == EMPTY_FINAL_RESPONSE:
            empty_final_response = _flag(name, value)
        elif name.startswith(RESERVED_PREFIX):
            raise InvalidArgumentError(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {EMPTY_FINAL_RESPONSE}"
            )
        elif value is None or type(value) is UnsignedInt:
            raise _bad_type(name, "int64_param, bool_param, or string_param.")
        else:
            request.parameters[name] = value
    return empty_final_response


def names_region(parameters: Parameters, tensor: str) -> bool:
    """Whether a tensor is to lie in shared memory, going by its parameters.

    Raises:
        InvalidArgumentError: they are incomplete or of the wrong type.
    """
    if REGION not in parameters:
        for name in (_OFFSET, _BYTE_SIZE):
            if name in parameters:
                raise InvalidArgumentError(
                    f"'{name}' can not be specified without '{REGION}' parameter for tensor '{tensor}'"
                )
        return False
    for name, kind, choice in ((REGION, str, "string_param"), (_OFFSET, int, "int64_param")):
        if name in parameters and type(parameters[name]) is not kind:
            raise _bad_type(name, f"{choice}.", f" for tensor '{tensor}'")
    if _BYTE_SIZE not in parameters:
        raise InvalidArgumentError(
            f"'{_BYTE_SIZE}' must be specified along with '{REGION}' parameter for tensor '{tensor}'"
        )
    if type(parameters[_BYTE_SIZE]) is not int:
        raise _bad_type(_BYTE_SIZE, "int64_param.", f" for tensor '{tensor}'")
    return True


def find_slice(parameters: Parameters, regions: Regions) -> RegionSlice:
    """Where in shared memory a tensor is to be, whose parameters name a region
    (docs/reference/shared-memory.md#tensors-in-regions).

    Raises:
        NotFoundError: there is no such region.
        InvalidArgumentError: the region has no such part.
    """
    region, offset, byte_size = parameters[REGION], parameters.get(_OFFSET, 0), parameters[_BYTE_SIZE]
    assert isinstance(region, str), "names_region has looked at the types"
    assert isinstance(offset, int)
    assert isinstance(byte_size, int)
    return regions.slice(region, offset & _UINT64_MASK, byte_size & _UINT64_MASK)


def read_class_count(parameters: Parameters) -> int | None:
    """How many top classes to return in place of an output; None for the output itself.

    Raises:
        InvalidArgumentError: not a positive ``int64_param``.
    """
    if "classification" not in parameters:
        return None
    count = parameters["classification"]
    if type(count) is not int:
        raise _bad_type("classification", "int64_param")
    if count <= 0:
        raise InvalidArgumentError("invalid value for 'classification' parameter, expected >= 0")  # sic: Triton
    return count & (2**32 - 1)  # all that Triton keeps of it


def _correlation_id(value: ParameterChoice) -> int | str:
    if type(value) is int:
        return value & _UINT64_MASK
    if type(value) is str:
        return value
    raise _bad_type("sequence_id", "int64_param or string_param.")


def _flag(name: str, value: ParameterChoice) -> bool:
    if type(value) is bool:
        return value
    raise _bad_type(name, "bool_param.")


def _priority(value: ParameterChoice) -> int:
    if type(value) is UnsignedInt:
        return int(value)
    if type(value) is not int:
        raise _bad_type("priority", "int64_param or uint64_param.")
    if value < 0:
        raise InvalidArgumentError("invalid value for 'priority', expected value >= 0.")
    return value


def _bad_type(name: str, expected: str, tensor: str = "") -> InvalidArgumentError:
    return InvalidArgumentError(f"invalid value type for '{name}' parameter{tensor}, expected {expected}")
