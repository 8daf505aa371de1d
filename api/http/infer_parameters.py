"""Request parameters: those that mean something to the server, and those that are handed to the model.

Rules: docs/reference/http-inference.md#request-parameters for the JSON member ``parameters``,
docs/reference/http-inference.md#header-forwarding for headers that become parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine.errors import InternalError, InvalidArgumentError
from ...engine.request import InferenceRequest, ParameterValue
from ..request_parameters import RESERVED_PREFIX, HeaderPattern, check_forwarded_name
from . import json_reader
from .asgi import Headers
from .json_access import converted

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)


def read_parameters(value: Any, request: InferenceRequest) -> bool:
    """Put the parameters of a request into `request`.

    Args:
        value: the JSON member ``parameters``.

    Returns:
        ``binary_data_output``: whether outputs that the client does not list are to be binary.

    Raises:
        InternalError: not an object, or a value of the wrong type for a name that the server knows.
        InvalidArgumentError: a reserved name, or a value that cannot be handed to a model.
    """
    if type(value) is not dict:
        raise InternalError("failed to get request params.: attempt to get members for non-object")
    binary_output = False
    for name, given in value.items():
        if name == "binary_data_output":
            binary_output = converted(json_reader.as_bool, given, name)
        elif name == "sequence_id":
            request.correlation_id = _correlation_id(given)
        elif name == "sequence_start":
            request.sequence_start = converted(json_reader.as_bool, given, name)
        elif name == "sequence_end":
            request.sequence_end = converted(json_reader.as_bool, given, name)
        elif name == "priority":
            request.priority = converted(json_reader.as_unsigned, given, name)
        elif name == "timeout":
            request.timeout_us = converted(json_reader.as_unsigned, given, name)
        elif name.startswith(RESERVED_PREFIX):
            raise InvalidArgumentError(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        else:
            request.parameters[name] = custom_parameter(name, given)
    return binary_output


def forward_headers(
    names: Sequence[bytes] | None, headers: Headers, pattern: HeaderPattern, request: InferenceRequest
) -> None:
    """Make parameters of the headers whose name `pattern` is found in, under the names that the client gave them.

    Args:
        names: as received, in the order of `headers`; None if the names there are.

    Raises:
        InvalidArgumentError: such a header has a name that means something to the server.
    """
    received = names or [name for name, _ in headers]
    for raw_name, (_, raw_value) in zip(received, headers, strict=True):
        name = raw_name.decode("utf-8", "surrogateescape")
        if not pattern.matches(name):
            continue
        check_forwarded_name(name)
        request.parameters[name] = raw_value.decode("utf-8", "surrogateescape")


def _correlation_id(value: Any) -> int | str:
    if type(value) is int and value in _UINT64:
        return value
    return converted(json_reader.as_string, value, "sequence_id")


def custom_parameter(name: str, value: Any) -> ParameterValue:
    """The value of a parameter that is handed to the model; an integer beyond 64 bits becomes a double.

    Raises:
        InvalidArgumentError: parameters cannot have such a value.
    """
    kind = type(value)
    if kind is int:
        return value if value in _INT64 else float(value)
    if kind is str or kind is bool or kind is float:
        return value
    raise InvalidArgumentError(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")
