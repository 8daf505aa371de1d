"""`InferenceRequest`: what execute gets, and what a model asks another model with
(docs/reference/python-backend.md#requests, docs/reference/python-backend.md#requests-to-other-models)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Union

from . import bls
from .context import DEFAULT_MEMORY, PreferredMemory, current
from .errors import INT64, UINT32, UINT64, TritonModelException, items, text, whole
from .host import Host
from .response import Parameter, as_json, checked
from .sender import Answers, InferenceResponseSender
from .tensor import Tensor
from .trace import InferenceTrace

CorrelationId = Union[int, str]

_NEEDED: Any = object()
"""Stands where an argument was left out that has to be given: in Triton such ones come after others that need not."""

RELEASE_ALL = 1
"""TRITONSERVER_REQUEST_RELEASE_ALL: the request is done with."""
RELEASE_RESCHEDULE = 2
"""TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: it is to come again."""


class InferenceRequest:
    """A request; keyword arguments only in practice, as Triton's.

    Args:
        inputs: none of them None.
        requested_output_names: empty for all that the model has.
        model_version: -1 for the one that the server would choose.
        timeout: microseconds; 0 for none.
        parameters: str, int and bool, for the model that is asked.

    Raises:
        TypeError: an argument is missing, or of another type.
        TritonModelException: an input that is None, an output name that is empty, or a correlation ID that is neither
            int nor str.
    """

    __slots__ = (
        "_answers",
        "_correlation_id",
        "_flags",
        "_host",
        "_inputs",
        "_key",
        "_model_name",
        "_model_version",
        "_parameters",
        "_preferred_memory",
        "_release_flags",
        "_request_id",
        "_requested",
        "_timeout",
        "_trace",
    )

    def __init__(
        self,
        request_id: str = "",
        correlation_id: CorrelationId = 0,
        inputs: Iterable[Tensor] = _NEEDED,
        requested_output_names: Iterable[str] = _NEEDED,
        model_name: str = _NEEDED,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = DEFAULT_MEMORY,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        if inputs is _NEEDED or requested_output_names is _NEEDED or model_name is _NEEDED:
            raise TypeError("InferenceRequest: inputs, requested_output_names and model_name must be given")
        request_id = text("InferenceRequest: request_id", request_id)
        model_name = text("InferenceRequest: model_name", model_name)
        about = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        tensors = items("InferenceRequest: inputs", inputs)
        for tensor in tensors:
            if tensor is None:
                raise TritonModelException(f"Input tensor {about}")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"InferenceRequest: inputs must be Tensor objects, found type {type(tensor)}")
        names = [
            text("InferenceRequest: a requested output name", name)
            for name in items("InferenceRequest: requested_output_names", requested_output_names)
        ]
        if not all(names):
            raise TritonModelException(f"Requested output name {about}")
        if trace is not None and not isinstance(trace, InferenceTrace):
            raise TypeError(f"InferenceRequest: trace must be an InferenceTrace, found type {type(trace)}")
        self._key = -1
        self._host: Host | None = None
        self._answers: Answers | None = None
        self._release_flags = RELEASE_ALL
        self._inputs = tensors
        self._request_id = request_id
        self._correlation_id = _correlation_id(correlation_id)
        self._flags = whole("InferenceRequest: flags", flags, UINT32)
        self._timeout = whole("InferenceRequest: timeout", timeout, UINT64)
        self._parameters = "{}" if parameters is None else as_json(checked(parameters))
        self._requested = names
        self._trace = trace or InferenceTrace()
        self._model_name = model_name
        self._model_version = whole("InferenceRequest: model_version", model_version, INT64)
        self._preferred_memory = preferred_memory

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> CorrelationId:
        """The sequence; 0 if there is none."""
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = whole("flags", flags, UINT32)

    def timeout(self) -> int:
        """In microseconds; 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """The request's own parameters as JSON; ``{}`` if there are none."""
        return self._parameters

    def requested_output_names(self) -> set[str]:
        """What the client wants; all outputs if it named none."""
        return set(self._requested)

    def preferred_memory(self) -> PreferredMemory:
        return self._preferred_memory

    def trace(self) -> InferenceTrace:
        return self._trace

    def set_release_flags(self, flags: int) -> None:
        """RELEASE_ALL (1), or RELEASE_RESCHEDULE (2) to get the request again with a later batch."""
        self._release_flags = flags

    def get_response_sender(self) -> InferenceResponseSender:
        if self._answers is None and self._host is not None:
            self._answers = Answers(self._key, self._host, self._requested)
        return InferenceResponseSender(self._answers)

    def is_cancelled(self) -> bool:
        """Whether the client gave the request up."""
        return self._host is not None and self._host.is_cancelled(self._key)

    def exec(self, decoupled: bool = False) -> Any:
        """Ask the model named in the request, and block until it has answered.

        Args:
            decoupled: allow any number of responses.

        Returns:
            The response; a `bls.ResponseIterator` if `decoupled`. A failure is a response with an error.

        Raises:
            TritonModelException: not called while the model serves.
        """
        return bls.execute(current(), self, bool(decoupled))

    def async_exec(self, decoupled: bool = False) -> Any:
        """The same for coroutines: an awaitable with such a result."""
        return bls.execute_async(current(), self, bool(decoupled))

    def __repr__(self) -> str:
        return f"<InferenceRequest {self._request_id or self._key} {self._inputs}>"


def _correlation_id(value: Any) -> CorrelationId:
    if value is None:
        raise TypeError("InferenceRequest: correlation_id must be an int or a str, found None")
    if isinstance(value, str):
        return value
    if not hasattr(value, "__index__"):
        raise TritonModelException("Correlation ID must be integer or string")
    return whole("InferenceRequest: correlation_id", value, UINT64)


def incoming(
    key: int,
    host: Host,
    inputs: list[Tensor],
    request_id: str,
    correlation_id: CorrelationId,
    flags: int,
    timeout: int,
    parameters_json: str,
    requested_output_names: list[str],
    trace_context: str | None,
) -> InferenceRequest:
    """A request as execute gets it; nothing is checked.

    Args:
        key: how the host knows the request in `Host.send` and the like.
        timeout: microseconds.
        requested_output_names: all outputs when the client named none.
        trace_context: for ``trace().get_context()``.
    """
    request = InferenceRequest.__new__(InferenceRequest)
    request._key = key
    request._host = host
    request._answers = None
    request._release_flags = RELEASE_ALL
    request._inputs = inputs
    request._request_id = request_id
    request._correlation_id = correlation_id
    request._flags = flags
    request._timeout = timeout
    request._parameters = parameters_json
    request._requested = requested_output_names
    request._trace = InferenceTrace(trace_context, key)
    request._model_name = ""
    request._model_version = -1
    request._preferred_memory = DEFAULT_MEMORY
    return request
