"""`InferenceRequest`: what execute gets, and what a model asks another model with
(docs/reference/python-backend.md#requests, docs/reference/python-backend.md#requests-to-other-models)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union

from .context import DEFAULT_MEMORY, PreferredMemory, current
from .errors import INT64, UINT32, UINT64, HostError, TritonModelException, items, text, whole
from .response import (
    Host,
    InferenceResponse,
    InferenceResponseSender,
    Parameter,
    Responses,
    checked,
    error_response,
)
from .tensor import Tensor

CorrelationId = Union[int, str]

_NEEDED: Any = object()
"""Stands where an argument was left out that has to be given: in Triton such ones come after others that need not."""

RELEASE_ALL = 1
"""TRITONSERVER_REQUEST_RELEASE_ALL: the request is done with."""
RELEASE_RESCHEDULE = 2
"""TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: it is to come again."""


class InferenceTrace:
    """The trace that a request belongs to; of nothing if made by hand."""

    __slots__ = ("_context", "_key")

    def __init__(self, context: str | None = None, key: int | None = None) -> None:
        self._context = context
        self._key = key

    def get_context(self) -> str | None:
        """The OpenTelemetry context as JSON; None without a trace."""
        return self._context


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
        "_sender",
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
        self._sender: InferenceResponseSender | None = None
        self._release_flags = RELEASE_ALL
        self._inputs = tensors
        self._request_id = request_id
        self._correlation_id = _correlation_id(correlation_id)
        self._flags = whole("InferenceRequest: flags", flags, UINT32)
        self._timeout = whole("InferenceRequest: timeout", timeout, UINT64)
        self._parameters = "{}" if parameters is None else json.dumps(checked(parameters))
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
        if self._sender is None:
            self._sender = InferenceResponseSender(self._key, self._host, self._requested)
        return self._sender

    def is_cancelled(self) -> bool:
        """Whether the client gave the request up."""
        return self._host is not None and self._host.is_cancelled(self._key)

    def exec(self, decoupled: bool = False) -> Any:
        """Ask the model named in the request, and block until it has answered.

        Args:
            decoupled: allow any number of responses.

        Returns:
            The response; a `ResponseIterator` if `decoupled`. A failure is a response with an error.

        Raises:
            TritonModelException: not called while the model serves.
        """
        responses = self._sent(bool(decoupled), not decoupled)
        if decoupled:
            return ResponseIterator(self._model_name, responses)
        try:
            return next(responses)
        except HostError as error:
            return refusal(self._model_name, error)

    def async_exec(self, decoupled: bool = False) -> Any:
        """The same for coroutines: an awaitable, whose result is there with the first response. The request is made
        now, so that several can be awaited together; to cancel the awaitable is to give the request up."""
        return _awaited(self._model_name, self._sent(bool(decoupled)), bool(decoupled))

    def _sent(self, decoupled: bool, waits: bool = False) -> Responses:
        context = current()
        if not context.serving:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        return context.host.infer(self, decoupled, waits)

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
    """A request as execute gets it; nothing is checked. The host knows it by its key in `Host.send` and the like; the
    timeout is in microseconds; the trace's context is for ``trace().get_context()``."""
    request = InferenceRequest.__new__(InferenceRequest)
    request._key = key
    request._host = host
    request._sender = None
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


# Requests from a model to other models (docs/reference/python-backend.md#requests-to-other-models).
#
# A failure is a response with an error, never an exception: user code looks at ``has_error()``. Refusals by the server
# get the text ``Model <target> - Error when running inference: ...``; errors that the target answered with stand as
# they are.


class ResponseIterator:
    """The responses to one request, for ``for`` (which blocks) and ``async for``.

    It remembers them: once all have been seen, the next loop starts over with the first. One that comes before goes on
    where the last was left.
    """

    def __init__(self, target: str, responses: Responses) -> None:
        self._target = target
        self._responses = responses
        self._seen: list[InferenceResponse] = []
        self._at = 0
        self._finished = False

    def __iter__(self) -> Iterator[InferenceResponse]:
        self._start_over()
        return self

    def __next__(self) -> InferenceResponse:
        if not self._remembers(StopIteration):
            try:
                self._seen.append(next(self._responses))
            except (StopIteration, HostError) as error:
                self._ended(error)
        return self._step()

    def __aiter__(self) -> ResponseIterator:
        self._start_over()
        return self

    async def __anext__(self) -> InferenceResponse:
        if not self._remembers(StopAsyncIteration):
            try:
                self._seen.append(await self._responses.__anext__())
            except (StopAsyncIteration, HostError) as error:
                self._ended(error)
        return self._step()

    async def first(self) -> None:
        """Wait for the first response, which stays the next one to be seen."""
        with contextlib.suppress(StopAsyncIteration):
            await self.__anext__()
            self._at = 0

    def cancel(self) -> None:
        """Give the request up; responses that are on their way may still come."""
        self._responses.cancel()

    def _start_over(self) -> None:
        if self._finished and self._at == len(self._seen):
            self._at = 0

    def _step(self) -> InferenceResponse:
        self._at += 1
        return self._seen[self._at - 1]

    def _remembers(self, end: type[Exception]) -> bool:
        """Whether the next response has been seen before; raises `end` if there is none."""
        if self._finished and self._at == len(self._seen):
            raise end
        return self._at < len(self._seen)

    def _ended(self, error: Exception) -> None:
        """There are no more responses, or the request was refused, which is the last one."""
        self._finished = True
        if not isinstance(error, HostError):
            raise error
        self._seen.append(refusal(self._target, error))


async def _awaited(target: str, responses: Responses, decoupled: bool) -> Any:
    finished = False
    try:
        if decoupled:
            result: Any = ResponseIterator(target, responses)
            await result.first()
        else:
            result = await responses.__anext__()
        finished = True
    except HostError as error:
        return refusal(target, error)
    finally:
        if not finished:
            responses.cancel()
    return result


def refusal(target: str, error: HostError) -> InferenceResponse:
    """What a model gets for a request that the server did not accept; the code is INTERNAL whatever the reason."""
    return error_response(f"Model {target} - Error when running inference: {error}")
