"""What changes on the way through an ensemble (docs/reference/ensembles.md).

Shapes change between models that batch and models that do not (docs/reference/ensembles.md#execution).

A step inherits correlation id and flags of a sequence from the step that made its input, and a member may change them
for whatever follows by the parameters of its response. Every response of an ensemble tells them in parameters of the
same names (docs/reference/ensembles.md#responses).

An error of a member becomes the ensemble's (docs/reference/ensembles.md#errors).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..config.model import Dims, ModelOutput
from ..errors import ERROR_CLASSES, FailureReason, InternalError, InvalidArgumentError, TriremeError
from ..request import InferenceRequest, ParameterValue
from ..scheduling.batch import client_shape
from .plan import matches

_ID, _START, _END = "sequence_id", "sequence_start", "sequence_end"


def adapted(shape: Dims, rows: int, dims: Dims, batching: bool) -> Dims:
    """A tensor's shape for its receiver: the same, unless only one side has a batch dimension.

    Args:
        shape: the tensor's, with its batch dimension if it has one.
        rows: batch size of the request that it comes from; 0 if that had no batch dimension.
        dims: what the taker is configured for, without a batch dimension.
        batching: the taker has a batch dimension.
    """
    if batching == (rows > 0):
        return shape
    fits = matches(dims, shape)
    if batching:
        return (1, *shape) if fits else shape
    return shape[1:] if rows == 1 and shape[:1] == (1,) and not fits else shape


def output_shape(shape: Dims, rows: int, output: ModelOutput, batching: bool) -> Dims:
    """A tensor's shape as an output of an ensemble, whose ``reshape`` is undone.

    Raises:
        InternalError: the output has a ``reshape`` that the tensor does not go with.
    """
    dims = output.inner_dims
    shape = adapted(shape, rows, dims, batching)
    if output.reshape is None:
        return shape
    if not batching:
        return client_shape(output, shape)
    if not shape:
        raise InternalError(f"output '{output.name}' has no shape, but the ensemble promises a batch dimension")
    return (shape[0], *client_shape(output, shape[1:]))


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


def in_ensemble(name: str, error: TriremeError) -> TriremeError:
    """The same kind of error, with the ensemble's name in front. Whatever it was, an ensemble counts it as OTHER."""
    make = ERROR_CLASSES[error.kind]
    return make(f"in ensemble '{name}', {error.message}", reason=FailureReason.OTHER)
