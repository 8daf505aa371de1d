"""Sequence information on its way through an ensemble (docs/reference/ensembles.md#responses).

A step inherits correlation id and flags from the step that made its input, and a member may change them for whatever
follows by the parameters of its response. Every response of an ensemble tells them in parameters of the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidArgumentError
from ..request import InferenceRequest, ParameterValue

_ID, _START, _END = "sequence_id", "sequence_start", "sequence_end"


@dataclass(frozen=True, slots=True)
class SequenceInfo:
    """A correlation id, 0 or "" for none, and the flags."""

    correlation_id: int | str = 0
    start: bool = False
    end: bool = False

    @classmethod
    def of(cls, request: InferenceRequest) -> SequenceInfo:
        return cls(request.correlation_id, request.sequence_start, request.sequence_end)

    def parameters(self) -> dict[str, ParameterValue]:
        """As parameters of a response."""
        return {_ID: self.correlation_id, _START: self.start, _END: self.end}


NO_SEQUENCE = SequenceInfo()


def override(sequence: SequenceInfo, parameters: Mapping[str, ParameterValue]) -> SequenceInfo:
    """A step's sequence after a response with these parameters.

    A response that has any of the three sets them all: the id, unless given, stays, and flags not given are off.

    Raises:
        InvalidArgumentError: one of the three is of the wrong type.
    """
    if not (_ID in parameters or _START in parameters or _END in parameters):
        return sequence
    correlation_id = parameters.get(_ID, sequence.correlation_id)
    if isinstance(correlation_id, bool | float):
        raise InvalidArgumentError(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
        )
    flags = [parameters.get(name, False) for name in (_START, _END)]
    for name, flag in zip((_START, _END), flags, strict=True):
        if not isinstance(flag, bool):
            raise InvalidArgumentError(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
    return SequenceInfo(correlation_id, bool(flags[0]), bool(flags[1]))
