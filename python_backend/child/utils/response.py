"""`InferenceResponse`: outputs, or an error (docs/reference/python-backend.md#responses-and-errors)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Union

from .errors import ErrorCode, TritonError, TritonModelException
from .tensor import Tensor

Parameter = Union[bool, int, str]

MOST_PARAMETERS = 1024


class InferenceResponse:
    """An answer.

    Args:
        output_tensors: none of them None; of no meaning beside an error.
        error: what went wrong; the client gets its text and code.
        parameters: for the client; bool, int and str.

    Raises:
        TritonModelException: a None output, or parameters of other kinds.
    """

    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        outputs = list(output_tensors)
        for output in outputs:
            if output is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
            if not isinstance(output, Tensor):
                raise TypeError(f"InferenceResponse: outputs must be Tensor objects, found {type(output)}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse: error must be a TritonError, found {type(error)}")
        self._outputs = outputs
        self._error = error
        self._parameters = {} if parameters is None else checked(parameters)

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        return as_json(self._parameters)

    def _only(self, names: Collection[str]) -> InferenceResponse:
        """This response without the outputs that were not requested; itself if that is all of it."""
        outputs = [output for output in self._outputs if output._name in names]
        if len(outputs) == len(self._outputs):
            return self
        pruned = InferenceResponse.__new__(InferenceResponse)
        pruned._outputs, pruned._error, pruned._parameters = outputs, self._error, self._parameters
        return pruned

    def __repr__(self) -> str:
        return f"<InferenceResponse {self._error or self._outputs}>"


def error_response(message: str, code: int = ErrorCode.INTERNAL) -> InferenceResponse:
    return InferenceResponse(error=TritonError(message, code))


def as_json(parameters: Mapping[str, Parameter]) -> str:
    return json.dumps(parameters)


def checked(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """A copy of what user code gave as parameters.

    Raises:
        TritonModelException: it is no dictionary of str to bool, int or str.
    """
    if not isinstance(parameters, Mapping):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    if len(parameters) > MOST_PARAMETERS:
        raise TritonModelException(f"Expect at most {MOST_PARAMETERS} parameters, found {len(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return dict(parameters)
